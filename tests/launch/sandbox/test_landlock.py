# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from securetrain.launch.sandbox import landlock


def test_all_but_what_is_hidden(tmp_path):
    for name in ("a/secret", "a/open", "b"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a" / "file").touch()
    found = landlock.all_but([str(tmp_path / "a" / "secret")], str(tmp_path))
    assert sorted(found) == [str(tmp_path / name) for name in ("a/file", "a/open", "b")]
    assert landlock.all_but(["/nowhere/at/all"], str(tmp_path)) == [str(tmp_path)]
    assert landlock.all_but([str(tmp_path)], str(tmp_path)) == []


def test_a_link_is_no_way_to_what_is_hidden(tmp_path):
    (tmp_path / "deep" / "secret").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep")
    assert landlock.all_but([str(tmp_path / "deep" / "secret")], str(tmp_path)) == []


def test_what_each_version_can_do():
    assert landlock.rules(0, ["/a"]) == landlock.rules(1, ["/a"]) == {}
    second, sixth = landlock.rules(2, ["/a"]), landlock.rules(6, ["/a"])
    assert (second["size"], second["scoped"]) == (8, 0)
    assert (sixth["size"], sixth["scoped"]) == (24, 3)
    assert not second["handled"] & landlock.TRUNCATE
    assert sixth["handled"] & landlock.TRUNCATE
    assert not sixth["handled"] & landlock.READ_FILE


def test_rights_of_files_are_those_that_files_have():
    found = landlock.rules(7, ["/a"], devices=["/dev"], readable=["/usr"])
    rules = {path: (folder, file) for path, folder, file in found["rules"]}
    assert rules["/a"][0] == found["handled"]
    assert rules["/usr"][0] == landlock.EXECUTE | landlock.READ_FILE | landlock.READ_DIR
    assert not any(file & landlock.READ_DIR for _, file in rules.values())
    assert rules["/dev"][0] & landlock.WRITE_FILE
    assert rules["/dev"][0] != found["handled"]

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0

from securetrain.network.search_paths import cache_problem, path_problem
from tests.tables import each


def test_a_private_directory_is_safe(tmp_path):
    tmp_path.chmod(0o755)
    assert path_problem(str(tmp_path)) == ""
    assert path_problem(str(tmp_path / "missing")) == ""


@each("entry", "", ".", "lib")
def test_relative_entries_are_unsafe(entry):
    assert path_problem(entry)


def test_writable_by_everybody(tmp_path):
    shared = tmp_path / "shared"
    (shared / "below").mkdir(parents=True)
    shared.chmod(0o777)
    assert "writable by everybody" in path_problem(str(shared))
    assert "writable by everybody" in path_problem(str(shared / "below"))
    shared.chmod(0o1777)
    assert "writable by everybody" in path_problem(str(shared))
    assert path_problem(str(shared / "below")) == ""
    assert "could create it" in path_problem(str(shared / "missing"))


def test_a_link_is_judged_by_its_target(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    link = tmp_path / "link"
    link.symlink_to(shared)
    assert "writable by everybody" in path_problem(str(link))


def test_a_cache_must_be_the_users_own(tmp_path):
    tmp_path.chmod(0o700)
    assert cache_problem(str(tmp_path)) == ""
    tmp_path.chmod(0o775)
    assert "writable by others" in cache_problem(str(tmp_path))
    assert path_problem(str(tmp_path)) == ""

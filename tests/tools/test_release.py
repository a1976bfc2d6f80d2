# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A release that is not what it says is not made; the whole of one is made in make test-slow.

Commands of docs/contributing/release.md are tried here.
"""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.tables import items
from tools.release import __main__ as release
from tools.release import build, describe, environment, inside, installs
from tools.release.build import Commit, check_names
from tools.release.environment import ReleaseError
from tools.release.installs import Install, Outcome

COMMIT = Commit("0" * 40, 1_700_000_000)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "CHANGELOG.md").write_text("kept\n")
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "first"],
    ):
        subprocess.run(["git", *command], cwd=folder, check=True)
    for module in (build, describe):
        monkeypatch.setattr(module, "ROOT", folder)
    return folder


def test_a_release_is_of_a_commit_and_not_of_files_beside_it(checkout, tmp_path):
    commit = build.head()
    (checkout / "forgotten.py").write_text("")
    with pytest.raises(ReleaseError, match=r"1 files differ .* forgotten\.py"):
        build.head()
    source = build.source_of(commit, tmp_path)
    assert [file.name for file in source.iterdir()] == ["CHANGELOG.md"]


@items(
    "tags, changelog, refused",
    ([], "# Changelog\n\n## 1.2.3\n", ""),
    (["v1.2.3", "nightly"], "## 1.2.3 (2026-11-24)\n", ""),
    (["v1.2.4"], "## 1.2.3\n", "tag is v1.2.4"),
    (["v1.2.3"], "## Unreleased\n\nabout 1.2.3\n", "no section '## 1.2.3'"),
    (["v1.2.3"], "## 1.2.30\n", "no section '## 1.2.3'"),
)
def test_tag_and_changelog_speak_of_this_version(tags, changelog, refused):
    if not refused:
        check_names("1.2.3", tags, changelog)
        return
    with pytest.raises(ReleaseError, match=refused):
        check_names("1.2.3", tags, changelog)


def builder_that(tmp_path, differs):
    """A stand-in for ``python -m build``: what it makes may depend on where it is made."""
    fake = tmp_path / "python"
    text = "$5" if differs else "same"
    fake.write_text(
        f'#!/bin/sh\nmkdir -p "$4"\necho "{text}" > "$4/one-1.whl"\necho same > "$4/one-1.tar.gz"\n'
    )
    fake.chmod(0o755)
    return fake


def test_two_builds_that_differ_are_no_release_and_the_file_is_named(checkout, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ReleaseError, match=r"two builds of one-1\.whl differ"):
        build.twice(build.head(), builder_that(tmp_path, differs=True), out)


def test_a_release_is_built_with_the_kernel_or_not_at_all(checkout, tmp_path):
    fake = builder_that(tmp_path, differs=False)
    needed = '[ "$SECURETRAIN_KERNEL" = required ] || exit 9'
    fake.write_text(fake.read_text().replace("\n", f"\n{needed}\n", 1))
    out = tmp_path / "out"
    out.mkdir()
    assert build.twice(build.head(), fake, out)


def test_two_equal_builds_leave_one_of_each(checkout, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    kept = build.twice(build.head(), builder_that(tmp_path, differs=False), out)
    assert sorted(out.iterdir()) == kept == [out / "one-1.tar.gz", out / "one-1.whl"]


def wheel_of(folder, metadata):
    file = folder / "securetrain-1-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("securetrain-1.dist-info/METADATA", metadata)
    return file


def test_extras_are_those_that_the_wheel_names(tmp_path):
    text = (
        "Metadata-Version: 2.4\nName: a\nVersion: 1\nProvides-Extra: train\nProvides-Extra: all\n"
    )
    assert installs.extras_of(wheel_of(tmp_path, text)) == ["all", "train"]


def test_a_python_that_is_not_here_or_does_not_start_is_told_and_no_success(tmp_path, monkeypatch):
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\necho 'no such version' >&2\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    told: list[Install] = []
    pythons = ["3.12", "3.99"]
    done = installs.check(tmp_path / "w", "1", ["base"], pythons=pythons, say=told.append)
    assert done == told
    assert [one.outcome for one in done] == [Outcome.NO_PYTHON] * 2


def test_an_installation_that_fails_says_why_and_leaves_nothing_signed(
    checkout, tmp_path, monkeypatch, capsys
):
    def broken(folder, requirements, **_):
        if any(one.startswith("securetrain") for one in requirements):
            raise ReleaseError("no such package")
        return Path(sys.executable)

    wheel = wheel_of(tmp_path, "Metadata-Version: 2.4\nName: a\nVersion: 1\n")
    for module in (release, installs):
        monkeypatch.setattr(module, "make", broken)
    monkeypatch.setattr(release, "ROOT", checkout)
    monkeypatch.setattr(release, "twice", lambda *_: [wheel])
    monkeypatch.setattr(release, "check_names", lambda *_: None)
    monkeypatch.setattr(release, "_sign", lambda *_: pytest.fail("nothing may be signed"))
    out = tmp_path / "out"
    assert release.main(["--key", "k", "--out", str(out), "--extras", "base"]) == 1
    said = capsys.readouterr()
    assert "no such package" in said.out
    assert "installations failed" in said.err
    assert release.main(["--key", "k", "--out", str(out)]) == 2  # it is in the way


def test_a_release_without_a_signer_is_no_release(capsys):
    with pytest.raises(SystemExit) as ended:
        release.main([])
    assert ended.value.code == 2
    assert "--key --keyless is required" in capsys.readouterr().err


def test_the_provenance_names_files_by_digest_and_says_what_was_not_tried(tmp_path):
    file = tmp_path / "one.whl"
    file.write_bytes(b"wheel")
    tried = installs.as_values([Install("3.13", "base", Outcome.NO_PYTHON)])
    made = describe.provenance(COMMIT, [file], ["build==1.6.1"], tried)
    assert made["subject"] == [{"name": "one.whl", "digest": {"sha256": build.sha256(file)}}]
    definition = made["predicate"]["buildDefinition"]
    assert definition["internalParameters"]["installs"] == tried
    assert tried[0]["outcome"] == "no such Python here"
    assert {"name": "commit", "digest": {"gitCommit": COMMIT.sha}} in definition[
        "resolvedDependencies"
    ]
    assert str(tmp_path) not in json.dumps(made)


def test_a_command_that_fails_or_is_not_there_says_so(tmp_path):
    with pytest.raises(ReleaseError, match="failed with 3"):
        environment.run(sys.executable, "-c", "raise SystemExit(3)")
    with pytest.raises(ReleaseError, match="did not run"):
        environment.run(tmp_path / "nothing")


@pytest.mark.many
@pytest.mark.timeout(3000)
def test_a_whole_release_is_signed_and_a_changed_wheel_is_refused(tmp_path, monkeypatch):
    try:
        build.head()
    except ReleaseError as error:
        pytest.skip(f"a release is made of a commit: {error}")
    monkeypatch.setattr(release, "check_names", lambda *_: None)  # between two releases
    ours = Path(sys.executable).with_name("securetrain")
    environment.run(ours, "key", "generate", tmp_path / "key", "--kind", "ecdsa-p256")
    out = tmp_path / "release"
    arguments = ["--key", str(tmp_path / "key"), "--out", str(out), "--extras", "base"]
    assert release.main(arguments) == 0
    verify = [ours, "verify", out, "--bundle", out / "release.sig"]
    verify += ["--public-key", tmp_path / "key.pub"]
    environment.run(*verify)
    assert not list(out.glob("*-linux_*"))  # no index takes one
    for document in out.glob("*.json"):
        assert "file://" not in document.read_text()
        assert str(environment.ROOT) not in document.read_text()
    wheel = next(out.glob("*.whl"))
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    with pytest.raises(ReleaseError, match="failed with 13"):
        environment.run(*verify)


def test_what_was_left_out_is_told_and_no_success(tmp_path):
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    done = installs.check(
        tmp_path / "w", "1", ["train"], pythons=[python], left_out=[f"train@{python}"]
    )
    assert [one.outcome for one in done] == [Outcome.LEFT_OUT]
    assert f"| train | {Outcome.LEFT_OUT} |" in installs.matrix(done)


def test_the_matrix_has_every_extra_and_every_python():
    done = [
        Install("3.11", "base", Outcome.WORKS),
        Install("3.11", "train", Outcome.TRAINS, "torch 2.13.0"),
        Install("3.13", "base", Outcome.FAILED, "pip check failed"),
        Install("3.13", "train", Outcome.NO_PYTHON),
    ]
    assert installs.matrix(done).splitlines() == [
        "| extra | Python 3.11 | Python 3.13 |",
        "| --- | --- | --- |",
        f"| base | works | {Outcome.FAILED} |",
        f"| train | works, trains | {Outcome.NO_PYTHON} |",
        "",
        "- train, Python 3.11: torch 2.13.0",
        "- base, Python 3.13: pip check failed",
    ]


def test_what_an_extra_brings_is_what_the_package_says():
    assert {"click", "cryptography"} <= inside.wanted("base")
    assert "torch" in inside.wanted("train")
    assert {"torch", "jinja2"} <= inside.wanted("all"), "an extra of extras"
    assert "torch" not in inside.wanted("report,parquet")
    assert {"jinja2", "pyarrow"} <= inside.wanted("report,parquet")
    with pytest.raises(SystemExit, match="no extra nothing"):
        inside.wanted("nothing")


def test_an_extra_whose_module_is_not_there_is_no_success(monkeypatch):
    monkeypatch.setattr(inside, "wanted", lambda _: {"click", "nothing-of-that-name"})
    with pytest.raises(SystemExit, match="nothing-of-that-name has no module"):
        inside.main("report")


WORKFLOW = yaml.safe_load((environment.ROOT / ".github/workflows/release.yml").read_text("utf-8"))


def test_the_workflow_publishes_what_was_made_and_knows_no_token():
    text = (environment.ROOT / ".github/workflows/release.yml").read_text("utf-8")
    assert "secrets." not in text
    assert "password" not in text
    make, publish = WORKFLOW["jobs"]["make"], WORKFLOW["jobs"]["publish"]
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert publish["permissions"] == {"id-token": "write"}
    assert (publish["needs"], publish["environment"]) == ("make", "pypi")
    assert not [one for one in publish["steps"] if "checkout" in one.get("uses", "")]
    used = [one["uses"] for job in (make, publish) for one in job["steps"] if "uses" in one]
    assert all(re.fullmatch(r"[\w/.-]+@[0-9a-f]{40}", one) for one in used)
    (command,) = [one["run"] for one in make["steps"] if one.get("run", "").startswith("make ")]
    assert command == "make release KEYLESS=1 OUT=release"
    assert make["steps"][-1]["with"]["path"] == "release/"
    pythons = [one for one in make["steps"] if "setup-python" in one.get("uses", "")]
    assert tuple(pythons[0]["with"]["python-version"].split()) == installs.PYTHONS

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What a job file and libraries' variables name is shown to workers; the rest is not told apart."""

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from securetrain.core.errors import HIDDEN_VARIABLE, UsageError
from securetrain.core.files import read_file
from securetrain.launch.sandbox import landlock
from securetrain.launch.sandbox.sandbox import Sandbox
from securetrain.launch.sandbox.user import reserve
from securetrain.launch.sandbox.view import LIBRARY_PLACES, Scene, named_elsewhere
from tests.tables import items
from tests.vocabulary import outcome, refused

FIELDS = ("data.dataset", "data.tokenizer", "trust", "model.weights", "checkpoint.resume")
ASK = """
import json, os, sys
from pathlib import Path
from securetrain.core.errors import SecureTrainError
from securetrain.core.files import read_file
said = {}
for word in sys.argv[1:]:
    try:
        said[word] = read_file(Path(word).resolve(), 99).decode()
    except SecureTrainError as error:
        said[word] = f"{error.what}; {error.fix}".replace(word, "PATH")
print(json.dumps(said))
"""


def job_of(folder, names):
    """A job file whose fields name files."""
    document: dict[str, Any] = {}
    for field, path in names.items():
        *sections, name = field.split(".")
        place = document
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = str(path)
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


@pytest.mark.netns
@items("seed", 1, 2)
def test_workers_see_what_is_named_and_of_the_rest_nothing(tmp_path, seed):
    """In a folder of /tmp, which a sandbox hides: drawn fields, variables, links and names."""
    draw = random.Random(seed)
    work, run, far = tmp_path / "work", tmp_path / "run", tmp_path / "far"
    for folder in (work, run / "keys", far):
        folder.mkdir(parents=True)
    files = {one: far / f"{n}-{draw.random()}" for n, one in enumerate((*FIELDS, "there"))}
    for one, path in files.items():
        path.write_text(one)
    hub = far / "hub"
    (hub / "huggingface").mkdir(parents=True)
    for name in ("model", "token", "huggingface/token"):
        (hub / name).write_text("secret of the hub")
    (far / "link").symlink_to(files["trust"])
    asked = draw.sample(FIELDS, 3)
    job = job_of(work, {one: files[one] for one in asked} | {"data.seen": far / "link"})
    environ = {draw.choice(LIBRARY_PLACES): str(hub), "OTHER": str(files["there"])}
    shown = tuple(named_elsewhere(Path(job.name), environ, work, os.geteuid()))
    scene = Scene(
        run=run,
        keys=run / "keys",
        writable=(),
        cwd=work,
        homes=(Path("/root"), Path("/home")),
        inputs=shown,
        search_path=tuple(sys.path),
        code=(Path(sys.prefix), Path(sys.base_prefix), Path.cwd() / "securetrain"),
        user=reserve(),
        landlock_version=landlock.version(),
    )
    started = Sandbox.start(scene)
    paths = [*files.values(), far / "link", hub / "model", hub / "token"]
    paths += [hub / "huggingface/token", far / "absent", Path("/root/absent"), Path("/etc/absent")]
    try:
        words = started.command([sys.executable, "-c", ASK, *map(str, paths)])
        done = outcome(words, cwd=work)
    finally:
        started.close()
    said = dict(
        zip(
            [*files, "link", "model", "token", "token", "a", "b", "etc"],
            json.loads(done.stdout).values(),
            strict=True,
        )
    )
    for one in FIELDS:
        assert (said[one] == one) == (one in asked or one == "trust"), said
    assert (said["link"], said["model"], said["token"]) == ("trust", "secret of the hub", "")
    # No oracle: what is there and was not named is spoken of as what is not there.
    hidden = {said[one] for one in ("there", "a", "b")} | {said[one] for one in FIELDS} - {*FIELDS}
    (only,) = hidden
    assert only.startswith("not shown here: PATH lies in a folder that workers do not see")
    assert only.endswith(": --input PATH")
    assert said["etc"].startswith("No such file")


def test_a_job_file_of_another_person_opens_what_is_theirs(tmp_path):
    """Whoever wrote it would read by it what root may; the control is root's own job file."""
    theirs, roots = tmp_path / "theirs", tmp_path / "roots"
    for path in (theirs, roots):
        path.write_text("x")
    job = job_of(tmp_path, {"trust": roots, "data.dataset": theirs})
    user = os.geteuid()
    assert set(named_elsewhere(job, {}, tmp_path, user)) == {theirs, roots}
    job.chmod(0o666)  # anybody may have written it: its owner's things only
    assert set(named_elsewhere(job, {}, tmp_path, user)) == {theirs, roots}
    if user == 0:
        for path in (job, theirs):
            os.chown(path, 4321, 4321)
        assert set(named_elsewhere(job, {}, tmp_path, user)) == {theirs}
    assert list(named_elsewhere(tmp_path / "none", {}, tmp_path, user)) == []


def test_of_a_hidden_folder_no_error_says_that_nothing_is_there(tmp_path, monkeypatch):
    path = tmp_path / "data"
    error = refused(UsageError, "ST-USAG-002", read_file, path, 9)
    assert error.what == "No such file or directory"
    monkeypatch.setenv(HIDDEN_VARIABLE, f"/home:{tmp_path}")
    error = refused(UsageError, "ST-USAG-002", read_file, path, 9)
    assert error.what.startswith("not shown here")
    assert error.fix.endswith(f": --input {path}")
    named = UsageError("ST-USAG-007", "there is no dataset", "job.yaml: data.dataset", path=path)
    assert (named.what, named.where) == (error.what, "job.yaml: data.dataset")
    path.write_text("x")
    assert UsageError("ST-USAG-002", "it is a file", str(path)).what == "it is a file"

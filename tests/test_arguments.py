# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The names of `securetrain` for programs: each wrong argument is named, with what it may be.

The table is drawn: each parameter of each public function gets each value that its annotation does
not allow, so that a new parameter is covered by itself. Nothing is written.
"""

import doctest
import inspect
import re
import shutil
import subprocess
import sys
import typing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

import securetrain
from securetrain.artifacts import SaveContext, given
from securetrain.artifacts.checkpoint.save import save_safetensors
from securetrain.artifacts.checkpoint.signed_storage import SignedReader, SignedWriter
from securetrain.artifacts.dataset.sign import About, sign_in_place
from securetrain.artifacts.saved.folder import sign_folder, verify_folder
from securetrain.core.errors import SecureTrainError, UsageError
from securetrain.testing.clock import SettableClock
from securetrain.testing.runs import make_run

NAIVE = datetime(2026, 11, 29)  # noqa: DTZ001 - that is what is refused
WRONG: tuple[tuple[object, str], ...] = (
    # a value, and the word of an annotation that allows it; nothing allows what has none
    (3, "int"),
    (-1.5, "float"),
    (True, "bool"),
    (None, "None|Optional|NoneType"),
    (b"bytes", "bytes"),
    ("", "str$"),
    ("two\nlines", "str$"),
    ([], "Sequence|Collection"),
    ({}, "dict|Mapping|Collection"),
    ({3: 3}, ""),
    ([3], ""),
    (object(), ""),
    (NAIVE, ""),
    (int, "Callable"),
)
FUNCTIONS = {
    name: found
    for name in sorted(dir(securetrain))
    if inspect.isfunction(found := getattr(securetrain, name)) and name != "secret"
} | {one.__name__: one for one in (sign_folder, verify_folder, save_safetensors)}
METHODS = {
    f"{owner.__name__}.{name}": getattr(owner, name)
    for owner in (securetrain.Session, securetrain.Dataset, SignedReader, SignedWriter)
    for name in ("save", "async_save", "load", "writer", "reader", "context", "open", "__init__")
    if hasattr(getattr(owner, name, None), "__wrapped__")
}
NOW = datetime(2026, 11, 29, tzinfo=UTC)
ABOUT = SaveContext(run_id="r", step=1, created=NOW)
RIGHT = {
    "path": "x",
    "key": "k",
    "state_dict": {},
    "trust": "trust.json",
    "step": 1,
    "context": ABOUT,
}


def _parameters():
    for where, function in (FUNCTIONS | METHODS).items():
        for name in inspect.signature(function).parameters:
            if name not in {"self", "cls"}:
                yield pytest.param(function, name, id=f"{where}-{name}")


def _call(function, told):
    needed = {
        name: RIGHT[name]
        for name, one in inspect.signature(function).parameters.items()
        if one.default is one.empty and name not in {"self", "cls"} | told.keys()
    }
    owners = [securetrain.Session()] if "self" in inspect.signature(function).parameters else []
    return function(*owners, **needed | told)


@pytest.mark.parametrize(("function", "name"), list(_parameters()))
def test_each_wrong_argument_is_named(function, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kind = inspect.formatannotation(typing.get_type_hints(function, include_extras=True)[name])
    tried = 0
    for value, allowed in WRONG:
        if allowed and re.match(rf"(.*\b)?({allowed})\b", kind):
            continue
        tried += 1
        with pytest.raises(UsageError) as refused:
            _call(function, {name: value})
        assert refused.value.code == "ST-USAG-001"
        assert refused.value.what.startswith(f"{name} is ")
        assert f"({name}=)" in refused.value.where
        assert refused.value.fix.startswith("give ")
    assert tried > len(WRONG) / 2
    assert not list(tmp_path.iterdir())


def test_every_public_function_checks_its_arguments():
    for function in (FUNCTIONS | METHODS).values():
        assert hasattr(function, "__wrapped__"), function


FIELDS = ("key", "trust", "policy", "clock", "run", "expect", "dataset", "recipients", "freshness")


@pytest.mark.parametrize("field", FIELDS)
def test_each_wrong_field_of_a_session_is_named(field):
    wrong: dict[str, Any] = {field: 3}
    with pytest.raises(UsageError, match=f"{field} is of type"):
        securetrain.Session(**wrong)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        *((securetrain.Expectation, one) for one in ("run", "name", "digest", "signer", "step")),
        *((securetrain.Expectation, one) for one in ("dataset", "policy", "min_step")),
        *((securetrain.SaveContext, one) for one in ("run_id", "step", "created", "parents")),
    ],
)
@pytest.mark.parametrize("value", [-1.5, b"bytes", [3], object(), NAIVE, True])
def test_each_wrong_field_of_a_record_is_named(kind, field, value):
    right = {} if kind is securetrain.Expectation else {"run_id": "r", "step": 1, "created": NOW}
    with pytest.raises(UsageError, match=f"{field} is (of type|a time)"):
        kind(**right | {field: value})


def test_the_control_a_function_that_is_not_checked_takes_what_it_is_given():
    def plain(now: given.Moment) -> datetime:
        return now

    assert plain(NAIVE) is NAIVE
    with pytest.raises(UsageError, match="now is a time without a zone"):
        given.checked(plain)(NAIVE)


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run", clock=SettableClock(datetime.now(UTC))).run_dir


NAMED = (
    # the argument, what is given: a file that is not there, another kind of file, another form
    ("trust", lambda run: run.root / "none.json"),
    ("trust", lambda run: run.key("checkpoint")),
    ("trust", lambda run: "baseline"),
    ("trust", lambda run: run.keys),
    ("trust", lambda run: "x" * 5000),
    ("policy", lambda run: "no-such-policy"),
    ("policy", lambda run: run.trust),
    ("policy", lambda run: run.root),
    ("key", lambda run: run.root / "none.pem"),
    ("key", lambda run: run.trust),
    ("key", lambda run: run.keys),
    ("key", lambda run: "pkcs11:object=x"),
    ("key", lambda run: "x" * 5000),
)


@pytest.mark.parametrize("way", ["function", "session"])
@pytest.mark.parametrize(("name", "wrong"), NAMED)
def test_what_a_path_names_is_refused_by_the_argument(run, tmp_path, name, wrong, way):
    state, place = {"weight": torch.ones(2), "step": 1}, tmp_path / "saved"
    right: dict[str, Any] = {"key": run.key("checkpoint"), "trust": run.trust, "policy": None}
    session = securetrain.Session(**right, run="r")
    session.save(state, place)
    told = right | {name: wrong(run)}
    new, other = tmp_path / "new", securetrain.Session(**told, run="r")
    ways: dict[str, typing.Callable[[], object]] = {
        "key": lambda: securetrain.save(state, new, key=told["key"], context=session.context(1)),
        "trust": lambda: securetrain.load(state, place, trust=told["trust"]),
        "policy": lambda: securetrain.load(state, place, trust=run.trust, policy=told["policy"]),
    }
    if way == "session":
        ways = dict.fromkeys(ways, lambda: other.save(state, new))
        ways["trust"] = lambda: other.load(state, place)
    with pytest.raises(SecureTrainError) as refused:
        ways[name]()
    assert refused.value.what.startswith(f"{name} ("), refused.value
    assert refused.value.code != "ST-USAG-010"
    assert not (tmp_path / "new").exists()
    assert {one.name for one in tmp_path.iterdir()} == {"run", "saved"}
    # The control: as it should be, it loads.
    assert securetrain.load(state, place, trust=str(run.trust)).step == 1


KINDS = (
    # what lies there, the name of the key's file (P-256 for models), where it is signed
    ("model.gguf", b"GGUF", "node", "model.gguf.sig"),
    ("weights/model.safetensors", b"\2" + bytes(7) + b"{}", "node", "weights/model.sig"),
    ("rows/train.npy", b"rows", "dataset", "rows/statement.json"),
    ("step-1/__0_0.distcp", b"part", "checkpoint", "step-1/.securetrain.json"),
)


@pytest.mark.parametrize("case", KINDS, ids=lambda case: case[0])
def test_sign_goes_by_the_kind_of_its_target(run, tmp_path, monkeypatch, case):
    file, data, key, at = case
    monkeypatch.chdir(tmp_path)
    Path(file).parent.mkdir(exist_ok=True)
    Path(file).write_bytes(data)
    target = Path(file).parent if "/" in file else Path(file)
    before = sorted(tmp_path.rglob("*"))
    for wrong in (run.trust, run.root / "none.pem", run.keys):
        with pytest.raises(SecureTrainError) as refused:
            securetrain.sign(target, key=wrong)
        assert refused.value.what.startswith("key (a signer"), refused.value
        assert sorted(tmp_path.rglob("*")) == before
    place = securetrain.sign(target, key=run.key(key))
    assert place.is_file()
    assert str(place) == at


EXAMPLES = [name for name in sorted(dir(securetrain)) if name != "secret"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_each_name_runs(name, tmp_path, monkeypatch):
    made = make_run(tmp_path / "run", clock=SettableClock(datetime.now(UTC)))
    monkeypatch.chdir(tmp_path)
    shutil.copy(made.run_dir.key("checkpoint"), "key.pem")
    shutil.copy(made.run_dir.trust, "trust.json")
    Path("model.pt").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    Path("data").mkdir()
    Path("data/train.bin").write_bytes(b"some rows")
    now = datetime.now(UTC)
    made.keys["dataset"].save(Path("data.pem"))
    shutil.copytree("data", "books")
    sign_in_place(Path("data"), About(name="rows"), key=made.keys["dataset"], now=now)
    state = {"weight": torch.ones(2), "step": 12}
    securetrain.Session(key="key.pem", run="toy").save(state, "step-12")
    known = {one: getattr(securetrain, one) for one in EXAMPLES}
    known |= {"torch": torch, "Path": Path, "now": now}
    text = getattr(securetrain, name).__doc__
    example = doctest.DocTestParser().get_doctest(text, known, name, None, 0)
    said: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert result.failed == 0, "".join(said)
    assert result.attempted


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, securetrain; print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(out.stdout.split())
    assert not {"torch", "numpy", "cryptography", "msgspec", "yaml"} & loaded
    assert not [name for name in loaded if name.startswith("securetrain.")]


def test_a_key_that_is_given_as_text_is_not_shown():
    text = "-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n"
    with pytest.raises(UsageError) as refused:
        securetrain.Session(key=text)
    assert "PRIVATE" not in str(refused.value)

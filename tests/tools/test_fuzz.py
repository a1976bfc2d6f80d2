# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A short fuzzing run of every parser, what longer ones found, and that a defect is noticed."""

import atexit
import gc
import math
import pkgutil
import random
import resource
import shutil
import tempfile
from pathlib import Path

import pytest

from securetrain.core import canonical
from securetrain.core.errors import PolicyError, UsageError
from securetrain.policy import load_policy
from securetrain.rendezvous.member.entry import parse_endpoint
from securetrain.train.config import parse_job
from tests.tables import items
from tests.vocabulary import refused
from tools.fuzz import __main__ as command
from tools.fuzz import engine as fuzz
from tools.fuzz import parsers as modules
from tools.fuzz import registry
from tools.fuzz.registry import parsers

INPUTS = 20
MORE_INPUTS = 150
FOLDER = tempfile.mkdtemp(prefix="fuzz-")
atexit.register(shutil.rmtree, FOLDER)
PARSERS = {parser.name: parser for parser in parsers(Path(FOLDER))}
TOLERANT = (
    "statement-kind",
    "judge-",
    "tpm-certificates",
    "bundle-",
    "ima-signature",
    "ima-keyring-key",
    "ima-parts",  # compared with the whole list, and both may refuse
)
"""Beginnings of the names of those that refuse nothing: they find, show or answer yes or no."""


@pytest.fixture(scope="module", autouse=True)
def _only_what_is_new():
    """`run` collects garbage before each parser: not among all that was there before."""
    gc.collect()
    gc.freeze()


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("inputs", [INPUTS, pytest.param(MORE_INPUTS, marks=pytest.mark.many)])
def test_only_refusals_come_out(name, inputs):
    parser = PARSERS[name]
    tally = fuzz.run(parser, inputs, random.Random(f"{name}-1"))
    assert not tally.defects, "\n".join(map(str, tally.defects))
    assert tally.accepted + tally.refused == math.ceil(inputs * parser.share)
    # What is never refused tests nothing; that the unchanged input is accepted, `run` has seen.
    assert tally.refused or name.startswith(TOLERANT)


def test_every_module_of_parsers_is_in_the_registry():
    found = {module.name for module in pkgutil.iter_modules(modules.__path__)}
    assert found == {name for name in found if hasattr(registry, name)}
    assert len(PARSERS) == len(parsers(Path(tempfile.mkdtemp(dir=FOLDER)))), "a name is used twice"


def _broken(exception):
    def parse(data):
        if b"!" in data:
            raise exception

    return fuzz.Parser("broken", lambda: [b"abc"], parse)


def _with_bang(monkeypatch):
    monkeypatch.setattr(fuzz, "mutate", lambda data, _others, _rng: data + b"!")


@items("error", ValueError("no"), RecursionError(), MemoryError(), SystemExit(0))
def test_anything_but_a_refusal_is_a_defect(monkeypatch, error):
    _with_bang(monkeypatch)
    tally = fuzz.run(_broken(error), 5, random.Random(0))
    (defect,) = tally.defects  # one, since all five come from one place
    assert type(error).__name__ in str(defect)
    assert b"abc!" in defect.data


def test_a_slow_parser_is_a_defect(monkeypatch):
    _with_bang(monkeypatch)

    def parse(data):
        while b"!" in data:
            pass

    parser = fuzz.Parser("slow", lambda: [b"abc"], parse)
    (defect,) = fuzz.run(parser, 1, random.Random(0), time_limit=0.05).defects
    assert "took longer" in defect.what


def test_a_parser_that_refuses_valid_input_is_a_defect():
    parser = fuzz.Parser("picky", lambda: [b"{}"], lambda _: canonical.loads(b"{"))
    tally = fuzz.run(parser, 0, random.Random(0))
    assert "valid input was refused" in tally.defects[0].what


def test_mutations_repeat_with_their_seed():
    seeds = [b'{"a":[1,2]}', b"x: 1\n"]
    runs = [[fuzz.mutate(seeds[0], seeds, random.Random(n)) for n in range(50)] for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 25


def test_an_input_that_needs_much_memory_is_a_defect(monkeypatch):
    _with_bang(monkeypatch)
    before = resource.getrlimit(resource.RLIMIT_AS)

    def parse(data):
        assert bytearray(16 << 20)
        if b"!" in data:
            assert bytearray(fuzz.MEMORY_LIMIT + (64 << 20))

    tally = fuzz.run(fuzz.Parser("large", lambda: [b"abc"], parse), 3, random.Random(0))
    (defect,) = tally.defects
    assert defect.what.startswith("MemoryError")
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_what_a_parser_keeps_counts_too(monkeypatch):
    _with_bang(monkeypatch)
    kept = []
    parser = fuzz.Parser("keeps", lambda: [b"abc"], lambda _: kept.append(bytearray(4 << 20)))
    tally = fuzz.run(parser, 100, random.Random(0))
    kept.clear()
    assert [defect.what.split(":")[0] for defect in tally.defects] == ["MemoryError"]
    assert tally.accepted > 5


def test_the_command_tells_and_keeps_defects(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("tools.fuzz.__main__.parsers", lambda _: [_broken(ValueError("no"))])
    _with_bang(monkeypatch)
    assert command.main(["--inputs", "3", "--save", str(tmp_path / "kept")]) == 1
    assert "1 defects" in capsys.readouterr().out
    assert (tmp_path / "kept" / "broken-0.bin").read_bytes() == b"abc!"
    monkeypatch.setattr(
        "tools.fuzz.__main__.parsers", lambda _: [_broken(UsageError("ST-USAG-001", ""))]
    )
    assert command.main(["--inputs", "3"]) == 0
    with pytest.raises(SystemExit):
        command.main(["no-such-parser"])


# What fuzzing found.


@pytest.mark.parametrize("data", [rb'"\ud800"', rb'{"\udfff":1}', rb'["\ud83d","\ude00"]'])
def test_half_a_surrogate_pair_is_refused(data):
    refused(UsageError, "ST-USAG-008", canonical.loads, data)
    assert canonical.loads(rb'"\ud83d\ude00"') == "\U0001f600"


@items(
    "text",
    "extends: dev\nhost:\n  max_unknown: 9007199254740993\n",
    "extends: dev\ndataset:\n  max_age_days: 9007199254740993\n",
    f"extends: {'a' * 5000}\n",
    'extends: "a\\0b"\n',
)
def test_policies_with_absurd_values_are_refused(tmp_path, text):
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(PolicyError):
        load_policy(str(path))


@pytest.mark.parametrize("line", ["op.lr: 1", "parallel: {dp_shard.x: 1}", "steps.x: 1"])
def test_a_job_field_with_a_dot_in_its_name_is_refused(line):
    with pytest.raises(UsageError) as caught:
        parse_job(f"apiVersion: securetrain.dev/job/v1\nkind: TrainJob\n{line}\n", "job.yaml")
    assert caught.value.code == "ST-USAG-007"


@pytest.mark.parametrize("port", ["9" * 5000, "", "0", "65536", "\u0661"])
def test_a_port_that_is_none_is_refused(port):
    refused(UsageError, "ST-USAG-001", parse_endpoint, f"host:{port}")

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A record of the command line sees what users see, and a comparison says what changed."""

import copy
import json
from typing import Any

import msgspec
import pytest

from securetrain.cli.main import main
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey
from tests.tables import items
from tools.surface import artifacts, nodes, shapes
from tools.surface.compare import compare, report
from tools.surface.record import structs
from tools.surface.story import Story


class Part(msgspec.Struct, forbid_unknown_fields=True):
    size: int


class Message(msgspec.Struct, forbid_unknown_fields=True, rename="camel", tag="m"):
    job_name: str
    parts: list[Part] = []
    step: int = 0


class Loose(msgspec.Struct):
    anything: str


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What some chapters record."""
    story = Story(tmp_path_factory.mktemp("story"), main)
    with story.inside():
        for chapter in (artifacts.keys_and_trust, nodes.policies):
            chapter(story)
        files = shapes.folder(story.here)
    return {**story.record(), "help": {}, "files": files, "structs": {}, "schemas": []}


def test_what_commands_do_is_kept(told):
    shown = "securetrain trust show trust/root.json --json"
    assert told["exit codes"][shown] == 0
    assert told["json"][shown][".version"] == ["int 1"]
    refused = "securetrain key show absent.pem --json"
    assert (told["exit codes"][refused], told["refusal codes"][refused]) == (20, ["ST-USAG-002"])
    assert told["json"][refused][".error.fix"] == ["str"]
    assert told["files"]["trust/root.json"][".payload.roles.checkpoint.threshold"] == ["int"]
    assert told["files"]["root.pem"] == 2 * ["-----BEGIN PRIVATE KEY-----"]


def test_two_stories_are_the_same(told, tmp_path):
    story = Story(tmp_path / "another place", main)
    story.here.mkdir()
    with story.inside():
        artifacts.keys_and_trust(story)
    again = story.record()
    for part, found in again.items():
        for name, kept in found.items():
            assert told[part][name] == kept, (part, name)


@items(
    "part, change",
    ("exit codes", lambda found: found.update({"securetrain policy lint warn.yaml": 1})),
    ("refusal codes", lambda found: found["securetrain policy lint field.yaml"].clear()),
    ("json", lambda found: found["securetrain policy explain dev --json"].pop(".digest")),
    ("output", lambda found: found.update({"securetrain policy explain dev": "other"})),
    ("files", lambda found: found.pop("trust/root.json")),
    ("files", lambda found: found["trust/root.json"].update({".payload.extra": ["str"]})),
    ("schemas", lambda found: found.append("securetrain.dev/policy/v2")),
)
def test_a_change_is_a_difference(told, capsys, part, change):
    changed = copy.deepcopy(told)
    change(changed[part])
    assert report(compare(told, told), words=False) == 0
    assert report(compare(told, changed), words=False) == 1
    assert f"different: {part}" in capsys.readouterr().out
    assert report(compare(told, changed), words=True) == (0 if part == "output" else 1)


_define: Any = msgspec.defstruct


def _compared(before, after):
    nothing: dict[str, Any] = {"help": {}, "output": {}, "schemas": []}
    return compare({**nothing, "structs": before}, {**nothing, "structs": after})["structs"]


def test_a_wire_struct_is_known_by_its_fields():
    before = structs([Message, Part, Loose])
    assert list(before) == ["Message", "Part"], "only those that forbid what they do not know"
    assert list(before["Message"][0]["fields"]) == ["jobName", "parts", "step"]
    assert _compared(before, before) == []
    # A new name is no new format, and neither is the new name of a part.
    other: Any = _define("Piece", [("size", int)], forbid_unknown_fields=True)
    fields: list[Any] = [("job_name", str), ("parts", list[other], []), ("step", int, 0)]
    options: dict[str, Any] = {"forbid_unknown_fields": True, "rename": "camel"}
    same = _define("Message", fields, tag="m", **options)
    assert _compared(before, structs([same, other])) == []
    # Another field, default, tag or type is, in a part of it too.
    changes: tuple[Any, ...] = (
        _define("Message", [*fields, ("more", int, 0)], tag="m", **options),
        _define("Message", [*fields[:2], ("step", int, 1)], tag="m", **options),
        _define("Message", [*fields[:2], ("step", float, 0)], tag="m", **options),
        _define("Message", fields, tag="n", **options),
        _define("Message", fields, tag="m", forbid_unknown_fields=True),
    )
    for changed in changes:
        (first, *_) = _compared(before, structs([changed, other]))
        assert "Message" in first
    larger = _define("Part", [("size", float)], forbid_unknown_fields=True)
    told = "\n".join(_compared(before, structs([Message, larger])))
    assert "Part | size" in told
    assert _compared(before, structs([Message])) == ["- Part: size"]
    assert _compared(structs([Message]), before) == ["+ Part: size"]


def test_what_changes_from_run_to_run_is_left_out(tmp_path):
    text = (
        f"{tmp_path}/a of 2026-01-02T03:04:05.678901Z, key 0123456789abcdef, 12.5 s,"
        " step-00000004 at 127.0.0.1:4711"
    )
    assert shapes.settled(text, tmp_path) == (
        "<folder>/a of <time>, key <hex>, <n> s, step-00000004 at 127.0.0.1:<port>"
    )
    assert (
        shapes.settled("ST-CKPT-130 decade facade 12", tmp_path) == "ST-CKPT-130 decade facade 12"
    )


def test_shapes():
    assert shapes.json_shape({"a": [{"b": 1}, {"b": None}], "version": 2}) == {
        "": ["object"], ".a": ["array"], ".a[]": ["object"], ".a[].b": ["int", "null"],
        ".version": ["int 2"],
    }  # fmt: skip
    junit = '<?xml version="1.0"?><testsuite failures="1"><testcase name="x"/></testsuite>'
    assert shapes.output_shape(junit) == {
        "/testsuite": ["failures"],
        "/testsuite/testcase": ["name"],
    }
    assert shapes.output_shape("VERIFIED") is None


def test_files_are_opened(tmp_path):
    envelope = dsse.sign(
        json.dumps({"x": 1}).encode(), "application/example", [PrivateKey.generate()]
    )
    (tmp_path / "envelope.json").write_bytes(envelope)
    event = {"body": {"event": {"boundary": "b", "event": "e", "decision": "allow"}, "seq": 1}}
    (tmp_path / "ledger.jsonl").write_text(f"{json.dumps(event)}\n{json.dumps(event)}\n")
    (tmp_path / "note").write_text("hello")
    found = shapes.folder(tmp_path)
    assert found["envelope.json"][".payload.x"] == ["int"]
    assert found["ledger.jsonl"]["b e allow"]["[].body.seq"] == ["int"]
    assert found["note"] == "text"

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Every event goes to disk and back, strictly; each has a place that writes it and a test."""

import ast
import re
import types
import typing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securetrain.artifacts.statement.statements import GradientVerdict
from securetrain.core import canonical
from securetrain.core.errors import AttestationError
from securetrain.core.vocabulary import (
    TEST_ONLY,
    UNATTESTED,
    Boundary,
    Decision,
    NetworkProfile,
    NodeTier,
    degraded_label,
)
from securetrain.ledger import Event, events
from securetrain.ledger.events.event import UNWATCHED
from securetrain.network.profile import label
from tests.tables import items
from tests.vocabulary import refused

ROOT = Path(__file__).resolve().parents[3]
KINDS = [pytest.param(kind, id=f"{name}-{said}") for (name, said), kind in events.KINDS.items()]
FORMS = {
    "Allowed",
    "LedgerEvent",
    "Observed",
    "PeerRefused",
    "PlainRefused",
    "Refused",
    "VariablesRemoved",
}
_INTEGERS = st.integers(-(2**53) + 1, 2**53 - 1)
_TEXT = st.text(max_size=40)
_VALUES: dict[object, st.SearchStrategy[object]] = {
    str: _TEXT,
    int: _INTEGERS,
    float: st.floats(allow_nan=False, allow_infinity=False),
    NodeTier: st.sampled_from(NodeTier),
    NetworkProfile: st.sampled_from(NetworkProfile),
    types.NoneType: st.none(),
}


def strategy(kind):
    """Events of one kind with any values."""
    fields = {}
    for field in msgspec.structs.fields(kind):
        choices = typing.get_args(field.type) or (field.type,)
        fields[field.name] = st.one_of([_VALUES[choice] for choice in choices])
    if issubclass(kind, events.PeerRefused):
        fields["code"] = st.sampled_from(["ST-ATTS-007", "ST-ADMN-002"])
    return st.builds(kind, **fields)


def example(kind):
    """One event of a kind; only what has no default is given."""
    plain = {str: "x", int: 1, float: 0.5, NetworkProfile: NetworkProfile.LOOPBACK}
    needed = {f.name: plain[f.type] for f in msgspec.structs.fields(kind) if f.required}
    return kind(**needed)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(data=st.data())
def test_every_event_goes_to_disk_and_back(kind, data):
    said = data.draw(strategy(kind))
    line = events.encode_event(said)
    assert (line.event, line.decision, line.boundary) == (kind.NAME, kind.DECISION, said.boundary)
    read = canonical.decode(canonical.encode(line), Event, limit=1 << 16, where="")
    assert events.decode_event(read) == said
    assert all(isinstance(value, str | int | float) for value in read.details.values())


def test_a_line_that_is_not_exactly_the_event_is_none(subtests):
    for (name, said), kind in events.KINDS.items():
        with subtests.test(f"{name}-{said}"):
            line = events.encode_event(example(kind))
            others = [boundary for boundary in Boundary if boundary is not line.boundary]
            wrong = [
                msgspec.structs.replace(line, event=f"{line.event}x"),
                msgspec.structs.replace(line, boundary=others[0]),
                msgspec.structs.replace(line, details={**line.details, "another": 1}),
                msgspec.structs.replace(line, details={**line.details, "subject": "x"}),
            ]
            if not issubclass(kind, events.Refused):
                wrong.append(msgspec.structs.replace(line, code="ST-ADMN-002"))
            for field, value in line.details.items():
                mistyped = {field: 1 if isinstance(value, str) else "x"}
                wrong.append(msgspec.structs.replace(line, details={**line.details, **mistyped}))
            wrong += [
                msgspec.structs.replace(line, decision=decision)
                for decision in Decision
                if (line.event, decision) not in events.KINDS
            ]
            for bad in wrong:
                refused(ValueError, r".+", events.decode_event, bad)


def test_an_event_that_is_registered_twice_or_that_nobody_writes_is_an_error():
    from securetrain.ledger.events.event import event

    for name, writers in (("node-left", [events.WriterRole.COORDINATOR]), ("news", [])):
        with pytest.raises(ValueError, match="taken already, or nobody"):
            event(name, Boundary.RENDEZVOUS, *writers)(events.NodeLeft)
    assert events.NodeLeft.NAME == "node-left"


def test_what_an_attacker_sends_is_cut():
    error = AttestationError("ST-ATTS-007", "x" * 1000)
    said = events.NodeEvicted.of(error, "node-0")
    assert (said.code, said.what, said.boundary) == ("ST-ATTS-007", "x" * 500, Boundary.NODE)


# Labels.


def test_labels_of_nodes():
    labels = {tier: events.NodeAdmitted(tier=tier).labels for tier in NodeTier}
    assert labels.pop(NodeTier.TEST_ONLY) == (TEST_ONLY,)
    assert labels.pop(NodeTier.SELF_ASSERTED) == (UNATTESTED,)
    assert set(labels.values()) == {()}
    assert events.LeaseRenewed(tier=NodeTier.TEST_ONLY).labels == (TEST_ONLY,)
    assert events.NodeAdmitted().labels == (UNATTESTED,), "what is not said is not believed"


@pytest.mark.parametrize("profile", NetworkProfile)
@items(
    "kind, shown",
    (events.ProfileAchieved, "label"),
    (events.JobNetworkUp, "profile"),
    (events.RdmaGuarded, "profile"),
)
def test_labels_of_networks(kind, shown, profile):
    expected = (degraded_label(profile),) if profile.degraded else ()
    assert kind(network=profile).labels == expected
    # As it was written before the profile was a field.
    old = events.decode_event(
        Event(
            boundary=kind.BOUNDARY,
            decision=kind.DECISION,
            event=kind.NAME,
            details={shown: label(profile)},
        )
    )
    assert old.labels == expected


@pytest.mark.parametrize("words", ["some bytes in clear", "some bytes in the clear"])
def test_the_label_of_an_old_line_does_not_depend_on_its_explanation(words):
    said = events.ProfileAchieved(label=f"store-tls DEGRADED ({words})")
    assert said.labels == ("store-tls DEGRADED (some bytes in the clear)",)


@pytest.mark.parametrize("text", ["DEGRADED", "x DEGRADED (y)", "overlay (DEGRADED)", "degraded"])
def test_a_label_is_not_searched_for(text):
    assert events.ProfileAchieved(label=text, subject=text).labels == ()
    assert events.JobNetworkUp(profile=text, rdma=text, endpoint=text).labels == ()


def test_labels_of_checkpoints():
    assert GradientVerdict.UNWATCHED.value == UNWATCHED
    for verdict in GradientVerdict:
        said = events.CheckpointSigned(step=1, digest="", verdict=verdict.value)
        assert said.labels == ((UNWATCHED,) if verdict is GradientVerdict.UNWATCHED else ())


# The register.


def test_the_public_names_are_the_events():
    kinds = {kind.__name__ for kind in events.KINDS.values()}
    shown = {
        name
        for name, value in vars(events).items()
        if isinstance(value, type) and issubclass(value, events.LedgerEvent)
    }
    assert shown == FORMS | kinds
    assert len(kinds) == len(events.KINDS)


def _sources(*folders: str) -> dict[Path, str]:
    return {
        path: path.read_text("utf-8")
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path != Path(__file__)
    }


def _attributes(text: str) -> set[str]:
    return {
        node.attr
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "events"
    }


def test_every_event_is_written_somewhere():
    inside = (ROOT / "securetrain" / "ledger", ROOT / "securetrain" / "testing")
    written = {"Closed", "LedgerStarted"}  # by `Ledger.close` and `Ledger.begin`
    for path, text in _sources("securetrain").items():
        if not any(folder in path.parents for folder in inside) and "events." in text:
            written |= _attributes(text)
    assert {kind.__name__ for kind in events.KINDS.values()} - written == set()


def test_every_event_has_a_test():
    text = "\n".join(_sources("tests").values())
    named = set(re.findall(r"\w+(?:-\w+)*", text))
    kinds = events.KINDS.values()
    assert {kind.NAME for kind in kinds if not {kind.NAME, kind.__name__} & named} == set()


def test_no_literal_goes_to_a_ledger():
    """What is not one of the typed events cannot be written: only the room makes lines of them."""
    found = []
    for path, text in _sources("securetrain", "tools", "benchmarks").items():
        if ROOT / "securetrain" / "ledger" in path.parents or "securetrain.ledger" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Name(id="Event" | "encode_event")):
                    found.append(f"{path.name}:{node.lineno}")
                case ast.Call(
                    func=ast.Attribute(attr="write"), args=[ast.Constant(value=str()), *_]
                ) if "ledger" in ast.unparse(node.func):
                    found.append(f"{path.name}:{node.lineno}")
                case ast.Call(func=ast.Attribute(attr="allow" | "observe" | "refuse")):
                    found.append(f"{path.name}:{node.lineno}")
                case _:
                    pass
    assert found == []

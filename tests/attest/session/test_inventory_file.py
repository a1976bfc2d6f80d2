# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A large inventory in pages: what is read is what was signed, and an edition is whole or not."""

import hashlib
import os
import random
import signal
from datetime import timedelta
from functools import partial
from pathlib import Path

import msgspec
import pytest

from securetrain.attest.fleet.bundle import key_text
from securetrain.attest.fleet.values import change_values, put_nodes, remove
from securetrain.attest.session import reference_file
from securetrain.attest.session.inventory_file import open_pages, pages_path, remove_pages
from securetrain.attest.session.reference_file import (
    last_edition,
    read_reference_values,
    write_reference_values,
)
from securetrain.attest.session.state import MemoryState
from securetrain.core import canonical
from securetrain.core.errors import AttestationError, SecureTrainError, UsageError
from securetrain.evidence import inventory
from securetrain.evidence.inventory import (
    MAX_NODES,
    MAX_OWN,
    EnrolledNode,
    PagedNodes,
    PageWriter,
    with_nodes,
)
from securetrain.evidence.reference import (
    PAYLOAD_TYPE,
    ReferenceValues,
    open_reference_values,
    sign_reference_values,
)
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey
from tests import vocabulary
from tests.evidence.tpm.forge import NOW
from tests.tables import forgeries, items

OPERATOR = PrivateKey.generate()
SIGNED_BY = [key_text(OPERATOR.public)]
SMALL = 20


def node(number, own=8):
    digests = tuple(f"{number * 100 + place:064x}" for place in range(own))
    half = own // 2
    return EnrolledNode(
        ek_names=(f"000b{number:064x}",), own={"1": digests[:half], "5": digests[half:]}
    )


def fleet(count, **changes):
    nodes = {f"node-{number:06}": node(number) for number in range(count)}
    fields = {"version": 1, "issued": NOW, "expires": NOW + timedelta(days=30), "nodes": nodes}
    return ReferenceValues(**{**fields, **changes})


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Pages from the first node on."""
    monkeypatch.setattr(reference_file, "INLINE_NODES", 0)
    return tmp_path / "fleet.json"


@pytest.fixture
def values(path):
    made = fleet(SMALL * 5)
    write_reference_values(path, made, OPERATOR)
    return made


def read(path, state=None):
    return read_reference_values(path, SIGNED_BY, state or MemoryState()).values


def change(path, what, state=None):
    return change_values(
        path,
        what,
        key=OPERATOR,
        signed_by=SIGNED_BY,
        now=NOW,
        lifetime=None,
        state=state or MemoryState(),
    )


def refused(code, call, *args, error=AttestationError, **how):
    return vocabulary.refused(error, code, call, *args, **how)


def everything(path):
    found = read(path)
    return dict(found.nodes.items()), found.version


def the_pages(path):
    (found,) = path.parent.glob("fleet.json.nodes-*")
    return found


# Read and written.


def test_what_was_written_is_read(path, values):
    found = read(path)
    assert isinstance(found.nodes, PagedNodes)
    assert len(found.nodes) == len(values.nodes)
    assert list(found.nodes) == sorted(values.nodes)
    assert dict(found.nodes.items()) == values.nodes
    assert all(found.nodes[name] == values.nodes[name] for name in values.nodes)
    for other in ("node-000000x", "a", "zz", ""):
        assert other not in found.nodes
        assert found.nodes.get(other) is None


def test_a_small_fleet_stands_in_one_file(tmp_path):
    path = tmp_path / "fleet.json"
    write_reference_values(path, fleet(3), OPERATOR)
    assert read(path) == fleet(3)
    assert [file.name for file in tmp_path.iterdir()] == ["fleet.json"]


def test_an_edition_of_before_pages_is_read(tmp_path):
    """The fields that are new may be missing."""
    plain = msgspec.to_builtins(fleet(3))
    del plain["pages"]
    for entry in plain["nodes"].values():
        del entry["own"]
    old = msgspec.convert(plain, ReferenceValues)
    assert "own" not in plain["nodes"]["node-000000"]
    (tmp_path / "fleet.json").write_bytes(inventory_signed(canonical.encode(plain)))
    assert read(tmp_path / "fleet.json") == old


def inventory_signed(payload):
    return dsse.sign(payload, PAYLOAD_TYPE, [OPERATOR])


def test_random_edits_give_what_a_plain_dict_gives(path):
    drawn = random.Random(18)
    plain = dict(fleet(SMALL).nodes)
    write_reference_values(path, fleet(SMALL), OPERATOR)
    for _ in range(12):
        changes = {
            f"node-{drawn.randrange(3 * SMALL):06}": node(drawn.randrange(1 << 20))
            for _ in range(drawn.randrange(1, 9))
        }
        names = drawn.sample(sorted({*plain} - {*changes}), drawn.randrange(5))
        edits = {**changes, **dict.fromkeys(names)}
        made = change(
            path, lambda old, e=edits: msgspec.structs.replace(old, nodes=with_nodes(old.nodes, e))
        )
        plain.update(changes)
        plain = {name: plain[name] for name in plain if name not in names}
        assert dict(made.nodes.items()) == plain
        assert len(made.nodes) == len(plain)
        assert everything(path)[0] == plain


def test_pages_without_a_change_are_taken_over(path, values):
    before = {page.sha256 for page in read(path).nodes.table}
    change(path, lambda old: put_nodes(old, {"node-000050x": node(4000)}))
    after = {page.sha256 for page in read(path).nodes.table}
    assert len(before) > 4
    assert len(before - after) == 1


def test_an_edition_without_a_change_of_nodes_takes_the_pages_over(path, values):
    before = the_pages(path)
    stamp = before.stat().st_mtime_ns
    change(path, lambda old: old)
    assert (the_pages(path), the_pages(path).stat().st_mtime_ns) == (before, stamp)
    assert everything(path) == (values.nodes, 2)


def test_the_pages_of_two_editions_are_kept(path, values):
    for number in range(4):
        change(path, lambda old, n=number: put_nodes(old, {f"new-{n}": node(5000 + n)}))
    assert len(list(path.parent.glob("fleet.json.nodes-*"))) == 2
    assert len(read_last(path).nodes) == len(read(path).nodes) - 1


def read_last(path):
    keys = {OPERATOR.key_id: OPERATOR.public}
    data = last_edition(path).read_bytes()
    return open_reference_values(data, keys, "last", partial(open_pages, path)).values


def test_a_reader_of_the_last_edition_goes_on(path, values):
    """A coordinator judges by what it has read until it takes the next one."""
    held = read(path).nodes
    for number in range(3):
        change(path, lambda old, n=number: remove(old, [f"node-{n:06}"]))
    assert dict(held.items()) == values.nodes


# Attacks on the pages.


@pytest.mark.forgery
def test_damage_drawn_at_random_is_refused(path, values):
    """The control: every node is read before and after."""
    drawn, file = random.Random(18), the_pages(path)
    whole = file.read_bytes()
    for _ in range(60):
        place, bit = drawn.randrange(len(whole)), 1 << drawn.randrange(8)
        file.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
        assert "what was signed" in refused("ST-ATTS-009", everything, path).what
    for size in (0, 1, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        refused("ST-ATTS-009", everything, path)
    file.write_bytes(whole)
    assert everything(path)[0] == values.nodes


@pytest.mark.forgery
def test_pages_that_change_under_a_running_coordinator_are_refused(path, values):
    held, file = read(path).nodes, the_pages(path)
    assert held["node-000001"] == values.nodes["node-000001"]
    with file.open("r+b") as opened:
        opened.write(bytes(file.stat().st_size // 2))
    assert held["node-000001"], "what was verified before is kept"
    refused("ST-ATTS-009", held.get, "node-000002")
    assert held[max(held._firsts)], "the others are untouched"
    file.unlink()
    assert "copy the file" in refused("ST-ATTS-009", read, path).fix


def test_a_disk_that_does_not_give_the_pages(path, values, monkeypatch):
    found = read(path)

    def broken(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", broken)
    refused("ST-ATTS-009", lambda: dict(found.nodes.items()), says="Input/output error")


def test_pages_that_cannot_be_removed(path, values, monkeypatch):
    def full(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", full)
    refused("ST-USAG-002", remove_pages, path, (), error=UsageError)
    assert the_pages(path).exists()


@pytest.mark.forgery
def test_pages_of_another_edition_are_refused(path, values):
    mine = read(path).pages
    own_pages = the_pages(path)
    write_reference_values(path.with_name("other.json"), fleet(SMALL * 5 - 1), OPERATOR)
    (foreign,) = path.parent.glob("other.json.nodes-*")
    foreign.rename(own_pages)
    assert str(own_pages) == refused("ST-ATTS-009", read, path).where
    assert pages_path(path, mine) == own_pages


def laid_out(*pages, **root):
    """Pages as a signer would name them who does not keep to the rules."""
    data, table, count = b"", [], 0
    for first, nodes in pages:
        page = canonical.encode(nodes) if isinstance(nodes, dict) else nodes
        held = len(nodes) if isinstance(nodes, dict) else 1
        table.append([first, held, len(page), sha256(page)])
        data, count = data + page, count + held
    lines = canonical.encode(table)
    fields = {
        "nodes": count,
        "pages_size": len(data),
        "table_size": len(lines),
        "table": sha256(lines),
    }
    content = data + lines
    made = inventory.PagesRoot(**{**fields, **root})
    return PagedNodes(made, lambda offset, size: content[offset : offset + size], "pages")


def sha256(data):
    return hashlib.sha256(data).hexdigest()


A, B = {"a": node(1)}, {"b": node(2)}


@forgeries(
    "id, bad",
    ("order-of-pages", lambda: laid_out(("b", B), ("a", A))),
    ("twice", lambda: laid_out(("a", A), ("a", A))),
    ("first", lambda: laid_out(("b", A))),
    ("overlap", lambda: laid_out(("a", {**A, "c": node(3)}), ("b", B))),
    ("count", lambda: laid_out(("a", A), nodes=2)),
    ("size", lambda: laid_out(("a", A), pages_size=3)),
    ("duplicate", lambda: laid_out(("a", b'{"a":{},"a":{}}'))),
    ("unknown-key", lambda: laid_out(("a", b'{"a":{"admin":true}}'))),
    ("own-register", lambda: laid_out(("a", b'{"a":{"own":{"7":[]}}}'))),
    ("own-digest", lambda: laid_out(("a", b'{"a":{"own":{"1":["ab"]}}}'))),
    ("kind", lambda: laid_out(("a", b"[]"))),
    ("depth", lambda: laid_out(("a", b"{" * 5000))),
)
def test_pages_that_do_not_keep_to_the_rules(bad):
    """A signer's mistake is a refusal, not a node that is looked up in the wrong place."""
    assert dict(laid_out(("a", A), ("b", B)).items()) == {**A, **B}
    refused("ST-ATTS-009", lambda: dict(bad().items()))


def table_of(*lines, pages, gap=b""):
    """Pages whose table says of them what it is told to say: first name, nodes, bytes."""
    content = b"".join(pages) + gap
    table = canonical.encode(
        [[*line, sha256(page)] for line, page in zip(lines, pages, strict=True)]
    )
    made = inventory.PagesRoot(
        nodes=sum(nodes for _, nodes, _ in lines),
        pages_size=len(content),
        table_size=len(table),
        table=sha256(table),
    )
    content += table
    return PagedNodes(made, lambda offset, size: content[offset : offset + size], "pages")


@pytest.mark.forgery
def test_a_table_that_lies_is_refused_before_a_page_is_read():
    one, two = canonical.encode(A), canonical.encode({**B, "c": node(3)})
    honest = (("a", 1, len(one)), ("b", 2, len(two)))
    assert dict(table_of(*honest, pages=(one, two)).items()) == {**A, **B, "c": node(3)}
    for lines, pages, gap in (
        (honest[::-1], (two, one), b""),
        (honest, (one, two), b"{}"),
        ((("a", 1, len(one) - 1), honest[1]), (one, two), b""),
    ):
        refused("ST-ATTS-009", table_of, *lines, pages=pages, gap=gap)
    mixed = b'{"a":{},"c":{},"b":{}}'
    error = refused("ST-ATTS-009", table_of(("a", 3, len(mixed)), pages=(mixed,)).page, 0)
    assert "does not fit the table" in error.what
    moved = table_of(("a", 2, len(one)), ("b", 1, len(two)), pages=(one, two))
    for index in (0, 1):
        assert "does not fit the table" in refused("ST-ATTS-009", moved.page, index).what


def test_a_node_that_is_not_there_is_not_taken_out_and_not_given():
    base = laid_out(("a", A), ("b", B))
    vocabulary.refused(KeyError, "c", with_nodes, base, {"c": None})
    left = with_nodes(base, {"a": None})
    assert (list(left), len(left)) == (["b"], 1)
    vocabulary.refused(KeyError, "a", lambda: left["a"])
    vocabulary.refused(KeyError, "a", with_nodes, left, {"a": None})


def test_a_document_with_nodes_in_two_places(path, values):
    both = canonical.encode(msgspec.structs.replace(read(path), nodes=dict(values.nodes)))
    path.write_bytes(inventory_signed(both))
    assert "in it as well" in refused("ST-ATTS-009", read, path).what


@pytest.mark.forgery
def test_a_node_of_a_group_that_is_not_there_is_refused_when_it_is_read(path):
    bad = fleet(3)
    nodes = {**bad.nodes, "node-x": EnrolledNode(group="lost")}
    error = refused(
        "ST-ATTS-018",
        write_reference_values,
        path,
        msgspec.structs.replace(bad, nodes=nodes),
        OPERATOR,
    )
    assert "'lost'" in error.what
    assert list(path.parent.iterdir()) == []


# What cannot be written.


@items(
    "id, nodes, said",
    ("own", {"x": EnrolledNode(own={"1": ("ab" * 32,) * (MAX_OWN + 1)})}, "of its own"),
    ("large", {"x": EnrolledNode(devices=("ab" * 33000,))}, "the limit is 65536"),
    ("space", {"x y": EnrolledNode()}, "no name"),
    ("long", {"x" * 257: EnrolledNode()}, "no name"),
)
def test_what_nobody_would_read_is_not_written(path, values, nodes, said):
    before = everything(path)
    files = sorted(file.name for file in path.parent.iterdir())
    refused("ST-ATTS-018", change, path, lambda old: put_nodes(old, nodes), says=said)
    assert everything(path) == before
    after = sorted(file.name for file in path.parent.iterdir())
    assert after == sorted({*files, ".fleet.json.lock"})


def test_too_many_nodes_are_refused_before_anything_is_written():
    class Many(dict[str, EnrolledNode]):
        def __len__(self) -> int:
            return MAX_NODES + 1

    written: list[bytes] = []
    refused("ST-ATTS-018", PageWriter(written.append).write, Many(), "v")
    assert "0 nodes" in refused("ST-ATTS-018", PageWriter(written.append).write, {}, "v").what
    assert written == []


@items("limit, said", ("TABLE_LIMIT", "the table"), ("PAGES_LIMIT", "pages"))
def test_a_table_and_pages_that_no_reader_takes_are_not_written(monkeypatch, limit, said):
    written: list[bytes] = []
    PageWriter(written.append).write(A, "v")
    monkeypatch.setattr(inventory, limit, len(written[limit == "TABLE_LIMIT"]) - 1)
    assert said in refused("ST-ATTS-018", PageWriter(bytes).write, A, "v").what


@pytest.mark.parametrize("place", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_the_last_edition(path, values, monkeypatch, place):
    before = everything(path)

    def full(*_args, **_named):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        if place == "write":
            patched.setattr(PageWriter, "write", full)
        elif place == "fsync":
            patched.setattr(os, "fsync", full)
        else:
            patched.setattr(Path, "replace", full)
        refused(
            "ST-USAG-006",
            change,
            path,
            lambda old: put_nodes(old, {"new": node(9999)}),
            error=UsageError,
        )
    assert everything(path) == before
    assert not list(path.parent.glob(".*tmp*"))
    assert len(change(path, lambda old: put_nodes(old, {"new": node(9999)})).nodes) == 101


def test_put_nodes_refuses_hardware_of_others(path, values):
    old = read(path)
    taken = node(3)
    refused("ST-USAG-005", put_nodes, old, {"new": taken}, error=UsageError)
    refused("ST-USAG-005", put_nodes, old, {"node-000003": taken}, error=UsageError)
    twice = {"new-1": node(7000), "new-2": node(7000)}
    refused("ST-USAG-005", put_nodes, old, twice, error=UsageError)
    lost = {"new": EnrolledNode(group="lost")}
    refused("ST-USAG-001", put_nodes, old, lost, error=UsageError)
    moved = put_nodes(old, {"node-000003": node(8000)}, replace=True)
    assert moved.nodes["node-000003"] == node(8000)
    assert len(moved.nodes) == len(old.nodes)


# A kill at any instant.


def killed_at(path, count):
    """Change the file in another process, which dies at its n-th system call of those; was it?"""
    child = os.fork()
    if child == 0:
        left = count
        for name in ("open", "fsync", "replace", "unlink"):
            real = getattr(os, name)

            def dying(*args, _real=real, **named):
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return _real(*args, **named)

            setattr(os, name, dying)
        try:
            change(path, lambda old: put_nodes(old, {"new": node(9999)}))
        except SecureTrainError:
            os._exit(3)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def test_a_kill_at_any_system_call_leaves_a_whole_edition(path, values):
    old, seen, count = everything(path), set(), 0
    originals = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    while True:
        count += 1
        for file in path.parent.iterdir():
            file.unlink()
        for name, data in originals.items():
            (path.parent / name).write_bytes(data)
        if not killed_at(path, count):
            break
        nodes, version = everything(path)
        seen.add(version)
        assert (nodes, version) == old or (len(nodes), version) == (len(old[0]) + 1, 2)
        again = change(path, lambda before: put_nodes(before, {"next": node(9998)}))
        assert len(again.nodes) == len(nodes) + 1
        assert not list(path.parent.glob(".*tmp*")), "the next edition clears up"
    assert count > 10
    assert seen == {1, 2}


def test_the_signature_covers_the_pages(path, values):
    """Another root needs another signature."""
    found = read(path)
    assert found.pages is not None
    forged = msgspec.structs.replace(found.pages, table="ab" * 32)
    other = sign_reference_values(
        msgspec.structs.replace(found, pages=forged), PrivateKey.generate()
    )
    path.write_bytes(other)
    refused("ST-ATTS-009", read, path)

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Catalogues: what a name means, and every way to make it mean something else."""

import json
import shutil
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

from securetrain.artifacts.catalogue import Catalogue, Entry
from securetrain.artifacts.catalogue.editor import Editor, KeySigner, Term, create, tuf_key
from securetrain.artifacts.checkpoint.load import load
from securetrain.artifacts.checkpoint.save import save
from securetrain.artifacts.statement.context import SaveContext
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.statement.reading import read_statement
from securetrain.artifacts.statement.statements import open_statement
from securetrain.artifacts.tree.layout import Kind
from securetrain.artifacts.verify import verify_path
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.trust import TrustRoot
from tests import s3_store
from tests.tables import items

tuf = pytest.importorskip("tuf.api.metadata")


@dataclass
class House:
    """A catalogue of two of three signers, with two checkpoints below it."""

    base: Path
    trust: TrustRoot
    key: PrivateKey
    root: PrivateKey = field(default_factory=PrivateKey.generate)
    signers: list[PrivateKey] = field(
        default_factory=lambda: [
            PrivateKey.generate(),
            PrivateKey.generate(KeyKind.P256),
            PrivateKey.generate(),
        ]
    )
    publisher: PrivateKey = field(default_factory=PrivateKey.generate)

    def __post_init__(self):
        self.store = self.base / "store"
        self.store.mkdir()
        self.now = datetime.now(UTC)
        self.pin = self.base / "root.json"
        self.pin.write_bytes(
            create(
                self.store,
                roots=[self.root],
                signers=[key.public for key in self.signers],
                threshold=2,
                publishers=[self.publisher.public],
                now=self.now,
            )
        )
        for name, value in (("old", 1.0), ("new", 2.0)):
            context = SaveContext(run_id="prod", step=int(value), created=self.now)
            path = self.store / "models" / name
            path.parent.mkdir(exist_ok=True)
            save({"w": torch.full((8,), value)}, path, key=self.key, context=context)

    def client(self, place=None, state="client"):
        return Catalogue(place=place or self.store, root=self.pin, state=self.base / state)

    def editor(self):
        return Editor(self.store, self.client(state="editor"))

    def entry(self, location):
        kind, path = Kind.CHECKPOINT, self.store / location
        opened = open_statement(read_statement(path, kind), kind, self.trust)
        entry = Entry(
            digest=opened.digest, statement=opened.statement, location=location, kind=str(kind)
        )
        return entry, opened.statement_size

    def publish(self, signers=None, days=30, **names):
        editor = self.editor()
        for name, location in names.items():
            entry, length = self.entry(location)
            editor.put(name.replace("_", "-"), entry, length)
        term = Term(now=self.now, days=days)
        for key in self.signers[:2] if signers is None else signers:
            editor.sign([key], term)
        return editor.sign([self.publisher], term)

    def metadata(self, name):
        return self.store / "catalogue" / name


@pytest.fixture
def house(tmp_path, keys, trust):
    return House(tmp_path, trust, keys.checkpoint)


def code_of(call):
    with pytest.raises(SecureTrainError) as error:
        call()
    return error.value.code


def test_a_name_is_what_its_signers_say(house, trust, now):
    assert house.publish(prod_model="models/new")
    found = house.client().resolve("prod-model")
    assert found.path == house.store / "models/new"
    state = {"w": torch.zeros(8)}
    load(state, "prod-model", trust=trust, policy=None, now=house.now, catalogue=house.client())
    assert state["w"][0] == 2.0
    result = verify_path(found.path, trust=trust, policy=None, now=house.now, expect=found.expect)
    assert result.ok


def test_another_checkpoint_under_the_same_key_in_its_place(house, trust):
    """The swap of an entry's directory."""
    house.publish(prod_model="models/new")
    shutil.rmtree(house.store / "models/new")
    shutil.copytree(house.store / "models/old", house.store / "models/new")
    state = {"w": torch.full((8,), 7.0)}
    with pytest.raises(IntegrityError) as error:
        load(state, "prod-model", trust=trust, policy=None, now=house.now, catalogue=house.client())
    assert error.value.code == "ST-CKPT-127"
    assert 1.0 not in state["w"]


def test_equal_content_that_another_statement_describes(house, trust):
    """Of one content, the catalogue means one statement: other words about it are another."""
    house.publish(prod_model="models/new")
    context = SaveContext(run_id="toy", step=2, created=house.now)
    shutil.rmtree(house.store / "models/new")
    save({"w": torch.full((8,), 2.0)}, house.store / "models/new", key=house.key, context=context)
    found = house.client().resolve("prod-model")
    result = verify_path(found.path, trust=trust, policy=None, now=house.now, expect=found.expect)
    assert [problem.code for problem in result.problems] == ["ST-CKPT-127"]
    assert "statement" in result.problems[0].what


def test_a_load_of_a_name_that_is_refused_touches_nothing(house, trust):
    house.publish(prod_model="models/new")
    state = {"w": torch.full((8,), 7.0)}
    asked = {"trust": trust, "policy": None, "now": house.now, "catalogue": house.client()}
    assert code_of(lambda: load(state, "unknown", **asked)) == "ST-CTLG-121"
    assert state["w"].tolist() == [7.0] * 8


def test_an_older_catalogue_put_back(house):
    house.publish(prod_model="models/old")
    shutil.copytree(house.store / "catalogue", house.base / "kept")
    house.publish(prod_model="models/new")
    assert house.client().resolve("prod-model").path.name == "new"
    shutil.rmtree(house.store / "catalogue")
    shutil.copytree(house.base / "kept", house.store / "catalogue")
    assert code_of(lambda: house.client().resolve("prod-model")) == "ST-CTLG-151"
    # The control: who has seen nothing cannot know, as the limits say.
    assert house.client(state="new-machine").resolve("prod-model").path.name == "old"


def test_an_older_list_with_a_new_timestamp(house):
    """Publisher and store together cannot bring back what signers have replaced."""
    house.publish(prod_model="models/old")
    house.publish(prod_model="models/new")
    house.client().resolve("prod-model")
    targets = tuf.Metadata.from_file(str(house.metadata("1.targets.json")))
    editor = house.editor()
    editor._published = targets
    editor._publish(None, house.publisher, Term(now=house.now))
    assert code_of(lambda: house.client().resolve("prod-model")) == "ST-CTLG-151"


def test_fewer_signers_than_the_threshold(house):
    assert not house.publish(signers=house.signers[:1], prod_model="models/new")
    assert house.editor().signed_by == [house.signers[0].key_id]
    assert code_of(lambda: house.client().entries()) == "ST-CTLG-101"  # nothing is published


def test_one_signer_twice(house):
    """The same key again, and under a second id in the file."""
    assert not house.publish(signers=[house.signers[0]] * 3, prod_model="models/new")
    draft = house.metadata("draft.json")
    said = json.loads(draft.read_bytes())
    again = dict(said["signatures"][0])
    again["keyid"] = house.signers[1].key_id
    said["signatures"].append(again)
    draft.write_text(json.dumps(said))
    assert house.editor().signed_by == [house.signers[0].key_id]


def test_a_root_that_lists_one_key_under_two_ids(house):
    """A root's maker cannot let one person be two signers."""
    root = tuf.Metadata.from_bytes(house.pin.read_bytes())
    twin = tuf_key(house.signers[0].public)
    twin.keyid = "ab" * 32
    root.signed.add_key(twin, "targets")
    root.sign(KeySigner(house.root))
    house.pin.write_bytes(root.to_bytes())
    shutil.copy(house.pin, house.metadata("1.root.json"))
    targets = tuf.Metadata(tuf.Targets(version=1, expires=house.now + timedelta(days=3)))
    targets.sign(KeySigner(house.signers[0]), append=True)
    signature = targets.signatures[house.signers[0].key_id]
    targets.signatures[twin.keyid] = type(signature)(twin.keyid, signature.signature)
    forced = object.__new__(Editor)
    forced.store, forced._published, forced._root = house.store, None, root
    forced._publish(targets, house.publisher, Term(now=house.now))
    assert code_of(lambda: house.client().entries()) == "ST-CTLG-110"


def test_a_list_that_delegates_to_others(house):
    """Two signers may not hand names on to somebody who is none of them."""
    targets = tuf.Metadata(tuf.Targets(version=1, expires=house.now + timedelta(days=3)))
    targets.signed.delegations = tuf.Delegations({}, {})
    for key in house.signers[:2]:
        targets.sign(KeySigner(key), append=True)
    forced = object.__new__(Editor)
    forced.store, forced._published = house.store, None
    forced._root = tuf.Metadata.from_bytes(house.pin.read_bytes())
    forced._publish(targets, house.publisher, Term(now=house.now))
    assert code_of(lambda: house.client().entries()) == "ST-CTLG-101"


def test_signatures_that_are_not_enough_are_published_all_the_same(house):
    """A publisher who leaves the threshold out."""
    house.publish(signers=house.signers[:1], prod_model="models/new")
    editor = house.editor()
    editor._publish(editor._draft(), house.publisher, Term(now=house.now))
    assert code_of(lambda: house.client().entries()) == "ST-CTLG-110"


def test_an_entry_that_was_changed_after_it_was_signed(house):
    house.publish(prod_model="models/new")
    path = house.metadata("1.targets.json")
    path.write_bytes(path.read_bytes().replace(b"models/new", b"models/old"))
    assert code_of(lambda: house.client().resolve("prod-model")) in {"ST-CTLG-101", "ST-CTLG-110"}


def test_expired(house):
    house.publish(days=-1, prod_model="models/new")
    assert code_of(lambda: house.client().resolve("prod-model")) == "ST-CTLG-150"
    # Signed for another term, it counts again.
    editor = house.editor()
    for key in (*house.signers[:2], house.publisher):
        editor.sign([key], Term(now=house.now, days=30))
    assert house.client().resolve("prod-model").path.name == "new"


@items("location", "../prod", "/etc", "models/../../prod", "models//new", ".", "models/new\x00")
def test_a_name_that_leads_out(house, location):
    """Also when its signers say so: neither are they asked for, nor are they followed."""
    entry, length = house.entry("models/new")
    bad = Entry(
        digest=entry.digest, statement=entry.statement, location=location, kind="checkpoint"
    )
    assert code_of(lambda: house.editor().put("prod-model", bad, length)) == "ST-CTLG-142"
    custom = {"digest": entry.digest, "location": location, "kind": "checkpoint"}
    assert code_of(lambda: Entry.of("x", {"sha256": entry.statement}, custom)) == "ST-CTLG-142"


def test_a_link_that_leads_out(house):
    house.publish(prod_model="models/new")
    shutil.move(house.store / "models", house.base / "elsewhere")
    (house.store / "models").symlink_to(house.base / "elsewhere")
    assert code_of(lambda: house.client().resolve("prod-model")) == "ST-CTLG-142"


@pytest.mark.parametrize("name", ["", "../x", "a/b", "-x", "x" * 200])
def test_what_is_no_name(house, name):
    house.publish(prod_model="models/new")
    assert code_of(lambda: house.client().resolve(name)) == "ST-USAG-001"


def test_a_name_that_is_not_there_any_more(house):
    house.publish(prod_model="models/new", other="models/old")
    editor = house.editor()
    editor.drop("other")
    for key in (*house.signers[1:], house.publisher):
        editor.sign([key], Term(now=house.now))
    assert code_of(lambda: house.client().resolve("other")) == "ST-CTLG-121"
    assert code_of(lambda: house.editor().drop("other")) == "ST-CTLG-121"
    assert house.client().resolve("prod-model")


def test_an_expectation_that_the_catalogue_contradicts(house):
    house.publish(prod_model="models/new")
    with pytest.raises(UsageError) as error:
        house.client().resolve("prod-model", Expectation(digest="0" * 64))
    assert error.value.code == "ST-USAG-001"
    both = house.client().resolve("prod-model", Expectation(run="prod", min_step=1)).expect
    assert (both.run, both.min_step) == ("prod", 1)
    assert both.digest is not None


def test_whoever_changes_a_draft_takes_all_signatures_from_it(house):
    house.publish(signers=house.signers[:1], prod_model="models/old")
    house.publish(signers=[house.signers[1]], prod_model="models/new")
    assert house.editor().signed_by == [house.signers[1].key_id]


def test_a_stranger_signs_nothing(house):
    house.publish(signers=[], prod_model="models/new")
    with pytest.raises(UsageError) as error:
        house.editor().sign([PrivateKey.generate()], Term(now=house.now))
    assert error.value.code == "ST-USAG-001"


def test_a_published_list_that_was_tampered_with_is_not_built_upon(house):
    house.publish(prod_model="models/old")
    path = house.metadata("1.targets.json")
    path.write_bytes(path.read_bytes().replace(b"models/old", b"models/new"))
    assert code_of(house.editor) in {"ST-CTLG-101", "ST-CTLG-110"}


def test_a_kill_while_it_is_published(house, monkeypatch):
    """Before the timestamp is written, readers see the catalogue from before."""
    house.publish(prod_model="models/old")
    real = Editor._write

    def dies(self, name, metadata):
        if name == "timestamp.json":
            raise KeyboardInterrupt
        real(self, name, metadata)

    monkeypatch.setattr(Editor, "_write", dies)
    with pytest.raises(KeyboardInterrupt):
        house.publish(prod_model="models/new")
    monkeypatch.undo()
    assert house.client().resolve("prod-model").path.name == "old"
    house.publish(prod_model="models/new")
    assert house.client().resolve("prod-model").path.name == "new"


def test_an_oci_layout(house):
    house.publish(prod_model="models/new")
    house.editor().export(house.base / "layout")
    assert set(house.client(house.base / "layout").entries()) == {"prod-model"}
    for blob in (house.base / "layout/blobs/sha256").iterdir():
        blob.write_bytes(blob.read_bytes().replace(b"models/new", b"models/old", 1))
    found = house.client(house.base / "layout", state="second")
    assert code_of(found.entries) == "ST-CTLG-101"


def test_an_object_store(house):
    house.publish(prod_model="models/new")
    with s3_store.lent() as store:
        for path in (path for path in house.store.rglob("*") if path.is_file()):
            store.direct("PUT", f"house/{path.relative_to(house.store)}", path.read_bytes())
        client = house.client("gs://bucket/house")
        assert client.resolve("prod-model").path == "gs://bucket/house/models/new"


def test_roles_that_cannot_be(tmp_path):
    key = PrivateKey.generate()
    for signers, threshold in (
        ([], 1),
        ([key.public], 2),
        ([key.public] * 2, 1),
        ([key.public], 0),
    ):
        with pytest.raises(UsageError) as error:
            create(
                tmp_path,
                roots=[key],
                signers=signers,
                threshold=threshold,
                publishers=[key.public],
                now=datetime.now(UTC),
            )
        assert error.value.code == "ST-USAG-001"

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What of a model counts: what is left out, what is unsigned, links, single files; and shards."""

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric import ec

from securetrain.artifacts import kinds
from securetrain.artifacts.model import manifest
from securetrain.artifacts.model.manifest import HASHES
from securetrain.artifacts.model.oms import Form, Scope, sign_model
from securetrain.artifacts.model.signers import KeySigner, TrustedKey
from securetrain.artifacts.report import Report
from securetrain.core.errors import IntegrityError, UsageError
from tests.artifacts.worlds import verify_model
from tests.tables import each
from tests.vocabulary import refused

from .conftest import NOW
from .test_model import codes, resign, rooted

pytestmark = pytest.mark.forgery

Key = ec.EllipticCurvePrivateKey


def sign(model: Path, bundle: Path, key: Key, **options: Any) -> manifest.Predicate:
    return sign_model(model, bundle, KeySigner(key=key), **options)


def verify(model: Path, bundle: Path, key: Key, **options: Any) -> Report:
    trust = TrustedKey(key=key.public_key())
    return verify_model(model, bundle, trust, NOW, scope=Scope(**options))


def told(result: Report) -> list[tuple[str, str]]:
    return sorted((one.code, one.file) for one in result.problems)


# What is left out.


def test_a_path_that_is_left_out_is_said_and_nothing_else_is(model, key, tmp_path):
    (model / "logs").mkdir()
    (model / "logs" / "a").write_text("a")
    bundle = tmp_path / "b.sig"
    scope = Scope(ignore_paths=(model / "logs",))
    said = sign(model, bundle, key, scope=scope)
    assert "logs" in said.serialization.ignore_paths
    (model / "logs" / "b").write_text("added")
    (model / "sub" / "logs").write_text("not the one that was named")
    result = verify(model, bundle, key)
    assert result.bundled.left_out == ["logs"]
    assert told(result) == [("ST-OMSB-141", "sub/logs")]


def test_what_was_signed_is_verified_whatever_is_left_out(model, key, tmp_path):
    bundle = tmp_path / "b.sig"
    sign(model, bundle, key)
    (model / "sub" / "more").write_text("x")
    (model / "sub" / "weights.bin").write_bytes(b"changed")
    result = verify(model, bundle, key, ignore_paths=(model / "sub",))
    assert told(result) == [("ST-OMSB-130", "sub/weights.bin")]
    assert result.bundled.left_out == ["sub/more"]
    (model / "sub" / "weights.bin").unlink()
    result = verify(model, bundle, key, ignore_paths=(model / "sub",))
    assert told(result) == [("ST-OMSB-140", "sub/weights.bin")]


def test_what_a_path_is_relative_to(model, key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, given in enumerate(("model/sub", "sub", "./sub/", str(model / "sub"))):
        bundle = tmp_path / f"{number}.sig"
        said = sign(model, bundle, key, scope=Scope(ignore_paths=(Path(given),)))
        assert [one.name for one in said.resources] == ["config.json"], given


@pytest.mark.parametrize("path", ["/etc", "../model", "..", "", "sub/../../x"])
def test_nothing_outside_of_the_model_is_left_out(path, model, key, tmp_path):
    scope = Scope(ignore_paths=(Path(path),))
    refused(UsageError, "ST-USAG-001", sign, model, tmp_path / "b.sig", key, scope=scope)
    sign(model, tmp_path / "c.sig", key)
    with pytest.raises(UsageError):
        verify(model, tmp_path / "c.sig", key, ignore_paths=(Path(path),))


def test_a_bundle_cannot_name_a_pattern(model: Path, key: Key, tmp_path: Path) -> None:
    (model / "a*").write_text("x")
    with pytest.raises(UsageError) as error:
        sign(model, tmp_path / "b.sig", key, scope=Scope(ignore_paths=(model / "a*",)))
    assert error.value.code == "ST-USAG-001"


@pytest.mark.parametrize("path", [".", "", "/", "/etc", "..", "a/../..", "a\x00"])
def test_a_bundle_that_leaves_out_everything_or_another_place(path, model, key, tmp_path):
    bundle = tmp_path / "b.sig"
    sign(model, bundle, key)
    resign(bundle, key, lambda s: s["predicate"]["serialization"].update(ignore_paths=[path]))
    assert codes(verify(model, bundle, key)) == {"ST-OMSB-101"}


def test_a_pattern_in_a_bundle_is_a_name(model: Path, key: Key, tmp_path: Path) -> None:
    bundle = tmp_path / "b.sig"
    sign(model, bundle, key)
    resign(bundle, key, lambda s: s["predicate"]["serialization"].update(ignore_paths=["*"]))
    (model / "more").write_text("x")
    assert told(verify(model, bundle, key)) == [("ST-OMSB-141", "more")]


def test_a_directory_in_the_place_of_a_signature_that_was_left_out(model, key, tmp_path):
    sign(model, model / "model.sig", key)
    bundle = (model / "model.sig").rename(tmp_path / "elsewhere.sig")
    (model / "model.sig").mkdir()
    (model / "model.sig" / "payload.py").write_text("x")
    result = verify(model, bundle, key)
    assert told(result) == [("ST-OMSB-142", "model.sig")]


def test_what_one_verification_leaves_out_is_nothing_to_the_next(model, key, tmp_path):
    (model / "logs").write_text("x")
    lenient, strict = tmp_path / "l.sig", tmp_path / "s.sig"
    sign(model, lenient, key, scope=Scope(ignore_paths=(model / "logs",)))
    (model / "logs").unlink()
    sign(model, strict, key)
    (model / "logs").write_text("x")
    assert verify(model, lenient, key).ok
    assert told(verify(model, strict, key)) == [("ST-OMSB-141", "logs")]


# What nobody signed.


def test_unsigned_files_are_named_and_signed_ones_still_hold(model, key, tmp_path):
    bundle = tmp_path / "b.sig"
    sign(model, bundle, key)
    (model / "extra.py").write_text("x")
    (model / "link").symlink_to("/etc/hostname")
    (model / "empty").mkdir()
    os.mkfifo(model / "pipe")
    result = verify(model, bundle, key, ignore_unsigned=True)
    assert result.ok
    assert result.bundled.unsigned == ["empty", "extra.py", "link", "pipe"]
    (model / "config.json").unlink()
    (model / "config.json").symlink_to("extra.py")
    result = verify(model, bundle, key, ignore_unsigned=True)
    assert told(result) == [("ST-OMSB-142", "config.json")]
    (model / "config.json").unlink()
    result = verify(model, bundle, key, ignore_unsigned=True)
    assert told(result) == [("ST-OMSB-140", "config.json")]


def test_a_name_that_leads_out_is_not_looked_up_when_unsigned_files_are_ignored(
    model: Path, key: Key, tmp_path: Path
) -> None:
    bundle = tmp_path / "b.sig"
    (tmp_path / "secret.txt").write_text("s")
    sign(model, bundle, key)

    def outside(statement: dict[str, Any]) -> None:
        one = {**statement["predicate"]["resources"][0], "name": "../secret.txt"}
        statement["predicate"]["resources"].insert(0, one)
        rooted(statement)

    resign(bundle, key, outside)
    assert codes(verify(model, bundle, key, ignore_unsigned=True)) == {"ST-OMSB-101"}


# Links.


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A snapshot as a cache of Hugging Face has it: links to blobs beside it."""
    blobs = tmp_path / "hub" / "blobs"
    folder = tmp_path / "hub" / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    (folder / "sub").mkdir(parents=True)
    (blobs / "1").write_text("{}")
    (blobs / "2").write_bytes(bytes(range(256)))
    (folder / "config.json").symlink_to("../../blobs/1")
    (folder / "sub" / "weights.bin").symlink_to("../../../blobs/2")
    return folder


def test_a_snapshot_of_links(snapshot: Path, model: Path, key: Key, tmp_path: Path) -> None:
    """Signed as links it verifies as files, and as links; and the other way round when asked."""
    bundle, plain = tmp_path / "b.sig", tmp_path / "plain.sig"
    notes: list[str] = []
    said = sign(snapshot, bundle, key, scope=Scope(allow_symlinks=True), notes=notes)
    assert said.serialization.allow_symlinks
    assert len(notes) == 2
    result = verify(snapshot, bundle, key)
    assert result.ok
    assert len(result.bundled.notes) == 2
    assert verify(model, bundle, key).ok
    sign(model, plain, key)
    assert codes(verify(snapshot, plain, key)) == {"ST-OMSB-142"}
    assert verify(snapshot, plain, key, allow_symlinks=True).ok
    (tmp_path / "hub" / "blobs" / "2").write_bytes(b"changed")
    assert told(verify(snapshot, bundle, key)) == [("ST-OMSB-130", "sub/weights.bin")]


@pytest.mark.parametrize("target", [".", "..", "sub", "nowhere", "loop", "/dev/null"])
def test_links_that_are_never_followed(target, snapshot, key, tmp_path):
    bundle = tmp_path / "b.sig"
    follow = Scope(allow_symlinks=True)
    sign(snapshot, bundle, key, scope=follow)
    (snapshot / "loop").symlink_to(target)
    assert told(verify(snapshot, bundle, key)) == [("ST-OMSB-142", "loop")]
    refused(UsageError, "ST-USAG-002", sign, snapshot, tmp_path / "c.sig", key, scope=follow)


# A model that is one file.


@pytest.mark.parametrize("spec_name", [False, True])
def test_one_file(key: Key, tmp_path: Path, *, spec_name: bool) -> None:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    bundle = kinds.guess(model).place
    assert bundle.name == "model.gguf.sig"
    said = sign(model, bundle, key, form=Form(spec_name=spec_name))
    assert [one.name for one in said.resources] == ["model.gguf" if spec_name else "."]
    assert said.serialization.ignore_paths == []
    (tmp_path / "beside").write_text("x")
    result = verify(model, bundle, key)
    assert (result.ok, result.num_files, result.num_bytes) == (True, 1, 4)
    model.write_bytes(b"GGUX")
    assert codes(verify(model, bundle, key)) == {"ST-OMSB-130"}
    other = model.rename(tmp_path / "other.gguf")
    other.write_bytes(b"GGUF")
    expected = {"ST-OMSB-140", "ST-OMSB-141"} if spec_name else set()
    assert codes(verify(other, bundle, key)) == expected


def test_a_directory_is_not_one_file_nor_a_file_a_directory(model, key, tmp_path):
    single = tmp_path / "one.bin"
    single.write_bytes(b"1")
    sign(single, tmp_path / "one.sig", key)
    sign(model, tmp_path / "model.sig", key)
    assert "ST-OMSB-140" in codes(verify(model, tmp_path / "one.sig", key))
    assert "ST-OMSB-140" in codes(verify(single, tmp_path / "model.sig", key))


def test_one_file_that_is_a_link(key: Key, tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"1")
    link = tmp_path / "model.gguf"
    link.symlink_to("blob")
    refused(UsageError, "ST-USAG-002", sign, link, tmp_path / "b.sig", key)
    sign(link, tmp_path / "b.sig", key, scope=Scope(allow_symlinks=True))
    assert verify(link, tmp_path / "b.sig", key).ok


# Hashes and shards.


@pytest.mark.parametrize("algorithm", HASHES)
@pytest.mark.parametrize("shard_size", [None, 1, 100, 256, 1000])
def test_every_hash_whole_or_in_shards(algorithm, shard_size, model, key, tmp_path):
    (model / "empty").write_bytes(b"")
    bundle = tmp_path / "b.sig"
    form = Form(algorithm=algorithm, shard_size=shard_size)
    said = sign(model, bundle, key, form=form)
    names = [one.name for one in said.resources]
    assert names == sorted(names)
    if shard_size is None:
        assert names == ["config.json", "empty", "sub/weights.bin"]
    elif shard_size == 100:
        assert names == [
            "config.json:0:2",
            "sub/weights.bin:0:100",
            "sub/weights.bin:100:200",
            "sub/weights.bin:200:256",
        ]
    assert verify(model, bundle, key).ok
    data = bytearray((model / "sub" / "weights.bin").read_bytes())
    for changed in (bytes([data[0] ^ 1]) + data[1:], data[:-1], data + b"x", b""):
        (model / "sub" / "weights.bin").write_bytes(changed)
        assert told(verify(model, bundle, key)) == [("ST-OMSB-130", "sub/weights.bin")]


def test_a_shard_that_changed_is_named(model: Path, key: Key, tmp_path: Path) -> None:
    bundle = tmp_path / "b.sig"
    sign(model, bundle, key, form=Form(shard_size=100))
    data = bytearray((model / "sub" / "weights.bin").read_bytes())
    data[150] ^= 1
    (model / "sub" / "weights.bin").write_bytes(data)
    problems = verify(model, bundle, key).problems
    assert [one.what for one in problems] == ["bytes 100 to 200 are not what was signed"]


def shards(*names: str, size: object = 100, **how: object) -> bytes:
    resources = [
        {"name": name, "digest": blake3(name.encode()).hexdigest(), "algorithm": "blake3"}
        for name in names
    ]
    statement: dict[str, Any] = {
        "_type": manifest.STATEMENT_TYPE,
        "subject": [{"name": "m", "digest": {"sha256": ""}}],
        "predicateType": manifest.PREDICATE_TYPE,
        "predicate": {
            "resources": resources,
            "serialization": {
                "method": "shards",
                "hash_type": "blake3",
                "allow_symlinks": False,
                "shard_size": size,
                **how,
            },
        },
    }
    rooted(statement)
    return json.dumps(statement).encode()


@each(
    "payload",
    shards("a:0:100", "a:100:200", "a:200:201", "b:0:1"),
    shards("a:0:100", "a:100:200", size=100.0),  # as the reference implementation spells it
    shards("a:0:9", "a:9:18", "a:18:20", size=9),  # and sorts them
    shards("a:0:9", "a:18:20", "a:9:18", size=9),  # and the specification
)
def test_shards_that_are_read(payload):
    parts = manifest.parts_of(manifest.read(payload, ""))["a"]
    assert [part.start for part in parts] == sorted(part.start for part in parts)
    assert parts[0].start == 0


def test_shards_that_are_refused():
    for payload in (
        shards("a"),
        shards("a:0"),
        shards("a:1:2:x"),
        shards("a:0:0"),
        shards("a:-1:100"),
        shards("a:00:100"),
        shards("a:0:100", "a:200:300"),
        shards("a:0:101"),
        shards("a:0:50", "a:50:150"),
        shards("a:0:50", "a:100:200"),
        shards("a:100:200"),
        shards("a:0:100", "a:0:100"),
        shards("b:0:100", "a:0:100", "c:0:1"),
        shards("../a:0:100"),
        shards("a:0:100", "A:0:100"),
        shards("a:0:100", size=0),
        shards("a:0:100", size=100.5),
        shards("a:0:100", size=None),
        shards("a:0:100", hash_type="sha256"),
        shards("a:0:100", method="files"),
        shards("a:0:99999999999999999999", size=10**20),
    ):
        refused(IntegrityError, "ST-OMSB-101", manifest.read, payload, "")


def test_the_last_two_colons_count() -> None:
    assert manifest._shard("a:0:1:5:6") == ("a:0:1", 5, 6)


def test_a_digest_of_another_length(model: Path, key: Key, tmp_path: Path) -> None:
    """A hash that is called by the name of a longer one."""
    bundle = tmp_path / "b.sig"
    sign(model, bundle, key)

    def rename(statement: dict[str, Any]) -> None:
        statement["predicate"]["serialization"]["hash_type"] = "blake2b"
        for one in statement["predicate"]["resources"]:
            one["algorithm"] = "blake2b"

    resign(bundle, key, rename)
    assert codes(verify(model, bundle, key)) == {"ST-OMSB-101"}


def test_many_small_files_and_progress(key: Key, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for number in range(600):
        (model / f"{number:04}").write_bytes(bytes([number % 256]) * number)
    (model / "large").write_bytes(bytes(5 << 20))
    seen: list[tuple[int, int]] = []
    sign(model, tmp_path / "b.sig", key)
    trust = TrustedKey(key=key.public_key())
    done = verify_model(model, tmp_path / "b.sig", trust, NOW, progress=lambda *at: seen.append(at))
    assert (done.ok, done.num_files) == (True, 601)
    total = (5 << 20) + sum(range(600))
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


def test_one_digest_for_each_stretch_in_its_place(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / str(number)).write_bytes(bytes([number]) * (number + 1))
    wanted = [manifest.Stretch(str(n), 0, n + 1, whole=True) for n in (3, 0, 4, 1, 2)]
    hasher = manifest.Hasher(root=tmp_path, algorithm="blake3", follow=False)
    wanted.insert(2, manifest.Stretch("gone", 0, 9, whole=True))
    found = manifest.digests(hasher, wanted)
    assert isinstance(found.pop(2), UsageError)
    assert found == [blake3(bytes([n]) * (n + 1)).hexdigest() for n in (3, 0, 4, 1, 2)]


def test_the_statement_says_how(model: Path, key: Key, tmp_path: Path) -> None:
    bundle = tmp_path / "b.sig"
    sign(model, bundle, key, form=Form(algorithm="blake2b", shard_size=7))
    document = json.loads(bundle.read_bytes())
    said = json.loads(base64.b64decode(document["dsseEnvelope"]["payload"]))
    how = said["predicate"]["serialization"]
    assert (how["method"], how["hash_type"], how["shard_size"]) == ("shards", "blake2b", 7)

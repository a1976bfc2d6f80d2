# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What the reference implementation makes of each tampering that is refused here.

The table is what it was found to do; a change in it is a change in the reference.
"""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec

from securetrain.artifacts.model import signers
from securetrain.artifacts.model.oms import sign_model
from securetrain.artifacts.model.signers import KeySigner, TrustedKey
from securetrain.artifacts.scan.scanner import scan_path
from securetrain.identity.dsse import IN_TOTO, pae
from tests.artifacts.worlds import verify_model

from . import test_model as changes
from .conftest import NOW, pem_of
from .test_interop import call

pytestmark = [pytest.mark.slow, pytest.mark.forgery]

Key = ec.EllipticCurvePrivateKey
Change: TypeAlias = Callable[[Path, Path, Key], None]
"""Changes a model, its bundle, or what is signed in it."""

MANY: Final = """
import json, sys
from click.testing import CliRunner
from model_signing._cli import main
calls = json.load(sys.stdin)
print(json.dumps([CliRunner().invoke(main, call).exit_code for call in calls]))
"""


def unchanged(model: Path, bundle: Path, key: Key) -> None:
    del model, bundle, key


def in_bundle(change: Callable[[dict[str, Any]], None]) -> Change:
    return lambda _, bundle, __: changes._edit(bundle, change)


def in_statement(change: Callable[[dict[str, Any]], None]) -> Change:
    return lambda _, bundle, key: changes.resign(bundle, key, change)


def in_model(change: Callable[[Path], None]) -> Change:
    return lambda model, _, __: change(model)


def in_payload(change: Callable[[str], str]) -> Change:
    """Other bytes of a statement, signed by the right key."""

    def run(_: Path, bundle: Path, key: Key) -> None:
        document = json.loads(bundle.read_bytes())
        envelope = document["dsseEnvelope"]
        payload = change(base64.b64decode(envelope["payload"]).decode()).encode()
        signature = signers.sign(key, pae(IN_TOTO, payload))
        envelope["payload"] = base64.b64encode(payload).decode()
        envelope["signatures"][0]["sig"] = base64.b64encode(signature).decode()
        bundle.write_text(json.dumps(document))

    return run


def in_text(change: Callable[[str], str]) -> Change:
    def run(_: Path, bundle: Path, __: Key) -> None:
        bundle.write_text(change(bundle.read_text()))

    return run


def first_resource(**fields: Any) -> Change:
    return in_statement(lambda said: said["predicate"]["resources"][0].update(fields))


def no_digest(said: dict[str, Any]) -> None:
    del said["predicate"]["resources"][0]["digest"]


def two_digests_of_one_file(said: dict[str, Any]) -> None:
    resources = said["predicate"]["resources"]
    resources.insert(0, {**resources[0], "digest": "0" * 64})
    changes.rooted(said)


def emptied(model: Path, bundle: Path, key: Key) -> None:
    changes.resign(bundle, key, changes._no_resources)
    shutil.rmtree(model)
    model.mkdir()


def old_encoding(_: Path, bundle: Path, key: Key) -> None:
    document = json.loads(bundle.read_bytes())
    payload = base64.b64decode(document["dsseEnvelope"]["payload"])
    old = f"DSSEV1 {len(IN_TOTO)} {IN_TOTO} {len(payload)} {payload!r}".encode()
    signature = base64.b64encode(signers.sign(key, old)).decode()
    document["dsseEnvelope"]["signatures"][0]["sig"] = signature
    bundle.write_text(json.dumps(document))


def rolled_back(model: Path, bundle: Path, key: Key) -> None:
    """An older model, with the bundle that was good for it."""
    (model / "config.json").write_text('{"version": 0}')
    bundle.unlink()
    sign_model(model, bundle, KeySigner(key=key))


TAKES: Final[dict[str, Change]] = {
    "T8 an empty folder": in_model(changes._empty_folder),
    "T20 two signatures": in_bundle(changes._two_signatures),
    "T22 a key twice in the bundle": in_text(lambda text: '{"mediaType":"x",' + text[1:]),
    "T22 a key twice in the statement": in_payload(lambda text: '{"predicateType":"x",' + text[1:]),
    "T22 NaN": in_payload(lambda text: text[:-1] + ', "more": NaN}'),
    "T22 a file twice": in_statement(changes._twice),
    "T22 two digests of one file": in_statement(two_digests_of_one_file),
    "T22 another order": in_statement(changes._unsorted),
    "T24 no files": emptied,
    "T29 the encoding from before DSSE 1.0": old_encoding,
    "T31 nothing to verify": emptied,
}
"""It says that these verify."""

LEFT_OUT: Final[dict[str, Change]] = {
    "T8 a file in .git": in_model(changes._in_git),
    "T8 a file in .github": in_model(changes._in_github),
}
"""It says that these verify, as the format has it; so do we, and name what nobody signed."""

REFUSES: Final[dict[str, Change]] = {
    "T1 a changed file": in_model(changes._changed),
    "T7 a symbolic link": in_model(changes._link),
    "T7 a FIFO": in_model(changes._fifo),
    "T8 a file in plain sight": in_model(changes._extra),
    "T9 a missing file": in_model(changes._missing),
    "T10 ../": in_statement(changes._rename_resource("../config.json")),
    "T10 absolute": in_statement(changes._rename_resource("/etc/passwd")),
    "T18 another key": lambda _, bundle, __: changes.resign(
        bundle, ec.generate_private_key(ec.SECP256R1()), lambda _: None
    ),
    "T19 another hint": in_bundle(changes._hint),
    "T20 no signature": in_bundle(changes._no_signature),
    "T21 another payload type": in_bundle(changes._payload_type),
    "T21 another predicate type": in_statement(changes._predicate_type),
    "T21 another statement type": in_statement(changes._type),
    "T22 trailing bytes in the bundle": in_text(lambda text: text + "more"),
    "T22 trailing bytes in the statement": in_payload(lambda text: text + " more"),
    "T23 a digest that is not that of the files": in_statement(changes._other_root),
    "T25 md5": first_resource(algorithm="md5"),
    "T26 a key's bundle with a certificate": in_bundle(changes._two_materials),
    "T30 a digest of null": first_resource(digest=None),
    "T30 an empty digest": first_resource(digest=""),
    "T30 no digest": in_statement(no_digest),
    "T31 no bundle": lambda _, bundle, __: bundle.unlink(),
}
"""These it refuses as well."""

NO_NOTION: Final[dict[str, Change]] = {"T32 an older model": rolled_back}
"""It says that these verify; so do we: a bundle alone cannot tell."""


@pytest.fixture(scope="module")
def outcomes(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[bool]]:
    """Whether the reference takes a case, and whether we do."""
    root = tmp_path_factory.mktemp("cases")
    key = ec.generate_private_key(ec.SECP256R1())
    (root / "public.pem").write_bytes(pem_of(key.public_key()))
    cases = {"good": unchanged, **TAKES, **LEFT_OUT, **REFUSES, **NO_NOTION}
    calls = []
    ours = []
    for number, change in enumerate(cases.values()):
        model, bundle = root / str(number), root / f"{number}.sig"
        (model / "sub").mkdir(parents=True)
        (model / "config.json").write_text("{}")
        (model / "sub" / "weights.bin").write_bytes(bytes(range(256)))
        sign_model(model, bundle, KeySigner(key=key))
        change(model, bundle, key)
        public = str(root / "public.pem")
        calls.append(
            ["verify", "key", "--signature", str(bundle), "--public_key", public, str(model)]
        )
        result = verify_model(model, bundle, TrustedKey(key=key.public_key()), NOW)
        ours.append(result.ok)
        assert bool(result.bundled.left_out) == (change in LEFT_OUT.values())
    done = subprocess.run(
        [reference.with_name("python"), "-c", MANY],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    codes = json.loads(done.stdout.splitlines()[-1])
    return {name: [code == 0, own] for name, code, own in zip(cases, codes, ours, strict=True)}


def test_control_both_take_what_is_good(outcomes: dict[str, list[bool]]) -> None:
    assert outcomes["good"] == [True, True]


@pytest.mark.parametrize("name", TAKES)
def test_the_reference_takes_it(name: str, outcomes: dict[str, list[bool]]) -> None:
    assert outcomes[name] == [True, False]


@pytest.mark.parametrize("name", LEFT_OUT)
def test_both_leave_it_out(name: str, outcomes: dict[str, list[bool]]) -> None:
    assert outcomes[name] == [True, True]


@pytest.mark.parametrize("name", REFUSES)
def test_the_reference_refuses_it(name: str, outcomes: dict[str, list[bool]]) -> None:
    assert outcomes[name] == [False, False]


@pytest.mark.parametrize("name", NO_NOTION)
def test_a_bundle_cannot_tell(name: str, outcomes: dict[str, list[bool]]) -> None:
    assert outcomes[name] == [True, True]


class Payload:
    """Makes a directory when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.marker),)


def test_signed_by_a_trusted_key_is_not_safe(reference: Path, tmp_path: Path) -> None:
    """T14: the reference vouches for a pickle, and torch runs it; the scanner does not."""
    model, bundle, marker = tmp_path / "model", tmp_path / "model.sig", tmp_path / "ran"
    key = ec.generate_private_key(ec.SECP256R1())
    model.mkdir()
    torch.save(Payload(marker), model / "weights.pt")
    sign_model(model, bundle, KeySigner(key=key))
    public = tmp_path / "public.pem"
    public.write_bytes(pem_of(key.public_key()))
    assert call(reference, "verify", "key", "--signature", bundle, "--public_key", public, model)
    assert {finding.code for finding in scan_path(model).findings} == {"ST-SCAN-190"}
    assert not marker.exists()
    torch.load(model / "weights.pt", weights_only=False)
    assert marker.exists()

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Models of every ordinary kind, signed by one and verified by the other, both ways.

The other is the reference implementation, in an environment of its own (`reference`). It is called
for all cases in one process, because starting it takes longer than they do.
"""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from securetrain.artifacts.model.oms import Scope, sign_model
from securetrain.artifacts.model.signers import KeySigner, TrustedIdentity, TrustedKey, read_signer
from securetrain.identity import KeylessPolicy
from tests.artifacts.worlds import verify_model
from tests.identity.sigstore_services import ISSUER, PIPELINE, serve, token
from tests.identity.worlds import private_pem

from .conftest import NOW, pem_of
from .test_stock_signer import MANY

pytestmark = pytest.mark.slow

Key = ec.EllipticCurvePrivateKey


def plain(model: Path) -> None:
    (model / "sub").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "sub" / "weights.bin").write_bytes(bytes(range(256)))


def git_folder(model: Path) -> None:
    plain(model)
    (model / ".git" / "refs" / "tags").mkdir(parents=True)
    (model / ".git" / "HEAD").write_text("ref: refs/heads/main")
    (model / ".gitattributes").write_text("*.bin filter=lfs")


def snapshot(model: Path) -> None:
    """Links to blobs beside it, as a cache of Hugging Face has them."""
    blobs = model.parent / f"{model.name}-blobs"
    plain(blobs)
    (model / "sub").mkdir(parents=True)
    for name in ("config.json", "sub/weights.bin"):
        (model / name).symlink_to(os.path.relpath(blobs / name, (model / name).parent))


def one_file(model: Path) -> None:
    model.write_bytes(b"GGUF" + bytes(100))


def unicode_names(model: Path) -> None:
    plain(model)
    for name in ("\u6a21\u578b.bin", "gewichte-\u00e4\u00f6\u00fc", "a b (copy) 'x'", "\U0001f600"):
        (model / name).write_text(name)


def ten_thousand(model: Path) -> None:
    for number in range(10_000):
        folder = model / f"{number % 100:02}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:05}").write_bytes(number.to_bytes(4, "big"))


def with_logs(model: Path) -> None:
    plain(model)
    (model / "logs").mkdir()
    (model / "logs" / "train.log").write_text("loss 1")


@dataclass(frozen=True)
class Case:
    """A model, and what both sides are told about it."""

    make: Callable[[Path], None]
    scope: tuple[str, ...] = ()
    """Names below the model to leave out."""
    follow: bool = False
    inside: bool = False


def change(model: Path) -> None:
    file = (
        model
        if model.is_file()
        else model / "config.json"
        if (model / "config.json").exists()
        else model / "00" / "00000"
    )
    target = file.resolve()
    target.write_bytes(target.read_bytes() + b"x")


CASES: Final[dict[str, Case]] = {
    "plain": Case(plain),
    "the bundle in the model": Case(plain, inside=True),
    "a git folder": Case(git_folder),
    "a snapshot of links": Case(snapshot, follow=True),
    "one file": Case(one_file),
    "Unicode names": Case(unicode_names),
    "ignored paths": Case(with_logs, scope=("logs",)),
}
LARGE: Final[dict[str, Case]] = {"10,000 files": Case(ten_thousand)}


@pytest.fixture(scope="module")
def key() -> Key:
    return ec.generate_private_key(ec.SECP384R1())


def stock(reference: Path, calls: list[list[str]]) -> list[int]:
    done = subprocess.run(
        [reference.with_name("python"), "-c", MANY],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    codes: list[int] = json.loads(done.stdout.splitlines()[-1])
    return codes


@pytest.fixture(scope="module")
def outcomes(
    reference: Path, key: Key, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, bool]]:
    return exchange(CASES, reference, key, tmp_path_factory.mktemp("exchange"))


def exchange(
    cases: dict[str, Case], reference: Path, key: Key, root: Path
) -> dict[str, dict[str, bool]]:
    """Of each case, whether each verifies what each has signed, as it is and changed."""
    private, public = root / "key.pem", root / "public.pem"
    private.write_bytes(private_pem(key))
    public.write_bytes(pem_of(key.public_key()))
    trust = TrustedKey(key=key.public_key())
    found: dict[str, dict[str, bool]] = {name: {} for name in cases}
    signing, verifying = [], []
    places: dict[str, tuple[Path, Path, Path, Scope]] = {}
    for number, (name, case) in enumerate(cases.items()):
        model = root / str(number) / "model"
        model.parent.mkdir()
        case.make(model)
        bundles = model if case.inside else model.parent
        ours, theirs = bundles / "ours.sig", model.parent / "theirs.sig"
        left_out = tuple(model / one for one in case.scope)
        scope = Scope(ignore_paths=left_out, allow_symlinks=case.follow)
        places[name] = model, ours, theirs, scope
        words = [word for path in left_out for word in ("--ignore-paths", str(path))]
        words += ["--allow_symlinks"] * case.follow + [str(model)]
        signing.append(
            ["sign", "key", "--private_key", str(private), "--signature", str(theirs), *words]
        )
        verifying.append(
            ["verify", "key", "--public_key", str(public), "--signature", str(ours), *words]
        )
    assert stock(reference, signing) == [0] * len(signing)
    for model, ours, _, scope in places.values():
        sign_model(model, ours, KeySigner(key=key), scope=scope)
    for name, code in zip(cases, stock(reference, verifying), strict=True):
        found[name]["it takes ours"] = code == 0
    for name, (model, ours, theirs, scope) in places.items():
        if cases[name].inside:
            ours.rename(model.parent / "ours.sig")
        # Without a word about what was left out: the bundle says it.
        found[name]["we take its"] = verify_model(
            model, theirs, trust, NOW, scope=Scope(allow_symlinks=scope.allow_symlinks)
        ).ok
        if cases[name].inside:
            (model.parent / "ours.sig").rename(ours)
        change(model)
        found[name]["we refuse its"] = not verify_model(model, theirs, trust, NOW, scope=scope).ok
    for name, code in zip(cases, stock(reference, verifying), strict=True):
        found[name]["it refuses ours"] = code != 0
    return found


@pytest.mark.parametrize("name", CASES)
def test_both_ways(name: str, outcomes: dict[str, dict[str, bool]]) -> None:
    assert outcomes[name] == dict.fromkeys(outcomes["plain"], True)


@pytest.mark.many
def test_ten_thousand_files_both_ways(reference: Path, key: Key, tmp_path: Path) -> None:
    (found,) = exchange(LARGE, reference, key, tmp_path).values()
    assert len(found) == 4
    assert all(found.values()), found


def test_keyless_both_ways(reference: Path, tmp_path: Path) -> None:
    """Through the servers of a private instance, which a trust configuration declares to both."""
    pytest.importorskip("sigstore", reason="sigstore is not installed: nothing is signed keyless")
    model = tmp_path / "model"
    plain(model)
    config, root = tmp_path / "trust_config.json", tmp_path / "trusted_root.json"
    with serve() as services:
        document = json.loads(services.config())
        # The reference asks for one, also where it is given a token.
        document["signingConfig"]["oidcUrls"] = document["signingConfig"]["caUrls"]
        config.write_text(json.dumps(document))
        root.write_bytes(services.instance.trusted_root())
        (tmp_path / "token").write_bytes(token())
        words = f"sign sigstore --trust_config {config} --signature {tmp_path}/theirs.sig"
        assert stock(
            reference, [[*words.split(), "--identity_token", token().decode(), str(model)]]
        ) == [0]
        name = f"keyless:?token={tmp_path}/token&config={config}"
        sign_model(model, tmp_path / "ours.sig", read_signer(name, None, (), lambda _: b""))
    policy = KeylessPolicy(identity=PIPELINE, issuer=ISSUER)
    trust = TrustedIdentity(policy=policy, trusted_root=root)
    assert verify_model(model, tmp_path / "theirs.sig", trust, NOW).ok
    words = f"verify sigstore --trust_config {config} --signature {tmp_path}/ours.sig"
    words += f" --identity {PIPELINE} --identity_provider {ISSUER} {model}"
    assert stock(reference, [words.split()]) == [0]
    change(model)
    assert not verify_model(model, tmp_path / "theirs.sig", trust, NOW).ok
    assert stock(reference, [words.split()]) != [0]

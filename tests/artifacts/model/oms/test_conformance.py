# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The offline cases of the conformance suite of Model Signing, each written again, by its name.

The suite itself is run by tools/conformance.py. It asks only whether an implementation fails; here
the reason of each refusal is asserted, and bundles are made in the spelling of whoever makes such
ones: the reference implementation, that of Go, and their releases before 1.1.

Source: https://github.com/sampras343/model-signing-conformance (commit 114b0f7) and the vectors of
https://github.com/ossf/model-signing-spec (commit a0c91e2).
"""

import base64
import datetime as dt
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID

from securetrain.artifacts.model import bundle as bundle_file
from securetrain.artifacts.model import manifest, signers
from securetrain.artifacts.model.oms import Scope, sign_model
from securetrain.artifacts.model.signers import (
    CertificateSigner,
    KeySigner,
    ModelSigner,
    ModelTrust,
    TrustedIdentity,
    TrustedKey,
    TrustedRoots,
)
from securetrain.artifacts.report import Report
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.core.errors import IntegrityError, SecureTrainError
from securetrain.identity import KeylessPolicy
from securetrain.identity.dsse import IN_TOTO, pae
from tests import vocabulary
from tests.artifacts.worlds import verify_model
from tests.identity import worlds
from tests.identity.private_sigstore import ISSUER, SPIFFE, Instance
from tests.tables import items

from .conftest import NOW, pem_of

pytestmark = pytest.mark.forgery

Key: TypeAlias = ec.EllipticCurvePrivateKey
Statement: TypeAlias = dict[str, Any]
Files: TypeAlias = Mapping[str, bytes]

SIMPLE: Final = {"signme-1": b"one\n", "signme-2": b"two\n", "ignore-me": b"three\n"}
BUNDLE_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
SIGNED: Final = ("signme-1", "signme-2")
NESTED: Final = {"config.json": b"{}", "subdir/adapter.bin": b"a", "weights.bin": b"w"}
GIT: Final = (".git", ".gitattributes", ".github", ".gitignore")


def new_key(curve: ec.EllipticCurve | None = None) -> Key:
    return ec.generate_private_key(curve or ec.SECP384R1())


def certificate(
    subject: str,
    public: ec.EllipticCurvePublicKey,
    issuer: str,
    by: Key,
    *,
    can_issue: bool = False,
    ends: int = 30,
) -> x509.Certificate:
    """A certificate; a signer's is marked as an authority's too, as openssl does by itself."""
    return worlds.certificate(
        subject,
        issuer,
        public,
        by,
        (NOW - dt.timedelta(days=3000), NOW + dt.timedelta(days=ends)),
        worlds.limits(ca=True),
        (worlds.usage("digital_signature", *["key_cert_sign"] * can_issue), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), False),
    )


class Maker:
    """Whoever signs: a key, certificates for it, and an instance of Sigstore."""

    def __init__(self) -> None:
        self.key, self.other = new_key(), new_key()
        self.instance = Instance()
        root, between, itself = new_key(), new_key(), new_key()
        self.root = certificate("root", root.public_key(), "root", root, can_issue=True)
        middle = certificate("between", between.public_key(), "root", root, can_issue=True)
        public = self.key.public_key()
        leaf = certificate("maker", public, "between", between)
        self.chain = (leaf, middle)
        self.expired = (certificate("maker", public, "between", between, ends=-700), middle)
        self.itself, self.itself_key = certificate("s", itself.public_key(), "s", itself), itself
        self.wrong_root = certificate(
            "root", self.other.public_key(), "root", self.other, can_issue=True
        )

    @property
    def trusted(self) -> TrustedKey:
        return TrustedKey(key=self.key.public_key())

    @property
    def roots(self) -> TrustedRoots:
        return TrustedRoots(roots=(self.root,))


@pytest.fixture(scope="module")
def maker() -> Maker:
    return Maker()


def lay(folder: Path, files: Files) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


# Signing, then verifying.


@dataclass(frozen=True)
class Round:
    """A case of ``roundtrip``."""

    files: Files = field(default_factory=lambda: SIMPLE)
    signed: tuple[str, ...] = SIGNED
    kind: str = "key"
    curve: ec.EllipticCurve = field(default_factory=ec.SECP384R1)
    ignored: tuple[str, ...] = ("ignore-me",)
    inside: bool = False
    twice: bool = False
    added: bool = False
    """A file appears after signing, and unsigned files are ignored."""
    links: Files = field(default_factory=dict)
    refused: str = ""


def plain(files: Files, **more: Any) -> Round:
    return Round(files=files, signed=tuple(sorted(files)), ignored=(), **more)


def linked(link: str, target: bytes) -> Round:
    return Round(links={link: target}, refused="ST-USAG-002")


ROUNDS: Final[dict[str, Round]] = {
    "certificate-multi-file": plain(NESTED, kind="certificate"),
    "certificate-self-signed": Round(kind="itself"),
    "certificate-simple": Round(kind="certificate"),
    "key-binary-content": plain({"header.bin": bytes(range(256)), "weights.bin": b"\xff\x00" * 9}),
    "key-default-ignores": Round(
        files={
            ".gitattributes": b"* lfs",
            ".github/ci.yml": b"on: push",
            ".gitignore": b"*.log",
            "model.bin": b"m",
        },
        signed=("model.bin",),
        ignored=(),
    ),
    "key-dotfile-included": plain({".config": b"c", ".env.example": b"e", "model.bin": b"m"}),
    "key-empty-file": plain({"empty.bin": b"", "signme-1": b"one"}),
    "key-empty-model-rejected": Round({".gitignore": b"*"}, (), ignored=(), refused="ST-OMSB-101"),
    "key-files-in-hidden-dir": plain(
        {".cache/weights.bin": b"w", ".local/share/data.bin": b"d", "model.bin": b"m"}
    ),
    "key-ignore-paths": Round(),
    "key-ignore-unsigned": Round(added=True),
    "key-multi-file": plain(NESTED),
    "key-p384": Round(),
    "key-p521": Round(curve=ec.SECP521R1()),
    "key-sig-inside-model": Round(inside=True),
    "key-simple": Round(curve=ec.SECP256R1()),
    "key-simple-deterministic": Round(twice=True),
    "key-single-file": plain({"model.bin": b"m"}),
    "key-special-chars-path": plain(
        {"file (copy).bin": b"1", "normal.bin": b"2", "path with spaces/model.bin": b"3"}
    ),
    "key-symlink-cycle": linked("cycle-link", b"."),
    "key-symlink-default-rejected": linked("link-to-signme", b"signme-1"),
    "key-symlink-outside-root": linked("outside-link", b"/tmp/nonexistent-target"),
    "key-unicode-filename": plain({"\u6a21\u578b.bin": b"m", "weights.bin": b"w"}),
}


def signer_of(case: Round, maker: Maker) -> tuple[ModelSigner, ModelTrust]:
    match case.kind:
        case "certificate":
            return CertificateSigner(key=maker.key, chain=maker.chain), maker.roots
        case "itself":
            chain = (maker.itself, maker.itself)
            trust = TrustedRoots(roots=(maker.itself,))
            return CertificateSigner(key=maker.itself_key, chain=chain), trust
        case _:
            key = new_key(case.curve)
            return KeySigner(key=key), TrustedKey(key=key.public_key())


@pytest.mark.parametrize("name", ROUNDS)
def test_round(name: str, maker: Maker, tmp_path: Path) -> None:
    case = ROUNDS[name]
    model = lay(tmp_path / "model", case.files)
    for link, target in case.links.items():
        (model / link).symlink_to(target.decode())
    bundle = (model if case.inside else tmp_path) / "bundle.sig"
    scope = Scope(ignore_paths=tuple(model / path for path in case.ignored))
    signer, trust = signer_of(case, maker)
    if case.refused:
        given = (model, bundle, signer)
        vocabulary.refused(SecureTrainError, case.refused, sign_model, *given, scope=scope)
        assert not bundle.exists()
        return
    said = sign_model(model, bundle, signer, scope=scope)
    check_form(bundle, case.signed)
    if case.twice:
        assert sign_model(model, tmp_path / "again.sig", signer, scope=scope) == said
    if case.added:
        (model / "injected.bin").write_text("injected")
        assert codes(verify_model(model, bundle, trust, NOW, scope=scope)) == {"ST-OMSB-141"}
        scope = Scope(ignore_paths=scope.ignore_paths, ignore_unsigned=True)
    result = verify_model(model, bundle, trust, NOW, scope=scope)
    assert result.problems == []
    assert result.num_files == len(case.signed)
    assert list(result.bundled.unsigned) == ["injected.bin"] * case.added


def check_form(bundle: Path, signed: tuple[str, ...]) -> None:
    """What the suite's schemas and its own checks ask of a bundle."""
    document = json.loads(bundle.read_bytes())
    assert set(document) == {"mediaType", "verificationMaterial", "dsseEnvelope"}
    envelope = document["dsseEnvelope"]
    assert envelope["payloadType"] == "application/vnd.in-toto+json"
    said = json.loads(base64.b64decode(envelope["payload"]))
    assert set(said) == {"_type", "subject", "predicateType", "predicate"}
    assert said["_type"] == "https://in-toto.io/Statement/v1"
    assert said["predicateType"] == "https://model_signing/signature/v1.0"
    how = said["predicate"]["serialization"]
    assert set(how) == {"method", "hash_type", "allow_symlinks", "ignore_paths"}
    resources = said["predicate"]["resources"]
    assert [one["name"] for one in resources] == list(signed)
    assert all(set(one) == {"name", "digest", "algorithm"} for one in resources)
    root = hashlib.sha256(b"".join(bytes.fromhex(one["digest"]) for one in resources)).hexdigest()
    assert said["subject"] == [{"name": "model", "digest": {"sha256": root}}]


# Verifying what others have signed.


def stated(
    files: Files, *, ignored: tuple[str, ...] | None = GIT, name: str = "model"
) -> Statement:
    """A statement of theirs, in their order of fields."""
    resources = [
        {"algorithm": "sha256", "digest": hashlib.sha256(data).hexdigest(), "name": path}
        for path, data in sorted(files.items())
    ]
    how: dict[str, Any] = {"method": "files", "hash_type": "sha256", "allow_symlinks": False}
    if ignored is not None:
        how["ignore_paths"] = list(ignored)
    root = hashlib.sha256(b"".join(bytes.fromhex(one["digest"]) for one in resources)).hexdigest()
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "model", "digest": {"sha256": root}}],
        "predicateType": "https://model_signing/signature/v1.0",
        "predicate": {"serialization": how, "resources": resources},
    }


SAID: Final = stated({name: SIMPLE[name] for name in SIGNED})
"""What most cases have signed."""


def changed(change: Callable[[Statement], object], said: Statement = SAID) -> Statement:
    copy: Statement = json.loads(json.dumps(said))
    change(copy)
    return copy


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def by_key(maker: Maker, *, old: bool = False) -> dict[str, Any]:
    public = maker.key.public_key()
    if old:
        return {
            "publicKey": {"rawBytes": b64(pem_of(public)), "keyDetails": "PKIX_ECDSA_P384_SHA_384"}
        }
    return {"publicKey": {"hint": signers.hint_of(public)}}


def by_chain(chain: tuple[x509.Certificate, ...]) -> dict[str, Any]:
    raw = [{"rawBytes": b64(one.public_bytes(Encoding.DER))} for one in chain]
    return {"x509CertificateChain": {"certificates": raw}}


MISSING: Final = object()


def bundled(
    maker: Maker,
    said: Statement,
    material: dict[str, Any],
    *,
    keyid: object = "",
    signature: bytes | None = None,
) -> dict[str, Any]:
    """A bundle as the reference implementation writes it: indented text, spaces after commas."""
    payload = json.dumps(said, indent=2).encode()
    one = {"sig": b64(signature or signers.sign(maker.key, pae(IN_TOTO, payload)))}
    if keyid is not MISSING:
        one["keyid"] = keyid  # type: ignore[assignment]
    return {
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": material,
        "dsseEnvelope": {
            "payload": b64(payload),
            "payloadType": "application/vnd.in-toto+json",
            "signatures": [one],
        },
    }


def release_0_2(maker: Maker) -> dict[str, Any]:
    """Files as subjects, and a signature over the payload spelled as Python text."""
    said = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {
                "name": name,
                "digest": {"sha256": hashlib.sha256(SIMPLE[name]).hexdigest()},
                "annotations": {"actual_hash_algorithm": "file-sha256"},
            }
            for name in SIGNED
        ],
        "predicateType": "https://model_signing/Digests/v0.1",
        "predicate": {"unused": "Unused, just passed due to API requirements"},
    }
    payload = json.dumps(said, indent=2).encode()
    spelled = f"DSSEV1 {len(IN_TOTO)} {IN_TOTO} {len(payload)} {payload!r}".encode()
    signature = maker.key.sign(spelled, ec.ECDSA(hashes.SHA256()))
    return bundled(maker, said, by_chain(maker.chain), keyid=None, signature=signature)


def by_python(said: Statement = SAID) -> Callable[[Maker], object]:
    """As release 1.1 of the reference implementation writes it."""
    return lambda maker: bundled(maker, said, {**by_key(maker), "tlogEntries": []})


def by_go(maker: Maker) -> object:
    ignored = ("test/models/simple/ignore-me", "bundle.sig", *GIT, ".gitmodules")
    said = stated({name: SIMPLE[name] for name in SIGNED}, ignored=ignored)
    return bundled(maker, said, by_key(maker), keyid=MISSING)


def by_python_chain(maker: Maker) -> object:
    return bundled(maker, SAID, {**by_chain(maker.chain), "tlogEntries": []})


def before_1_1(files: Files, *, chain: bool = False) -> Callable[[Maker], object]:
    """As releases 0.3.1 to 1.0.1 wrote it."""

    def make(maker: Maker) -> object:
        material = by_chain(maker.chain) if chain else by_key(maker, old=True)
        return bundled(maker, stated(files, ignored=None), material, keyid=None)

    return make


def keyless(ignored: tuple[str, ...] | None) -> Callable[[Maker], object]:
    def make(maker: Maker) -> object:
        said = stated({name: SIMPLE[name] for name in SIGNED}, ignored=ignored)
        return maker.instance.sign(json.dumps(said, indent=2).encode())

    return make


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Maker], object]:
    def make(maker: Maker) -> object:
        document = json.loads(json.dumps(by_python()(maker)))
        change(document)
        return document

    return make


@dataclass(frozen=True)
class Given:
    """A case of ``verify``."""

    make: Callable[[Maker], object]
    """The bundle: a document, or its bytes."""
    files: Files = field(default_factory=lambda: SIMPLE)
    trust: str = "key"
    ignored: tuple[str, ...] = ("ignore-me",)
    ignore_unsigned: bool = False
    single: bool = False
    """The model is its first file."""
    refused: str = ""


ONE: Final = {"signme-1": SIMPLE["signme-1"]}
TWO: Final = {name: SIMPLE[name] for name in SIGNED}
IGNORING: Final = ("ignore-me", *GIT, "model.sig")
BAD: Final = "ST-OMSB-101"


def historical() -> dict[str, Given]:
    found = {
        "historical-v0.2.0-certificate": Given(release_0_2, files=TWO, trust="roots", ignored=()),
        "historical-v1.1.0-certificate": Given(
            lambda maker: bundled(
                maker, stated(TWO, ignored=IGNORING), {**by_chain(maker.chain), "tlogEntries": []}
            ),
            trust="roots",
        ),
        "historical-v1.1.0-elliptic-key": Given(by_python(stated(TWO, ignored=IGNORING))),
        "historical-v1.1.0-sigstore": Given(keyless(IGNORING), trust="identity"),
    }
    for release in ("v0.3.1", "v1.0.0", "v1.0.1"):
        whole = release == "v1.0.1"
        files = SIMPLE if whole else TWO
        ignored = ("ignore-me",) if whole else ()
        case = partial(Given, files=files, ignored=ignored)
        found |= {
            f"historical-{release}-certificate": case(before_1_1(TWO, chain=True), trust="roots"),
            f"historical-{release}-sigstore": case(keyless(None), trust="identity"),
            f"historical-{release}-elliptic-key": case(before_1_1(TWO))
            if whole
            else Given(before_1_1({".": ONE["signme-1"]}), files=ONE, ignored=(), single=True),
        }
    return found


def remove(*path: str) -> Callable[[dict[str, Any]], object]:
    def change(document: dict[str, Any]) -> None:
        for name in path[:-1]:
            document = document[name]
        del document[path[-1]]

    return change


def put(value: object, *path: str) -> Callable[[dict[str, Any]], object]:
    def change(document: dict[str, Any]) -> None:
        for name in path[:-1]:
            document = document[name]
        document[path[-1]] = value

    return change


def no_resources(said: Statement) -> None:
    said["predicate"]["resources"] = []
    said["subject"][0]["digest"]["sha256"] = hashlib.sha256(b"").hexdigest()


POSITIVE: Final[dict[str, Given]] = {
    "certificate-simple": Given(by_python_chain, trust="roots"),
    "certificate-simple-go": Given(
        lambda maker: bundled(maker, SAID, by_chain(maker.chain), keyid=MISSING), trust="roots"
    ),
    "key-multi-file": Given(by_python(stated(NESTED)), files=NESTED, ignored=()),
    "key-simple": Given(by_python()),
    "key-simple-go": Given(by_go),
    "key-simple-ignore-unsigned-files": Given(
        by_python(), files={**SIMPLE, "extra.bin": b"more"}, ignore_unsigned=True
    ),
    "key-single-file": Given(
        by_python(stated({"model.bin": b"m"})), files={"model.bin": b"m"}, ignored=()
    ),
}


def bad(make: Callable[[Maker], object], code: str = BAD, **more: Any) -> Given:
    return Given(make, refused=code, **more)


def saying(change: Callable[[Statement], object]) -> Callable[[Maker], object]:
    return by_python(changed(change))


def by_expired(maker: Maker) -> object:
    return bundled(maker, SAID, by_chain(maker.expired))


INJECTED: Final = {**SIMPLE, "injected.bin": b"x"}
TAMPERED: Final = {**SIMPLE, "signme-1": b"TAMPERED"}
NEGATIVE: Final[dict[str, Given]] = {
    "certificate-expired_fail": bad(by_expired, "ST-OMSB-150", trust="roots"),
    "certificate-simple-wrong-ca_fail": bad(by_python_chain, "ST-OMSB-120", trust="wrong roots"),
    "key-simple-corrupted-bundle_fail": bad(lambda _: b"{ this is not JSON"),
    "key-simple-extra-file_fail": bad(by_python(), "ST-OMSB-141", files=INJECTED),
    "key-simple-missing-file_fail": bad(by_python(), "ST-OMSB-140", files=ONE),
    "key-simple-no-signature_fail": bad(edited(put([], "dsseEnvelope", "signatures"))),
    "key-simple-tampered-content_fail": bad(by_python(), "ST-OMSB-130", files=TAMPERED),
    "key-simple-truncated-bundle_fail": bad(lambda _: {"mediaType": BUNDLE_TYPE}),
    "key-simple-wrong-key_fail": bad(by_python(), "ST-OMSB-120", trust="wrong key"),
    "key-simple-wrong-mediatype_fail": bad(edited(put("application/json", "mediaType"))),
    "key-verify-as-certificate_fail": bad(by_python(), "ST-OMSB-120", trust="roots"),
    "malformed-empty-bundle_fail": bad(lambda _: b""),
    "malformed-empty-resources_fail": bad(saying(no_resources)),
    "malformed-missing-envelope_fail": bad(edited(remove("dsseEnvelope"))),
    "malformed-no-predicate_fail": bad(saying(remove("predicate"))),
    "malformed-no-subject_fail": bad(saying(put([], "subject"))),
    "malformed-wrong-payload-type_fail": bad(
        edited(put("text/plain", "dsseEnvelope", "payloadType"))
    ),
    "malformed-wrong-predicate_fail": bad(saying(put("https://example.org/v1", "predicateType"))),
    "malformed-wrong-statement-type_fail": bad(
        saying(put("https://in-toto.io/Statement/v0.1", "_type"))
    ),
    "sigstore-tampered-content_fail": bad(
        keyless(IGNORING), "ST-OMSB-130", files=TAMPERED, trust="identity"
    ),
    "sigstore-verify-as-key_fail": bad(keyless(IGNORING), "ST-OMSB-120"),
    "sigstore-wrong-identity_fail": bad(keyless(IGNORING), "ST-OMSB-120", trust="wrong identity"),
    "sigstore-wrong-issuer_fail": bad(keyless(IGNORING), "ST-OMSB-120", trust="wrong issuer"),
}

CASES: Final = {**POSITIVE, **NEGATIVE, **historical()}


def trust_of(name: str, maker: Maker, folder: Path) -> ModelTrust:
    match name:
        case "key":
            return maker.trusted
        case "wrong key":
            return TrustedKey(key=maker.other.public_key())
        case "roots":
            return maker.roots
        case "wrong roots":
            return TrustedRoots(roots=(maker.wrong_root,))
    pytest.importorskip("sigstore", reason="keyless bundles need the package sigstore")
    root = folder / "trusted_root.json"
    root.write_bytes(maker.instance.trusted_root())
    policy = KeylessPolicy(
        identity=SPIFFE + "x" * (name == "wrong identity"),
        issuer=ISSUER + "/" * (name == "wrong issuer"),
    )
    return TrustedIdentity(policy=policy, trusted_root=root)


def codes(result: Report) -> set[str]:
    return {problem.code for problem in result.problems}


@pytest.mark.parametrize("name", CASES)
def test_given(name: str, maker: Maker, tmp_path: Path) -> None:
    case = CASES[name]
    trust = trust_of(case.trust, maker, tmp_path)
    folder = lay(tmp_path / "model", case.files)
    model = folder / next(iter(case.files)) if case.single else folder
    bundle = tmp_path / "bundle.sig"
    made = case.make(maker)
    bundle.write_bytes(made if isinstance(made, bytes) else json.dumps(made).encode())
    scope = Scope(
        ignore_paths=tuple(folder / path for path in case.ignored),
        ignore_unsigned=case.ignore_unsigned,
    )
    result = verify_model(model, bundle, trust, NOW, scope=scope)
    assert codes(result) == ({case.refused} if case.refused else set())
    assert result.ok == (not case.refused)
    if case.ignore_unsigned:
        assert list(result.bundled.unsigned) == ["extra.bin"]


def test_every_offline_case_is_here() -> None:
    assert (len(ROUNDS), len(POSITIVE), len(NEGATIVE), len(historical())) == (23, 7, 23, 13)
    assert len(ROUNDS) + len(CASES) == 66


# The vectors of the specification.


def no_log(document: dict[str, Any]) -> None:
    document["verificationMaterial"]["tlogEntries"] = []


def test_the_vectors_that_are_valid(maker: Maker) -> None:
    for make in (by_go, by_python_chain, keyless(IGNORING)):
        read = bundle_file.parse(json.dumps(make(maker)).encode(), "")
        assert [one.name for one in manifest.read(read.payload, "").resources] == list(SIGNED)


@items(
    "make, change",
    (by_python(), lambda document: document.clear()),
    (by_python(), remove("dsseEnvelope")),
    (by_python(), remove("verificationMaterial")),
    (keyless(IGNORING), remove("verificationMaterial", "tlogEntries")),
    (keyless(IGNORING), no_log),
)
def test_the_vectors_that_are_invalid(make, change, maker):
    document = json.loads(json.dumps(make(maker)))
    change(document)
    vocabulary.refused(IntegrityError, BAD, bundle_file.parse, json.dumps(document).encode(), "")


def test_the_vector_whose_payload_is_invalid() -> None:
    said = changed(put("https://example.org/v1", "predicateType"))
    vocabulary.refused(IntegrityError, BAD, manifest.read, json.dumps(said).encode(), "")


# What the older releases' spellings must not let through.


def of_two(folder: Path, document: Any) -> tuple[Path, Path]:
    """A model of two files, and the bundle beside it."""
    (folder / "bundle.sig").write_text(json.dumps(document))
    return lay(folder / "model", TWO), folder / "bundle.sig"


def test_a_bundle_of_an_older_release_that_holds_another_key(maker: Maker, tmp_path: Path) -> None:
    document: Any = before_1_1(TWO)(maker)
    other = b64(pem_of(maker.other.public_key()))
    document["verificationMaterial"]["publicKey"]["rawBytes"] = other
    model, bundle = of_two(tmp_path, document)
    assert codes(verify_model(model, bundle, maker.trusted, NOW)) == {"ST-OMSB-120"}


def test_the_statement_of_release_0_2_needs_its_signature(maker: Maker, tmp_path: Path) -> None:
    """Signed as today, it is not a statement of today."""
    said = json.loads(base64.b64decode(release_0_2(maker)["dsseEnvelope"]["payload"]))
    model, bundle = of_two(tmp_path, bundled(maker, said, by_key(maker)))
    assert codes(verify_model(model, bundle, maker.trusted, NOW)) == {BAD}


def test_what_release_0_2_signed_is_noted(maker: Maker, tmp_path: Path) -> None:
    model, bundle = of_two(tmp_path, release_0_2(maker))
    result = verify_model(model, bundle, maker.roots, NOW)
    assert result.ok
    assert "0.2" in result.bundled.notes[0]
    digest = hashlib.sha256(SIMPLE["signme-1"]).hexdigest()
    for expect in (Expectation(name="signme-1"), Expectation(digest=digest)):
        assert codes(verify_model(model, bundle, maker.roots, NOW, expect=expect)) == {
            "ST-OMSB-127"
        }
    (model / "signme-2").write_text("changed")
    assert codes(verify_model(model, bundle, maker.roots, NOW)) == {"ST-OMSB-130"}

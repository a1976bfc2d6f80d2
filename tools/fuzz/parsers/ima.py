# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The parsers of measurement lists and runtime policies, with valid inputs to start from."""

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable
from functools import partial
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from securetrain.core.errors import AttestationError
from securetrain.evidence.node_evidence import ImaList, ImaParts
from securetrain.evidence.tpm.ima import ImaState, TemplateCache, appraise_ima
from securetrain.evidence.tpm.ima_keys import ImaKey, read_signers
from securetrain.evidence.tpm.ima_parts import Segment, appraise_parts
from securetrain.evidence.tpm.ima_violations import Violations
from securetrain.evidence.tpm.path_patterns import PathPatterns
from securetrain.evidence.tpm.runtime_policy import (
    PAYLOAD_TYPE,
    ImaReference,
    RuntimePolicies,
    parse_runtime_policy,
)
from securetrain.identity import dsse
from securetrain.identity.keys import PrivateKey
from securetrain.testing.measurement_lists import (
    Measurement,
    aggregate,
    ima_list,
    measured_buffer,
    measured_file,
    replayed,
)
from securetrain.testing.signed_files import Maker
from tools.fuzz.engine import Parser

_PEM = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
_BOOT = hashlib.sha256(b"boot").digest()
_PIECE = 400
_TEMPLATES = ("ima-ng", "ima-sig", "ima-ngv2", "ima-sigv2")
_LEGACY = Measurement(name=b"/bin/old", digest=b"sha1:\0" + bytes(20), template=b"ima")
_VIOLATION = Measurement(name=b"/var/x", digest=b"sha256:\0" + bytes(32), violation=True)
_LIST = [
    aggregate(_BOOT),
    *(measured_file(f"/bin/{template}", template=template) for template in _TEMPLATES),
    measured_buffer(".ima", b"certificate"),
    _VIOLATION,
    _LEGACY,
]
_MAKER = Maker(ec.generate_private_key(ec.SECP256R1()), "maker")
_SIGNERS = read_signers([ImaKey(key=_MAKER.pem)])
_SPKI = _MAKER.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
_KEYS = json.dumps({"pubkeys": [b64encode(_SPKI).decode()], "keyids": [1]}).encode()
_POLICY = json.dumps(
    {
        "meta": {"version": 1, "generator": 3, "timestamp": "2024-10-09"},
        "release": 0,
        "digests": {
            "/bin/ima-ng": [hashlib.sha256(b"/bin/ima-ng").hexdigest()],
            "/bin/other": ["sha512:" + "ab" * 64, "cd" * 20],
        },
        "excludes": ["/bin/.*", "/var(/.*)?"],
        "keyrings": {".ima": [hashlib.sha256(b"certificate").hexdigest()]},
        "ima": {"ignored_keyrings": ["_evm"], "log_hash_alg": "sha1", "dm_policy": None},
        "ima-buf": {},
        "verification-keys": "",
    }
).encode()


def ima() -> list[Parser]:
    """All of them."""
    return [
        *(
            Parser(name, partial(_lists, binary=binary), _appraise(binary=binary))
            for name, binary in (("ima-binary", True), ("ima-ascii", False))
        ),
        Parser("ima-parts", partial(_lists, binary=True), _in_parts),
        Parser("runtime-policy", lambda: [_POLICY], parse_runtime_policy),
        _envelope(),
        Parser("ima-signature", _signatures, _verify),
        Parser("ima-keyring-key", lambda: [_MAKER.loaded().extra], _load),
        Parser("ima-verification-keys", lambda: [_KEYS], lambda d: read_signers([], _text(d))),
        Parser("path-patterns", _patterns, _match),
    ]


def _lists(*, binary: bool) -> list[bytes]:
    later = [*_LIST, measured_file("/bin/later")]
    return [ima_list(one, binary=binary).entries for one in (_LIST, later)]


def _appraise(*, binary: bool) -> Callable[[bytes], object]:
    policy = parse_runtime_policy(_POLICY, allow_sha1=True)
    cache = TemplateCache(limit=1 << 20)

    def parse(data: bytes) -> None:
        for judged in (policy, None):
            appraise_ima(
                ImaList(binary=binary, first=0, entries=data),
                pcr10=replayed(_LIST),
                boot_aggregate=_BOOT,
                policy=judged,
                start=None,
                violations=Violations(allow=True),
                cache=cache,
            )

    return parse


class _Pieces(ImaParts, frozen=True, kw_only=True):
    """A list in parts that are small, so that entries lie across them."""

    @property
    def count(self) -> int:
        return -(-self.size // _PIECE)

    def length(self, index: int) -> int:
        return min(_PIECE, self.size - index * _PIECE)


def _in_parts(data: bytes) -> None:
    """A list in parts is accepted if and only if it is as a whole, and proves the same."""
    pieces = [data[start : start + _PIECE] for start in range(0, len(data), _PIECE)]
    digests = b"".join(hashlib.sha256(piece).digest() for piece in pieces)
    shared: dict[str, Any] = {
        "pcr10": replayed(_LIST),
        "boot_aggregate": _BOOT,
        "policy": None,
        "violations": Violations(allow=True),
        "cache": TemplateCache(limit=0),
    }
    announced = _Pieces(first=0, size=len(data), digests=digests)
    found = _outcome(
        lambda: appraise_parts(announced, lambda n, _: pieces[n], segment=Segment(), **shared)
    )
    whole = ImaList(binary=True, first=0, entries=data)
    assert _outcome(lambda: appraise_ima(whole, start=None, **shared)) == found


def _outcome(judge: Callable[[], ImaState]) -> ImaState | None:
    try:
        return judge()
    except AttestationError:
        return None


def _envelope() -> Parser:
    key = PrivateKey.generate()
    signers = (key.public.native.public_bytes(*_PEM).decode(),)

    def parse(data: bytes) -> object:
        name = hashlib.sha256(data).hexdigest()
        reference = ImaReference(policy_sha256=name, signed_by=signers)
        return RuntimePolicies().get(reference, {name: data})

    return Parser(
        "runtime-policy-envelope", lambda: [dsse.sign(_POLICY, PAYLOAD_TYPE, [key])], parse
    )


def _signatures() -> list[bytes]:
    return [
        _MAKER.file("/opt/tool", b"tool", algorithm, verity=verity).extra
        for algorithm in ("sha256", "sha512")
        for verity in (False, True)
    ]


def _verify(data: bytes) -> object:
    """Refused is not an error of the parser; accepted is only what the maker has signed."""
    digest = hashlib.sha256(b"tool").digest()
    problem = _SIGNERS.problem(b"/opt/tool", b"sha256:\0" + digest, data)
    if not problem and data not in _signatures():
        # ECDSA draws a new number for each signature, so this one is not the maker's.
        assert _SIGNERS.problem(b"/opt/tool", b"sha256:\0" + bytes(32), data)
    return problem


def _load(data: bytes) -> object:
    return _SIGNERS.holds(b".ima", data)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise AttestationError("ST-ATTS-326", str(error)) from error


def _patterns() -> list[bytes]:
    return [b"^/tmp(/.*)?$", b"/proc/[0-9]+/.*", b"/a?(b|c(d|e)?)/[^/]*\\.log", b"/\xc3\xa9\\w+"]


def _match(data: bytes) -> object:
    try:
        pattern = data.decode()
    except UnicodeDecodeError as error:
        raise AttestationError("ST-ATTS-323", str(error)) from error
    return PathPatterns([pattern]).matches(data)

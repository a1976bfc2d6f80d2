# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Our reading of TPM structures against libtss2's, through tpm2-pytss, on random structures.

libtss2 reads more than we do. What we refuse and it reads is judged by `stricter`, from libtss2's
own fields and by the rules in `structures`, so that the verdicts must be the same to the last one:
no structure may be read by us and not by libtss2, none read differently, and none refused without a
rule that says so.

tpm2-pytss lives in an environment of its own (`oracle_environment`).
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from securetrain.core.errors import AttestationError
from securetrain.evidence.tpm.constants import DEFINED, GENERATED, Algorithm, Curve, Hash
from securetrain.evidence.tpm.structures import (
    Attest,
    EccKey,
    PcrSelection,
    PublicArea,
    QuoteInfo,
    RsaKey,
    Scheme,
    Signature,
    encode_selections,
    number,
    parse_attest,
    parse_public,
    parse_selections,
    parse_signature,
    tpm2b,
)
from tests.evidence.tpm.encoders import encode_attest, encode_signature
from tests.evidence.tpm.oracle_environment import oracle_python
from tests.vocabulary import ran

HERE = Path(__file__).resolve()
STRUCTURES = 40_000
LOST = "NO STRUCTURE WAS COMPARED"


def ask(structures: list[tuple[str, bytes]]) -> list[dict[str, Any]]:
    """The oracle's answers."""
    lines = [json.dumps({"kind": kind, "data": data.hex()}) for kind, data in structures]
    done = ran(
        [str(oracle_python(LOST)), "-I", str(HERE.with_name("oracle.py"))], input="\n".join(lines)
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


# What we read, as the oracle says it.


def scheme_fields(scheme: Scheme | None) -> list[int]:
    if scheme is None:
        return [Algorithm.NULL]
    return [scheme.algorithm] + ([scheme.hash] if scheme.hash else [])


def public_fields(data: bytes) -> tuple[Any, bytes]:
    area: PublicArea = parse_public(data)
    symmetric = area.symmetric
    fields = {
        "nameAlg": area.name_alg,
        "objectAttributes": int(area.attributes),
        "authPolicy": area.auth_policy.hex(),
        "symmetric": [Algorithm.AES, symmetric.bits, symmetric.mode]
        if symmetric
        else [Algorithm.NULL],
        "scheme": scheme_fields(area.scheme),
    }
    match area.unique:
        case RsaKey(bits=bits, exponent=exponent, modulus=modulus):
            fields |= {"type": Algorithm.RSA, "keyBits": bits, "exponent": exponent}
            fields["modulus"] = modulus.hex()
        case EccKey(curve=curve, kdf=kdf, x=x, y=y):
            fields |= {"type": Algorithm.ECC, "curveID": curve, "kdf": scheme_fields(kdf)}
            fields |= {"x": x.hex(), "y": y.hex()}
    return fields, area.tpm2b


def selection_fields(selections: tuple[PcrSelection, ...]) -> list[list[Any]]:
    return [
        [one.bank, one.size, sum(1 << pcr for pcr in one.pcrs).to_bytes(one.size, "little").hex()]
        for one in selections
    ]


def attest_fields(data: bytes) -> tuple[Any, bytes]:
    attest: Attest = parse_attest(data)
    fields = {
        "magic": GENERATED,
        "qualifiedSigner": attest.qualified_signer.hex(),
        "extraData": attest.extra_data.hex(),
        "clock": attest.clock.clock,
        "resetCount": attest.clock.reset_count,
        "restartCount": attest.clock.restart_count,
        "safe": int(attest.clock.safe),
        "firmwareVersion": attest.firmware,
    }
    if isinstance(attest.attested, QuoteInfo):
        fields |= {"type": 0x8018, "pcrSelect": selection_fields(attest.attested.selections)}
        fields["pcrDigest"] = attest.attested.digest.hex()
    else:
        fields |= {"type": 0x8017, "name": attest.attested.name.hex()}
        fields["qualifiedName"] = attest.attested.qualified_name.hex()
    return fields, encode_attest(attest)


def signature_fields(data: bytes) -> tuple[Any, bytes]:
    signature: Signature = parse_signature(data)
    algorithm, digest = scheme_fields(signature.scheme)
    parts = [part.hex() for part in signature.parts]
    return {"sigAlg": algorithm, "hash": digest, "parts": parts}, encode_signature(signature)


def list_fields(data: bytes) -> tuple[Any, bytes]:
    selections = parse_selections(data)
    return selection_fields(selections), encode_selections(selections)


OURS = {
    "public": public_fields,
    "attest": attest_fields,
    "signature": signature_fields,
    "selections": list_fields,
}


def read(kind: str, data: bytes) -> tuple[Any, bytes] | None:
    """Fields and the structure written again; None when it is refused."""
    try:
        return OURS[kind](data)
    except AttestationError:
        return None


# What we refuse though libtss2 reads it.

HASHES = {int(one) for one in Hash}
NULL = [int(Algorithm.NULL)]
MODES = range(0x40, 0x45)
RSA_SCHEMES = {Algorithm.RSASSA, Algorithm.RSAPSS, Algorithm.OAEP}
ECC_SCHEMES = {Algorithm.ECDSA, Algorithm.ECDH}
KDFS = {0x20, 0x22}


def hashed(scheme: list[int], allowed: set[Any]) -> bool:
    """Whether a scheme is none, or one of those with one of our hashes."""
    return scheme == NULL or (scheme[0] in allowed and scheme[1] in HASHES)


def stricter_public(fields: dict[str, Any]) -> str | None:
    if fields["type"] not in {Algorithm.RSA, Algorithm.ECC}:
        return "type"
    if fields["nameAlg"] not in HASHES - {Hash.SHA1}:
        return "nameAlg"
    if fields["objectAttributes"] & ~DEFINED:
        return "reserved attributes"
    symmetric = fields["symmetric"]
    if symmetric != NULL and not (
        symmetric[0] == Algorithm.AES and symmetric[1] in {128, 192, 256} and symmetric[2] in MODES
    ):
        return "symmetric"
    return stricter_rsa(fields) if fields["type"] == Algorithm.RSA else stricter_ecc(fields)


def stricter_rsa(fields: dict[str, Any]) -> str | None:
    if fields["scheme"] != [Algorithm.RSAES] and not hashed(fields["scheme"], RSA_SCHEMES):
        return "scheme"
    if fields["keyBits"] not in {2048, 3072, 4096} or fields["exponent"] not in {0, 65537}:
        return "size or exponent"
    return None


def stricter_ecc(fields: dict[str, Any]) -> str | None:
    if not hashed(fields["scheme"], ECC_SCHEMES):
        return "scheme"
    if fields["curveID"] not in {3, 4, 5}:
        return "curve"
    if not hashed(fields["kdf"], KDFS):
        return "kdf"
    size = Curve(fields["curveID"]).size * 2
    return "coordinate" if max(len(fields["x"]), len(fields["y"])) > size else None


def stricter_list(fields: list[list[Any]]) -> str | None:
    return "bank" if {one[0] for one in fields} - HASHES else None


def stricter_attest(fields: dict[str, Any]) -> str | None:
    if fields["magic"] != GENERATED:
        return "magic"
    if fields["type"] not in {0x8017, 0x8018}:
        return "type"
    if fields["safe"] > 1:
        return "safe"
    # No Name is longer than its algorithm and a SHA-512 digest; libtss2 has room for two more.
    names = [fields.get(name, "") for name in ("qualifiedSigner", "name", "qualifiedName")]
    if max(map(len, names)) > 2 * 66:
        return "name"
    return stricter_list(fields.get("pcrSelect", []))


def stricter_signature(fields: dict[str, Any]) -> str | None:
    if "parts" not in fields:
        return "sigAlg"
    if fields["hash"] not in HASHES:
        return "hash"
    limit = 66 if fields["sigAlg"] == Algorithm.ECDSA else 512
    return "length" if max(map(len, fields["parts"])) > 2 * limit else None


STRICTER: dict[str, Callable[[Any], str | None]] = {
    "public": stricter_public,
    "attest": stricter_attest,
    "signature": stricter_signature,
    "selections": stricter_list,
}


def refusal(kind: str, data: bytes, theirs: dict[str, Any]) -> str | None:
    """Why we must refuse a structure, by the oracle's answer."""
    if not theirs["read"]:
        return "not read"
    if theirs["again"] != data.hex():
        return "other bytes"  # libtss2 does not look at the length of a TPM2B_PUBLIC
    return STRICTER[kind](theirs["fields"])


# Random structures: mostly well-formed, of what we support and what we do not, and damaged ones.

LENGTHS = (0, 1, 20, 32, 32, 48, 64, 65, 66, 67, 68, 69, 128, 129, 512, 513)


class Source:
    """Random parts of structures."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.one = self.random.choice

    def mostly(self, supported: Sequence[int], other: Sequence[int]) -> int:
        """A number that we support, or now and then another one."""
        return self.one(supported if self.random.random() < 0.95 else other)

    def integer(self, size: int) -> bytes:
        return self.random.randbytes(size)

    def buffer(self, *lengths: int) -> bytes:
        """A sized buffer, mostly of one of these lengths."""
        return tpm2b(self.random.randbytes(self.mostly(lengths, LENGTHS)))

    def hash(self) -> bytes:
        return number(self.mostly((0x0B, 0x0C, 0x0D), (0x04, 0x12, 0x27, 0x10)), 2)

    def scheme(self, supported: Sequence[int], other: Sequence[int]) -> bytes:
        algorithm = self.mostly(supported, other)
        if algorithm in {0x10, 0x15}:
            return number(algorithm, 2)
        count = number(1, 2) if algorithm == 0x1A else b""
        return number(algorithm, 2) + self.hash() + count

    def symmetric(self) -> bytes:
        kind = self.mostly((0x10, 6), (0x13, 0x26, 0x0A))
        if kind in {0x10, 0x0A}:
            return number(kind, 2)
        bits = self.mostly((128, 192, 256), (64, 512))
        mode = self.mostly(MODES, (0x3F, 0x45, 0x10))
        return number(kind, 2) + number(bits, 2) + number(mode, 2)

    def attributes(self) -> bytes:
        if self.random.random() < 0.05:
            return self.integer(4)
        flags = [bit for bit in range(32) if DEFINED >> bit & 1]
        return number(sum(1 << bit for bit in self.random.sample(flags, 6)), 4)

    def public(self) -> bytes:
        kind = self.mostly((0x01, 0x23), (0x08, 0x25))
        head = number(kind, 2) + self.hash() + self.attributes() + self.buffer(0, 32, 48, 64)
        if kind == 0x01:
            body = self.symmetric() + self.scheme((0x10, 0x14, 0x15, 0x16, 0x17), (0x18,))
            body += number(self.mostly((2048, 3072, 4096), (1024, 2047)), 2)
            body += number(self.mostly((0, 65537), (3,)), 4) + self.buffer(0, 256, 384, 512)
        elif kind == 0x23:
            body = self.symmetric() + self.scheme((0x10, 0x18, 0x19), (0x14, 0x1A, 0x1B, 0x1C))
            body += number(self.mostly((3, 4, 5), (1, 0x10, 0x20)), 2)
            body += self.scheme((0x10, 0x20, 0x22), (0x07, 0x21))
            body += self.buffer(0, 32) + self.buffer(0, 32, 48)
        elif kind == 0x08:
            body = self.one((number(0x10, 2), number(5, 2) + self.hash())) + self.buffer(32)
        else:
            body = self.symmetric() + self.buffer(32)
        return tpm2b(head + body)

    def selections(self) -> bytes:
        count = self.mostly((0, 1, 2, 3), (15, 16, 17))
        sizes = [self.mostly((3,), (0, 1, 2, 4, 5)) for _ in range(count)]
        items = [self.hash() + number(size, 1) + self.integer(size) for size in sizes]
        return number(count, 4) + b"".join(items)

    def attest(self) -> bytes:
        tag = self.mostly((0x8018, 0x8017), (0x8019, 0x801A, 0x8016))
        magic = number(GENERATED, 4) if self.random.random() < 0.95 else self.integer(4)
        head = magic + number(tag, 2) + self.buffer(34, 50, 66) + self.buffer(0, 32, 64)
        clock = self.integer(16) + number(self.mostly((0, 1), (2, 255)), 1) + self.integer(8)
        if tag == 0x8018:
            body = self.selections() + self.buffer(20, 32, 64)
        elif tag == 0x8019:
            body = self.integer(8) + clock[:17] + self.integer(8)
        else:
            body = self.buffer(34, 50) + self.buffer(34, 50)
        return head + clock + body

    def signature(self) -> bytes:
        kind = self.mostly((0x14, 0x16, 0x18), (0x1A, 0x1B, 0x1C, 0x05, 0x10))
        if kind == 0x10:
            return number(kind, 2)
        head = number(kind, 2) + self.hash()
        if kind == 0x05:
            return head + self.integer(32)
        if kind in {0x14, 0x16}:
            return head + self.buffer(256, 384, 512)
        return head + self.buffer(32, 48, 66) + self.buffer(32, 48, 66)

    def damaged(self, data: bytes) -> bytes:
        """A copy with a byte changed, cut off, or added."""
        at = self.random.randrange(len(data))
        match self.random.randrange(4):
            case 0:
                return (
                    data[:at] + bytes([data[at] ^ 1 << self.random.randrange(8)]) + data[at + 1 :]
                )
            case 1:
                return data[:at]
            case 2:
                return data + self.integer(self.one((1, 2, 40)))
            case _:
                return data[:at] + self.integer(self.one((1, 2, 4))) + data[at:]


def random_structures(seed: int) -> Iterator[tuple[str, bytes]]:
    source = Source(seed)
    makers = {kind: getattr(source, kind) for kind in OURS}
    for index in range(STRUCTURES):
        kind = list(OURS)[index % len(OURS)]
        data = makers[kind]()
        yield kind, source.damaged(data) if source.random.random() < 0.4 else data


@pytest.mark.slow
@pytest.mark.tpm
def test_the_same_verdict_as_libtss2():
    structures = list(random_structures(seed=20260601))
    answers = ask(structures)
    assert len(answers) == STRUCTURES
    outcomes: Counter[tuple[str, str]] = Counter()
    for (kind, data), theirs in zip(structures, answers, strict=True):
        rule = refusal(kind, data, theirs)
        ours = read(kind, data)
        assert (ours is None) == (rule is not None), (
            f"{kind} {data.hex()}: {ours}; {rule}; {theirs}"
        )
        if ours is not None:
            assert ours == (theirs["fields"], data), f"{kind} {data.hex()}"
        outcomes[kind, rule or "read"] += 1
    for kind in OURS:
        assert outcomes[kind, "read"] > 3000, f"too few {kind} were read: {outcomes}"
        assert outcomes[kind, "not read"] > 1000, f"too few {kind} were refused: {outcomes}"
    rules = {rule for _, rule in outcomes}
    assert rules >= {"magic", "type", "safe", "bank", "nameAlg", "curve", "scheme", "kdf"}, rules
    sys.stdout.write(f"{dict(sorted(outcomes.items()))}\n")

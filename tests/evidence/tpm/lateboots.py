# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Unified kernel images that never booted: both logs of them, byte by byte, wrong where asked."""

import base64
import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from securetrain.evidence.tpm.pcr_policy import policy_digest
from tests.evidence.tpm import bootlogs

PolicySigner: TypeAlias = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
LINE = "root=/dev/vda1 ro quiet"
MACHINE = "machine-id:" + "5e" * 16
ROOT = "file-system:/:ext4"
IMAGE = {
    ".linux": b"the kernel",
    ".osrel": b"ID=test\n",
    ".cmdline": b"root=/dev/vda1 ro\0",
    ".initrd": b"the initrd",
    ".uname": b"6.8.0",
    ".sbat": b"sbat,1\n",
    ".pcrpkey": b"a key",
}


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@dataclass(frozen=True)
class Said:
    """One record of systemd's log: the register, what was digested, what is written."""

    pcr: int
    content: bytes
    text: str = ""
    digest: bytes = b""

    def extends(self) -> bytes:
        return self.digest or sha256(self.content)

    def record(self) -> bytes:
        said = {"string": self.text, "bootId": "0" * 32, "timestamp": 7, "eventType": "phase"}
        digests = [{"hashAlg": "sha256", "digest": self.extends().hex()}]
        record = {"pcr": self.pcr, "digests": digests, "content_type": "systemd", "content": said}
        return b"\x1e" + json.dumps(record).encode() + b"\n"


def word(pcr: int, text: str) -> Said:
    return Said(pcr, text.encode(), text)


def volume_key(text: str = "cryptsetup:data:uuid") -> Said:
    return Said(15, b"", text, hashlib.sha256(b"a secret" + text.encode()).digest())


PHASES = [word(11, name) for name in ("enter-initrd", "leave-initrd", "sysinit", "ready")]


def sections(image: Mapping[str, bytes]) -> Iterator[bootlogs.Entry]:
    for name, content in image.items():
        yield bootlogs.event(11, bootlogs.IPL, name.encode() + b"\0")
        yield bootlogs.event(11, bootlogs.IPL, name.encode() + b"\0", content)


def line(text: str = LINE) -> bootlogs.Entry:
    return bootlogs.event(12, bootlogs.IPL, (text + "\0").encode("utf-16-le"))


def owner_keys(keys: bytes = b"a machine owner's key") -> bootlogs.Entry:
    return bootlogs.event(14, bootlogs.IPL, b"MokList\0", keys)


def addon(content: bytes = b"an add-on", register: int = 12) -> bootlogs.Entry:
    return bootlogs.event(register, bootlogs.IPL, b"addon\0", content)


@dataclass
class UkiBoot:
    """Events of PCR 11 to 15, of the firmware's log and of systemd's."""

    firmware: list[bootlogs.Entry] = field(
        default_factory=lambda: [*sections(IMAGE), line(), addon(), addon(b"x", 13), owner_keys()]
    )
    userspace: list[Said] = field(
        default_factory=lambda: [*PHASES, word(15, MACHINE), word(15, ROOT), volume_key()]
    )

    def changed(self, **lists: Any) -> "UkiBoot":
        return dataclasses.replace(self, **lists)

    def log(self) -> bytes:
        return bootlogs.encode(self.firmware)

    def userspace_log(self) -> bytes:
        return b"".join(one.record() for one in self.userspace)

    def pcrs(self, userspace: int | None = None) -> dict[int, bytes]:
        """What the registers hold, after so many of systemd's extensions."""
        values = bootlogs.registers(self.firmware)
        for one in self.userspace[:userspace]:
            values[one.pcr] = sha256(values[one.pcr] + one.extends())
        return {index: values[index] for index in range(16)}


def pem(key: Any) -> str:
    public: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return public.decode()


def sign_policy(key: PolicySigner, digest: bytes) -> bytes:
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(digest, padding.PKCS1v15(), hashes.SHA256())
    return key.sign(digest, ec.ECDSA(hashes.SHA256()))


def prediction(
    key: PolicySigner, values: Mapping[int, bytes], selected: Sequence[int] = (11,), **changes: Any
) -> dict[str, Any]:
    digest = policy_digest(values, selected)
    one = {
        "pcrs": list(selected),
        "pkfp": "00" * 32,
        "pol": digest.hex(),
        "sig": base64.b64encode(sign_policy(key, digest)).decode(),
    }
    return {**one, **changes}


def signed(*predictions: dict[str, Any], bank: str = "sha256") -> bytes:
    return json.dumps({bank: list(predictions)}).encode()

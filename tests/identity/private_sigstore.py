# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A Sigstore instance of our own: a CA, a certificate log, a transparency log of one entry, and a
timestamp authority. `sigstore_services` puts servers before it.

It makes bundles that a stock verifier accepts under its trusted root, so that nothing of the public
instance is needed to test with, and what it does wrong can be chosen.
"""

import base64
import hashlib
import json
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import rfc8785
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from securetrain.identity.dsse import pae
from securetrain.identity.log.merkle import leaf_hash
from tests.identity.worlds import Extension, certificate, custom, limits, usage

BEGINS = datetime(2026, 1, 1, tzinfo=UTC)
SIGNED = BEGINS + timedelta(days=100)
ISSUER = "https://attest.example"
VALID = (BEGINS, BEGINS + timedelta(days=3650))
SPIFFE = "spiffe://cluster.example/job/run-7/member/node-0"
KIND = "application/vnd.in-toto+json"
_OID = "1.3.6.1.4.1.57264.1"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def ecdsa(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


class HasPublic(Protocol):
    """A key, or what stands for one whose private half is elsewhere."""

    def public_key(self) -> ec.EllipticCurvePublicKey: ...


@dataclass
class Instance:
    """The instance's keys."""

    ca_key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    ct_key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    log_key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)
    stamp_key: ec.EllipticCurvePrivateKey = field(default_factory=new_key)

    def __post_init__(self) -> None:
        name, key = "private CA", self.ca_key.public_key()
        self.ca = certificate(name, name, key, self.ca_key, VALID, *_authority(key), serial=1)
        self.stampers = self._stampers()

    def _stampers(self) -> list[x509.Certificate]:
        """The timestamp authority's certificate, and the root above it."""
        name, above, key = "private TSA root", self.ca_key.public_key(), self.stamp_key.public_key()
        issued = (x509.AuthorityKeyIdentifier.from_issuer_public_key(above), False)
        stamping = (
            issued,
            limits(ca=False),
            (usage("digital_signature"), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.TIME_STAMPING]), True),
            (x509.SubjectKeyIdentifier.from_public_key(key), False),
        )
        root = (issued, *_authority(above))
        return [
            certificate("private TSA", name, key, self.ca_key, VALID, *stamping, serial=11),
            certificate(name, name, above, self.ca_key, VALID, *root, serial=10),
        ]

    def trusted_root(self) -> bytes:
        def log(key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
            return {
                "baseUrl": "https://log.example",
                "hashAlgorithm": "SHA2_256",
                "publicKey": {
                    "rawBytes": b64(spki(key)),
                    "keyDetails": "PKIX_ECDSA_P256_SHA_256",
                    "validFor": {"start": "2026-01-01T00:00:00Z"},
                },
                "logId": {"keyId": b64(hashlib.sha256(spki(key)).digest())},
            }

        authority = {
            "subject": {"organization": "private", "commonName": "private CA"},
            "uri": "https://ca.example",
            "certChain": {"certificates": [{"rawBytes": b64(_der(self.ca))}]},
            "validFor": {"start": "2026-01-01T00:00:00Z"},
        }
        document = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [log(self.log_key)],
            "certificateAuthorities": [authority],
            "ctlogs": [log(self.ct_key)],
            "timestampAuthorities": [
                {
                    "subject": {"organization": "private", "commonName": "private TSA"},
                    "uri": "https://tsa.example",
                    "certChain": {
                        "certificates": [{"rawBytes": b64(_der(one))} for one in self.stampers]
                    },
                    "validFor": {"start": "2026-01-01T00:00:00Z"},
                }
            ],
        }
        return json.dumps(document).encode()

    def stamp(self, request: bytes, at: datetime) -> bytes:
        """Answer a timestamp request (RFC 3161)."""
        from asn1crypto import algos, cms, core, tsp
        from asn1crypto import x509 as asn1_x509

        asked = tsp.TimeStampReq.load(request)
        info = tsp.TSTInfo(
            {
                "version": "v1",
                "policy": "1.2.3.4.1",
                "message_imprint": asked["message_imprint"],
                "serial_number": 7,
                "gen_time": at.replace(microsecond=0),
                "nonce": asked["nonce"],
            }
        )
        leaf = _der(self.stampers[0])
        content = info.dump()
        attributes = cms.CMSAttributes(
            [
                {"type": "content_type", "values": ["tst_info"]},
                {"type": "message_digest", "values": [hashlib.sha256(content).digest()]},
                {
                    "type": "signing_certificate_v2",
                    "values": [{"certs": [{"cert_hash": hashlib.sha256(leaf).digest()}]}],
                },
            ]
        )
        parsed = asn1_x509.Certificate.load(leaf)
        digest = algos.DigestAlgorithm({"algorithm": "sha256"})
        signer = cms.SignerInfo(
            {
                "version": "v1",
                "sid": cms.SignerIdentifier(
                    "issuer_and_serial_number",
                    {"issuer": parsed.issuer, "serial_number": parsed.serial_number},
                ),
                "digest_algorithm": digest,
                "signed_attrs": attributes,
                "signature_algorithm": {"algorithm": "sha256_ecdsa"},
                "signature": ecdsa(self.stamp_key, attributes.untag().dump()),
            }
        )
        signed = cms.SignedData(
            {
                "version": "v3",
                "digest_algorithms": [digest],
                "encap_content_info": {
                    "content_type": "tst_info",
                    "content": core.ParsableOctetString(content),
                },
                "certificates": [parsed],
                "signer_infos": [signer],
            }
        )
        answer: bytes = tsp.TimeStampResp(
            {
                "status": {"status": "granted"},
                "time_stamp_token": {"content_type": "signed_data", "content": signed},
            }
        ).dump()
        return answer

    def record(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request for an entry (Rekor's second API): the log holds nothing else."""
        asked = request["hashedRekordRequestV002"]
        spec = {
            "data": {"algorithm": "SHA2_256", "digest": asked["digest"]},
            "signature": asked["signature"],
        }
        body = rfc8785.dumps(
            {"apiVersion": "0.0.2", "kind": "hashedrekord", "spec": {"hashedRekordV002": spec}}
        )
        entry = self._entry(body)
        entry["kindVersion"] = {"kind": "hashedrekord", "version": "0.0.2"}
        del entry["inclusionPromise"], entry["integratedTime"]
        return entry

    def certificate(
        self,
        key: HasPublic,
        names: list[x509.GeneralName] | None = None,
        issuer: str = ISSUER,
        newer_issuer: str | None = None,
        at: datetime = SIGNED,
    ) -> x509.Certificate:
        """A leaf of ten minutes around a time, with the certificate log's promise in it."""
        newer = issuer if newer_issuer is None else newer_issuer
        around, public = timedelta(minutes=5), key.public_key()
        above, valid = self.ca_key.public_key(), (at - around, at + around)
        more = [
            (usage("digital_signature"), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), False),
            (x509.SubjectKeyIdentifier.from_public_key(public), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(above), False),
            (x509.SubjectAlternativeName(names or [x509.UniformResourceIdentifier(SPIFFE)]), True),
            (custom(f"{_OID}.1", issuer.encode()), False),
            (custom(f"{_OID}.8", b"\x0c%c" % len(newer) + newer.encode()), False),
        ]
        made = certificate("", self.ca.subject, public, self.ca_key, valid, *more, serial=2)
        promise = self._promise(made.tbs_certificate_bytes, at)
        length = bytes([len(promise)] if len(promise) < 128 else [0x81, len(promise)])
        more += [(custom("1.3.6.1.4.1.11129.2.4.2", b"\x04" + length + promise), False)]
        return certificate("", self.ca.subject, public, self.ca_key, valid, *more, serial=2)

    def _promise(self, tbs: bytes, at: datetime) -> bytes:
        """A list of one signed certificate timestamp (RFC 6962, section 3.2)."""
        time = int(at.timestamp() * 1000)
        issuer = hashlib.sha256(spki(self.ca_key)).digest()
        signed = struct.pack("!BBQH", 0, 0, time, 1) + issuer
        signed += len(tbs).to_bytes(3, "big") + tbs + b"\x00\x00"
        signature = ecdsa(self.ct_key, signed)
        head = b"\x00" + hashlib.sha256(spki(self.ct_key)).digest() + struct.pack("!QH", time, 0)
        sct = head + b"\x04\x03" + len(signature).to_bytes(2, "big") + signature
        item = len(sct).to_bytes(2, "big") + sct
        return len(item).to_bytes(2, "big") + item

    def sign(
        self,
        payload: bytes,
        kind: str = KIND,
        certificate: x509.Certificate | None = None,
        key: ec.EllipticCurvePrivateKey | None = None,
    ) -> dict[str, Any]:
        """A bundle around a DSSE envelope, as a dictionary that tests may bend."""
        key = key or new_key()
        certificate = certificate or self.certificate(key)
        signature = ecdsa(key, pae(kind, payload))
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        spec: Any = {
            "envelopeHash": {"algorithm": "sha256", "value": "00" * 32},
            "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()},
            "signatures": [{"signature": b64(signature), "verifier": b64(pem)}],
        }
        body = rfc8785.dumps({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec})
        envelope = {
            "payload": b64(payload),
            "payloadType": kind,
            "signatures": [{"sig": b64(signature)}],
        }
        return {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": b64(_der(certificate))},
                "tlogEntries": [self._entry(body)],
            },
            "dsseEnvelope": envelope,
        }

    def _entry(self, body: bytes) -> dict[str, Any]:
        """An entry of a log that holds nothing else."""
        key_id = hashlib.sha256(spki(self.log_key)).digest()
        time, root = int(SIGNED.timestamp()), leaf_hash(body)
        text = f"log.example\n1\n{b64(root)}\n"
        line = b64(key_id[:4] + ecdsa(self.log_key, text.encode()))
        promised: Any = {
            "body": b64(body),
            "integratedTime": time,
            "logID": key_id.hex(),
            "logIndex": 0,
        }
        return {
            "logIndex": "0",
            "logId": {"keyId": b64(key_id)},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(time),
            "inclusionPromise": {
                "signedEntryTimestamp": b64(ecdsa(self.log_key, rfc8785.dumps(promised)))
            },
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": b64(root),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": f"{text}\n\u2014 log.example {line}\n"},
            },
            "canonicalizedBody": b64(body),
        }


def _authority(public: ec.EllipticCurvePublicKey) -> tuple[Extension, ...]:
    return (
        limits(ca=True, path_length=0),
        (usage("key_cert_sign", "crl_sign"), True),
        (x509.SubjectKeyIdentifier.from_public_key(public), False),
    )


def _der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)

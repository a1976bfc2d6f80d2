# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The parsers of a TPM's keys, certificates and quotes, with valid inputs to start from."""

from securetrain.evidence.tpm import keys, profile, quote, structures
from securetrain.evidence.tpm.certificates import Endorsements, TpmReference
from securetrain.evidence.tpm.constants import Algorithm, Attributes, Hash
from tests.evidence.tpm import forge
from tools.fuzz.engine import Parser


def tpm() -> list[Parser]:
    """All of them."""
    node = forge.Tpm("H-3")
    attest, signature = node.quote()
    certification, _ = node.certify(node.ak.public)
    rsa = forge.make_key(forge.rsa_attestation_template(Algorithm.RSASSA))
    selections = [structures.PcrSelection(Hash.SHA256, forge.PCRS)] * 2

    def judge_key(data: bytes) -> None:
        public = structures.parse_public(data)
        if Attributes.SIGN in public.attributes:
            keys.check_attestation_key(public)
        else:
            keys.check_endorsement_key(public)

    return [
        Parser(
            "tpm-public",
            lambda: [rsa.public.tpm2b, *(key.tpm2b for key in (node.ek.public, node.ak.public))],
            judge_key,
        ),
        Parser("tpm-attest", lambda: [attest, certification], structures.parse_attest),
        Parser(
            "tpm-signature",
            lambda: [signature, node.ak.sign(attest)],
            lambda data: quote.verify_signature(node.ak.public, attest, data),
        ),
        Parser(
            "tpm-selections",
            lambda: [structures.encode_selections(selections)],
            structures.parse_selections,
        ),
        *_certificates(node),
    ]


def _certificates(node: forge.Tpm) -> list[Parser]:
    root = forge.Authority()
    issuer = forge.Authority("issuer", root)
    leaf = issuer.endorse(node.ek.public)
    other = issuer.endorse(node.ek.public, attributes=forge.SWTPM)
    judge = Endorsements(TpmReference(roots=(root.pem,))).check
    public = node.ek.public.tpm2b
    return [
        Parser(
            "ek-profile",
            lambda: [leaf, other],
            lambda data: profile.check_endorsement_profile(data, "certificate", rsa=False),
        ),
        Parser(
            "ek-certificate",
            lambda: [leaf, other],
            lambda data: judge(public, data, (issuer.der,), forge.NOW),
        ),
        Parser(
            "ek-chain",
            lambda: [issuer.der],
            lambda data: judge(public, leaf, (data,), forge.NOW),
            share=0.3,
        ),
    ]

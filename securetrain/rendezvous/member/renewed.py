# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Check the certificate that an admission renewed, before the node goes on with it."""

from datetime import datetime

from cryptography import x509

from securetrain.core.errors import AdmissionError, SecureTrainError
from securetrain.identity import Role, check_leaf, load_certificate, public_key_of
from securetrain.rendezvous.member.identity_dir import NodeIdentity


def check_renewed(pem: str, identity: NodeIdentity, now: datetime) -> x509.Certificate:
    """The node's side: a certificate that came with an admission.

    Raises:
        AdmissionError: ST-ADMN-006 when it is not this node's next one.
    """
    try:
        certificate = load_certificate(pem.encode(), "Admit.certificate")
        spiffe = check_leaf(certificate, identity.ca, Role.NODE, now)
        key = public_key_of(certificate)
    except SecureTrainError as error:
        raise _foreign(f"{error.code}: {error.what}") from error
    if spiffe != identity.spiffe or key.spki != identity.key.public.spki:
        raise _foreign(f"it is for {spiffe} and key {key.key_id[:16]}")
    if certificate.not_valid_after_utc < identity.certificate.not_valid_after_utc:
        raise _foreign("it ends sooner than the one before")
    return certificate


def _foreign(what: str) -> AdmissionError:
    return AdmissionError("ST-ADMN-006", what, "Admit.certificate")

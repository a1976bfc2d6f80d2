# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The order of the coordinators of one job: who is the later of two.

Rules:

1. every start of a coordinator is a generation of its own: one more than its ledger has starts. A
   statement says so, signed with the key of that process, with its certificate under the job CA;
2. generations are in order by number, then by key: two coordinators that were started over copies
   of one folder are never equal, and everybody finds the same one to be the later;
3. a member keeps the statement of the latest coordinator that it has seen, refuses every earlier
   one, and shows it in its Hello. A coordinator that is shown a later one has been superseded and
   stands down (ST-ADMN-041). A member can show what exists, and invents nothing;
4. that a statement's certificate has expired since does not matter: the generation was there.
"""

from dataclasses import dataclass
from typing import Final

from cryptography import x509

from securetrain.core import canonical
from securetrain.core.errors import AdmissionError, SecureTrainError
from securetrain.identity import Role, certificate_pem, check_leaf, public_key_of
from securetrain.identity.keys import PrivateKey
from securetrain.rendezvous.wire.protocol import GenerationStatement

_LABEL: Final = b"securetrain-coordinator-generation-v1\0"


@dataclass(frozen=True, slots=True)
class Generation:
    """One start of a coordinator, whose statement has been checked."""

    statement: GenerationStatement
    key_id: str

    @property
    def number(self) -> int:
        """The first generation is 1."""
        return self.statement.number

    def is_before(self, other: "Generation") -> bool:
        """Tell whether the other one is the later: rule 2."""
        return (self.number, self.key_id) < (other.number, other.key_id)


def sign_generation(
    job: str, number: int, certificate: x509.Certificate, key: PrivateKey
) -> Generation:
    """The generation of a coordinator that starts."""
    signature = key.sign(_signed(job, number, key.key_id))
    pem = certificate_pem(certificate).decode()
    said = GenerationStatement(number=number, certificate=pem, signature=signature)
    return Generation(said, key.key_id)


def check_generation(
    said: GenerationStatement, *, job: str, ca: x509.Certificate, where: str
) -> Generation:
    """Check a statement against the job CA.

    Raises:
        AdmissionError: ST-ADMN-006.
    """
    try:
        certificate = x509.load_pem_x509_certificate(said.certificate.encode())
        check_leaf(certificate, ca, Role.COORDINATOR, certificate.not_valid_before_utc)
        key = public_key_of(certificate)
        key.verify(said.signature, _signed(job, said.number, key.key_id))
    except SecureTrainError as error:
        raise _foreign(f"{error.code}: {error.what}", where) from error
    except ValueError as error:
        raise _foreign(f"its certificate cannot be read: {error}", where) from error
    return Generation(said, key.key_id)


def superseded(own: Generation, by: Generation, where: str) -> AdmissionError:
    """The refusal of a coordinator that is not the latest."""
    return AdmissionError(
        "ST-ADMN-041",
        f"coordinator {own.key_id[:16]} is of generation {own.number}; {by.key_id[:16]}, of"
        f" generation {by.number}, has taken the job over",
        where,
    )


def _signed(job: str, number: int, key_id: str) -> bytes:
    return _LABEL + canonical.encode([job, number, key_id])


def _foreign(what: str, where: str) -> AdmissionError:
    return AdmissionError("ST-ADMN-006", f"the generation of a coordinator: {what}", where)

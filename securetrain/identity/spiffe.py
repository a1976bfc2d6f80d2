# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""SPIFFE ids of a job's parties (https://github.com/spiffe/spiffe/blob/main/standards/SPIFFE-ID.md).

A node is ``spiffe://<domain>/job/<job>/node/<node>``, the coordinator
``spiffe://<domain>/job/<job>/coordinator``. A node that was admitted is also ``.../member/<node>``,
or ``.../unattested/<node>`` when it only spoke for itself: see `evidence.result`. A certificate
carries exactly one, as its only URI SAN.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from securetrain.core.errors import IdentityError

if TYPE_CHECKING:
    from cryptography import x509

_SEGMENT: Final = r"[a-zA-Z0-9._-]{1,64}"
_ID: Final = re.compile(
    rf"spiffe://(?P<domain>[a-z0-9._-]{{1,255}})/job/(?P<job>{_SEGMENT})"
    rf"/(?:(?P<coordinator>coordinator)|(?P<role>node|member|unattested)/(?P<node>{_SEGMENT}))"
)
SEGMENT: Final = re.compile(_SEGMENT)


class Role(StrEnum):
    """The use of a certificate; a node can never be a coordinator."""

    NODE = "node"
    COORDINATOR = "coordinator"
    MEMBER = "member"
    """An attested node, for the time of its lease."""
    UNATTESTED = "unattested"
    """A node that was let in on its own word, for the time of its lease."""


@dataclass(frozen=True, slots=True)
class SpiffeId:
    """One party of one job."""

    trust_domain: str
    job: str
    role: Role
    node: str = ""

    def __post_init__(self) -> None:
        if not _ID.fullmatch(str(self)):
            raise IdentityError("ST-IDEN-006", f"not a SPIFFE id of a job: {self}")

    def __str__(self) -> str:
        alone = self.role is Role.COORDINATOR
        tail = "coordinator" if alone else f"{self.role.value}/{self.node}"
        return f"spiffe://{self.trust_domain}/job/{self.job}/{tail}"

    @classmethod
    def parse(cls, text: str) -> "SpiffeId":
        """Read an id.

        Raises:
            IdentityError: ST-IDEN-006.
        """
        found = _ID.fullmatch(text)
        if not found:
            raise IdentityError("ST-IDEN-006", f"not a SPIFFE id of a job: {text[:200]!r}")
        role = Role.COORDINATOR if found["coordinator"] else Role(found["role"])
        return cls(found["domain"], found["job"], role, found["node"] or "")

    @classmethod
    def of_certificate(cls, certificate: "x509.Certificate") -> "SpiffeId":
        """The one SPIFFE id of a certificate.

        Raises:
            IdentityError: ST-IDEN-006 when it has none, several, or another SAN beside it.
        """
        from cryptography import x509  # noqa: PLC0415 - who verifies one key's signature has none

        try:
            san = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError) as error:
            what = f"no usable subject alternative name: {error}"
            raise IdentityError("ST-IDEN-006", what) from error
        uris = [name.value for name in san if isinstance(name, x509.UniformResourceIdentifier)]
        if len(uris) != 1 or len(list(san)) != 1:
            raise IdentityError(
                "ST-IDEN-006", f"{len(list(san))} alternative names; exactly one URI is needed"
            )
        return cls.parse(uris[0])

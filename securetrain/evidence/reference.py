# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Reference values: what the nodes of a fleet must be, in one signed file.

Rules:

1. the file is a DSSE envelope over canonical JSON, signed by a key that the policy names. Nothing
   in it is read before the signature has been checked;
2. it has a version and ends on a day: old values cannot be used for ever. Past that day everything
   that needs it is refused (ST-ATTS-009);
3. what a section does not list is not accepted: an empty section accepts nothing;
4. a node is who its TPM is: the inventory maps the names of endorsement keys, chips and devices to
   the one node that may present them;
5. a node has exactly one image group, and boots what was learned for that group, never what another
   one boots. `boot` and `tdx_boot` are of the group without a name;
6. the nodes of a large fleet stand in pages beside the file, which signs their root (`inventory`).
"""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.core import canonical
from securetrain.core.errors import AttestationError, SecureTrainError, reason
from securetrain.evidence.gpu.reference import GpuReference
from securetrain.evidence.inventory import (
    MAX_NODES,
    EnrolledNode,
    GroupName,
    PagedNodes,
    PagesRoot,
    ReadAt,
)
from securetrain.evidence.tee.google import GoogleReference
from securetrain.evidence.tee.paravisor import ParavisorReference
from securetrain.evidence.tee.snp_rules import SnpReference
from securetrain.evidence.tee.tdx import TdxReference
from securetrain.evidence.tokens import TokenReference
from securetrain.evidence.tpm.bootrules import BootReference
from securetrain.evidence.tpm.certificates import TpmReference
from securetrain.evidence.tpm.late import LateReference
from securetrain.evidence.tpm.runtime_policy import ImaReference
from securetrain.identity import dsse
from securetrain.identity.keys import PublicKey, Signer

PAYLOAD_TYPE: Final = "application/vnd.securetrain.reference-values+json"
FILE_LIMIT: Final = 64 << 20


Entry: TypeAlias = Annotated[str, Meta(max_length=65536)]
"""A digest, a command or a command line of a boot."""


class ImageGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The boots of the nodes that run one image."""

    boot: BootReference = BootReference()
    tdx_boot: BootReference = BootReference()
    late: LateReference | None = None


class ReferenceValues(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that nodes are compared with."""

    version: Annotated[int, Meta(ge=1, le=1 << 52)]
    """Rises with every edition."""
    issued: Annotated[datetime, Meta(tz=True)]
    expires: Annotated[datetime, Meta(tz=True)]
    nodes: Mapping[str, EnrolledNode] = {}
    """The inventory: node names as in their certificates."""
    pages: PagesRoot | None = None
    """Where the inventory stands in pages: what they are. In the file, `nodes` is empty then."""
    tpm: TpmReference = TpmReference()
    boot: BootReference = BootReference()
    ima: ImaReference = ImaReference()
    snp: SnpReference = SnpReference()
    tdx: TdxReference = TdxReference()
    paravisor: ParavisorReference = ParavisorReference()
    """Confidential VMs whose reports are their paravisor's (Azure)."""
    google: GoogleReference = GoogleReference()
    """Confidential VMs of Google Cloud."""
    tdx_boot: BootReference = BootReference()
    """What a TDX guest measures when it boots: as `boot`, with SHA-384 digests and RTMRs."""
    late: LateReference | None = None
    """PCR 11 to 15: unified kernel images, command lines, extensions, machine owner's keys. None
    does not judge them, and results say so."""
    gpu: GpuReference = GpuReference()
    tokens: TokenReference = TokenReference()
    groups: dict[GroupName, ImageGroup] = {}
    """Image groups that have a name."""
    unproven: dict[GroupName, tuple[str, ...]] = {}
    """By image group: nodes whose boot was learned although no TPM had proven it (`--unproven`)."""

    until: dict[GroupName, dict[Entry, Annotated[datetime, Meta(tz=True)]]] = {}
    """By image group: entries of its boots that are accepted until an instant, and not from it on
    (`staged`)."""

    def group(self, name: str) -> ImageGroup:
        """The boots of an image group.

        Raises:
            AttestationError: ST-ATTS-009 for one that is not there.
        """
        if not name:
            own = {field: getattr(self, field) for field in ImageGroup.__struct_fields__}
            return ImageGroup(**own)
        if name not in self.groups:
            raise unusable(
                f"there is no image group {name!r}",
                "groups",
                "learn a boot for it: securetrain attest enroll --group NAME --learn-boot",
            )
        return self.groups[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedReferenceValues:
    """Reference values whose signature was checked."""

    values: ReferenceValues
    digest: str
    """SHA-256 (hex) of the document: what results name."""
    where: str
    signed_by: Mapping[str, PublicKey]
    envelope: bytes = b""
    """The document as it was signed, for whoever judges by it again."""

    def check_time(self, now: datetime) -> None:
        """Refuse values that are over, or not yet.

        Raises:
            AttestationError: ST-ATTS-009.
        """
        values = self.values
        if not values.issued <= now < values.expires:
            raise unusable(
                f"valid from {values.issued} to {values.expires}, and it is {now}",
                self.where,
                "sign a new edition: securetrain attest values sign FILE --key KEY --days 90",
            )


def sign_reference_values(values: ReferenceValues, key: Signer) -> bytes:
    """The file's bytes. An inventory in pages is named, and stands beside it."""
    nodes = {} if values.pages is not None else dict(values.nodes.items())
    values = msgspec.structs.replace(values, nodes=nodes)
    return dsse.sign(canonical.encode(values), PAYLOAD_TYPE, [key])


def open_reference_values(
    envelope: bytes,
    keys: Mapping[str, PublicKey],
    where: str,
    pages: Callable[[PagesRoot], tuple[ReadAt, str]] | None = None,
) -> SignedReferenceValues:
    """Check the signature of reference values, then parse them; they may be over.

    Args:
        envelope: DSSE, as `sign_reference_values` makes it.
        keys: of which one must have signed, by id.
        where: names the envelope in errors.
        pages: gives what reads the pages of an inventory, and names it in errors.

    Raises:
        AttestationError: ST-ATTS-009.
    """
    try:
        payload = dsse.verify(envelope, PAYLOAD_TYPE, keys, where=where)
        values = canonical.decode(
            payload.data, ReferenceValues, limit=FILE_LIMIT, where=where, canonical=True
        )
    except SecureTrainError as error:
        raise unusable(
            reason(error), where, "name the key that signed it, or sign it again"
        ) from error
    if values.pages is None:
        _check_nodes(values, where)
    else:
        if values.nodes or pages is None:
            raise unusable(
                "its nodes stand in pages, and "
                + ("in it as well" if values.nodes else "there are none here"),
                f"{where}: pages",
                "sign it again: securetrain attest values sign",
            )
        nodes = PagedNodes(values.pages, *pages(values.pages))
        nodes.check = partial(_check_group, values, where)
        values = msgspec.structs.replace(values, nodes=nodes)
    return SignedReferenceValues(
        values=values,
        digest=hashlib.sha256(payload.data).hexdigest(),
        where=where,
        signed_by=keys,
        envelope=envelope,
    )


def _check_nodes(values: ReferenceValues, where: str) -> None:
    if len(values.nodes) > MAX_NODES:
        raise unusable(
            f"{len(values.nodes)} nodes, the limit is {MAX_NODES}", where, "split the fleet"
        )
    for name, node in values.nodes.items():
        _check_group(values, where, name, node)


def _check_group(values: ReferenceValues, where: str, name: str, node: EnrolledNode) -> None:
    if node.group and node.group not in values.groups:
        raise unusable(
            f"it is of the image group {node.group!r}, which has no boots",
            f"{where}: nodes.{name}.group",
            "learn a boot for it: securetrain attest enroll --group NAME --learn-boot",
        )


def trusted_keys(signed_by: Sequence[str], where: str) -> dict[str, PublicKey]:
    """Public keys by key id.

    Raises:
        AttestationError: ST-ATTS-009 when one is not a key.
    """
    try:
        keys = [PublicKey.from_spki(base64.b64decode(text, validate=True)) for text in signed_by]
    except (ValueError, SecureTrainError) as error:
        raise unusable(
            f"signed_by holds something that is no public key: {error}",
            where,
            "give the base64 of the key's SubjectPublicKeyInfo, as 'securetrain attest enroll'"
            " prints it",
        ) from error
    return {key.key_id: key for key in keys}


def unusable(what: str, where: str, fix: str) -> AttestationError:
    """Reference values that nothing can be compared with (ST-ATTS-009)."""
    return AttestationError("ST-ATTS-009", what, where, fix)

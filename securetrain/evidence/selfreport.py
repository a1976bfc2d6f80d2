# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Software evidence: what a node says about itself when no hardware speaks for it.

Rules:

1. it has a media type of its own and no field that claims a judgement: whoever controls the node
   can say anything here. Its use is to notice drift and misconfiguration;
2. what cannot be read is listed in ``missing``: absence is never a good value;
3. values of environment variables that may hold secrets are not collected; hardware addresses and
   serial numbers are not collected; the machine id is hashed with the job's name;
4. every field is bounded, when collected and when parsed.
"""

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.core.errors import AttestationError

SELF_ASSERTED_TYPE: Final = "application/vnd.securetrain.self-asserted+json"
BODY_LIMIT: Final = 4 << 20
MAX_VALUES: Final = 1 << 16
TEXT_LIMIT: Final = 4096

Text: TypeAlias = Annotated[str, Meta(max_length=TEXT_LIMIT)]
Name: TypeAlias = Annotated[str, Meta(max_length=128)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 53)]


class Kernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The running kernel and how it was started."""

    release: Text
    machine: Text
    command_line: Text
    lockdown: Text
    tainted: Text
    module_signatures_enforced: Text


class Hardware(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Inventory without addresses or serial numbers."""

    vendor: Text
    product: Text
    firmware: Text
    cpu_model: Text
    num_cpus: Count
    memory_bytes: Count
    gpus: Annotated[tuple[Text, ...], Meta(max_length=64)]
    tpm_device: bool


class Software(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The interpreter and the packages that matter, by their installed metadata."""

    python: Text
    executable_sha256: Name
    packages: Annotated[dict[Name, Name], Meta(max_length=64)]
    loader_variables: Annotated[dict[Name, Text], Meta(max_length=64)]
    securetrain: Name


class SoftwareEvidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that a node says about itself."""

    kernel: Kernel
    hardware: Hardware
    software: Software
    machine_id_sha256: Name
    missing: Annotated[tuple[Name, ...], Meta(max_length=64)]
    """Sources that could not be read, by path or name."""


def parse_software(body: bytes) -> SoftwareEvidence:
    """Read a self-asserted body.

    Raises:
        AttestationError: ST-ATTS-001 when it is not canonical JSON of the schema.
    """
    if len(body) > BODY_LIMIT:
        raise _bad(f"{len(body)} bytes, the limit is {BODY_LIMIT}")
    if body.count(b",") > MAX_VALUES:  # lists are built before their lengths are compared
        raise _bad(f"more than {MAX_VALUES} values")
    try:
        evidence = msgspec.json.decode(body, type=SoftwareEvidence, strict=True)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad(str(error)) from error
    # Every renewal brings one: for names in ASCII and without fractions this is RFC 8785.
    if msgspec.json.encode(evidence, order="sorted") != body:
        raise _bad("not in canonical form (RFC 8785)")
    return evidence


def _bad(what: str) -> AttestationError:
    return AttestationError("ST-ATTS-001", f"not software evidence: {what}", "evidence")

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The policy's demands on the transparency log."""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.policy.meta import meta

SpkiText: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9+/=]{40,200}\Z")]


class TransparencyLog(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The log in which every checkpoint's statement must stand, and who watches it."""

    origin: Annotated[
        str,
        meta(
            "the log's name, like a URL without a scheme; empty for a log of the run's own",
            "run",
            "verify",
            max_length=255,
        ),
    ] = ""
    keys: Annotated[
        tuple[SpkiText, ...],
        meta(
            "public keys (SPKI, base64, Ed25519) of the log; none for one that the run makes",
            "run",
            "verify",
        ),
    ] = ()
    witnesses: Annotated[
        tuple[SpkiText, ...],
        meta(
            "public keys (SPKI, base64, Ed25519) of the nodes whose agents watch it ('securetrain"
            " log witness-key' prints one); none for the node alone that makes the run",
            "run",
            "verify",
        ),
    ] = ()
    quorum: Annotated[
        int, meta("how many of them must have cosigned", "run", "verify", ge=1, le=1024)
    ] = 1

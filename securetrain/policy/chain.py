# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The policy's demands on what a checkpoint leads back to."""

from typing import Annotated

import msgspec

from securetrain.core.vocabulary import ChainDepth, ChainLink
from securetrain.policy.meta import meta


class Chain(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The links that must be verified; one that is broken or has no evidence is a refusal."""

    require: Annotated[
        tuple[ChainLink, ...],
        meta(
            f"links that evidence must show: {', '.join(ChainLink)}",
            "verify",
            max_length=len(ChainLink),
        ),
    ] = ()
    appraise: Annotated[
        bool, meta("judge evidence of nodes again: nobody's word on a tier counts", "verify")
    ] = False
    depth: Annotated[
        ChainDepth,
        meta(
            "of which checkpoints: checkpoint (the verified one), all (its ancestors, too)",
            "verify",
        ),
    ] = ChainDepth.CHECKPOINT

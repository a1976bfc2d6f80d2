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
            "links that evidence must show: nodes, membership, policy, job, code, environment,"
            " dataset, rows, gradients, parents, ledger, log, time,"
            " tables, replay",
            "verify",
            max_length=len(ChainLink),
        ),
    ] = ()
    depth: Annotated[
        ChainDepth,
        meta(
            "of which checkpoints: checkpoint (the verified one), all (its ancestors, too)",
            "verify",
        ),
    ] = ChainDepth.CHECKPOINT

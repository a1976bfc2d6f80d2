# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Appraisers under a policy, from the files that it names; light until it names some."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from securetrain.attest.session.state import StateStore
from securetrain.core.errors import PolicyError
from securetrain.evidence import APPRAISERS, Appraiser
from securetrain.policy.load import LoadedPolicy


def appraisers_for(
    policy: LoadedPolicy, now: datetime, state: StateStore
) -> Mapping[str, Appraiser]:
    """The appraisers of a verifier under this policy, by media type.

    Args:
        policy: as loaded from its files.
        now: the time, timezone-aware.
        state: knows the newest versions that were accepted before; older ones are refused.

    Raises:
        AttestationError: ST-ATTS-009, 3xx or 7xx when the reference values that it names are bad.
    """
    wanted = policy.policy.node.reference_values
    if wanted is None:
        return APPRAISERS
    # What judges TPMs, CPUs and devices: a policy without reference values has no use for it.
    from securetrain.attest.session.cache import CachedCollateral, CollateralCache  # noqa: PLC0415
    from securetrain.attest.session.floors import require_newest_cache  # noqa: PLC0415
    from securetrain.attest.session.reference_file import load_reference_values  # noqa: PLC0415
    from securetrain.evidence import NODE_TYPE, NodeAppraiser  # noqa: PLC0415

    folder = reference_folder(policy)
    reference = load_reference_values(folder / wanted.file, wanted.signed_by, now, state)
    cache = None
    if wanted.cache is not None:
        cache = CollateralCache.open(folder / wanted.cache, reference.signed_by, now)
        require_newest_cache(state, cache.index, reference.signed_by, str(cache.folder))
    return {
        **APPRAISERS,
        NODE_TYPE: NodeAppraiser(policy.policy.node, reference, CachedCollateral(cache), now),
    }


def reference_folder(policy: LoadedPolicy) -> Path:
    """The folder of the policy file that names the reference values.

    Raises:
        PolicyError: ST-PLCY-004 when the policy is not read from files.
    """
    source = policy.sources.get("node.reference_values.file")
    if source is None:
        raise PolicyError(
            "ST-PLCY-004",
            "it names reference values, and there is no file that they are relative to",
            "node.reference_values.file",
            "load the policy from its file",
        )
    return Path(source).parent

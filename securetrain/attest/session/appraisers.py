# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Appraisers under a policy, from its files: reference values, and the cache of collateral."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from securetrain.attest.session.cache import CollateralCache
from securetrain.attest.session.floors import require_newest_cache
from securetrain.attest.session.reference_file import load_reference_values
from securetrain.attest.session.state import StateStore
from securetrain.core.errors import AttestationError, PolicyError
from securetrain.evidence import APPRAISERS, NODE_TYPE, Appraiser, CollateralKind, NodeAppraiser
from securetrain.policy.load import LoadedPolicy


@dataclass(frozen=True, slots=True)
class CachedCollateral:
    """The signed cache, or the refusal that there is none."""

    cache: CollateralCache | None

    def get(self, kind: CollateralKind, name: str, now: datetime) -> bytes:
        """See `Collateral`."""
        if self.cache is None:
            raise AttestationError(
                "ST-ATTS-009",
                f"{kind} {name} is needed, and the policy names no cache of collateral",
                "node.reference_values.cache",
                "make one with 'securetrain attest cache add' and name it in the policy",
            )
        return self.cache.at(now).get(kind, name)

    def has(self, kind: CollateralKind, name: str) -> bool:
        """See `Collateral`."""
        return self.cache is not None and self.cache.has(kind, name)


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

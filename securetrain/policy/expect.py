# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The schema of ``checkpoint.expect``: which of all checkpoints that trusted keys sign is meant."""

import re
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.policy.meta import meta

_Text: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1024)] | None
_Digest: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")] | None
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)] | None
_BY = ("run", "verify")
_SIGNER = "one of those who must have signed: a key's id, or an identity"
_DATASET = "the dataset it was trained on: a digest, or the name that the dataset's own signer gave"
_POLICY = "the policy that it was made under: a digest, or a shipped one's name"


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The checkpoint that is wanted: a trusted key signs many."""

    run: Annotated[_Text, meta("the run that must have saved it", *_BY)] = None
    name: Annotated[_Text, meta("the name that it must bear; a run may sign under it", *_BY)] = None
    digest: Annotated[_Digest, meta("the digest of its content, as verify prints it", *_BY)] = None
    signer: Annotated[_Text, meta(_SIGNER, *_BY)] = None
    step: Annotated[_Count, meta("the step that it must be of", *_BY)] = None
    dataset: Annotated[_Text, meta(_DATASET, *_BY)] = None
    policy: Annotated[_Text, meta(_POLICY, *_BY)] = None
    min_step: Annotated[_Count, meta("the lowest step", *_BY)] = None
    min_version: Annotated[_Count, meta("the lowest number in its run", *_BY)] = None

    @property
    def dataset_name(self) -> str | None:
        """The dataset that is wanted, where that is a name."""
        wanted = self.dataset
        return wanted if wanted and not re.fullmatch("[0-9a-f]{64}", wanted) else None

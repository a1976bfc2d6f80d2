# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The schema of ``checkpoint.expect``: which of all checkpoints that trusted keys sign is meant."""

from typing import Annotated

import msgspec
from msgspec import Meta

from securetrain.policy.meta import meta as _meta


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The checkpoint that is wanted: a trusted key signs many."""

    run: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1024)] | None,
        _meta("the run that must have saved it", "run", "verify"),
    ] = None
    name: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1024)] | None,
        _meta("the name that it must bear; a run may sign under it", "run", "verify"),
    ] = None
    digest: Annotated[
        Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")] | None,
        _meta("the digest of its content, as verify prints it", "run", "verify"),
    ] = None
    signer: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1024)] | None,
        _meta("one of those who must have signed: a key's id, or an identity", "run", "verify"),
    ] = None
    min_step: Annotated[
        Annotated[int, Meta(ge=0, le=(1 << 53) - 1)] | None,
        _meta("the lowest step", "run", "verify"),
    ] = None
    min_version: Annotated[
        Annotated[int, Meta(ge=0, le=(1 << 53) - 1)] | None,
        _meta("the lowest number in its run", "run", "verify"),
    ] = None

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Images by signature: whose predictions of PCR 11 are accepted, and which no longer are.

Rules:

1. a group whose PCR 11 to 15 are not judged yet gets no key: the other four would accept nothing.
   Learn a boot of it first;
2. a retired prediction stays retired: its signature is as good as ever, so that nothing here takes
   a name out again.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from securetrain.core.errors import UsageError
from securetrain.evidence import ReferenceValues
from securetrain.evidence.tpm import load_policy_key

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


def accept_images(
    values: ReferenceValues, *, keys: Sequence[str], retired: Sequence[str], group: str
) -> ReferenceValues:
    """The values with keys that sign images of a group, and predictions that are over.

    Args:
        values: the last ones.
        keys: public keys, PEM.
        retired: policy digests, hex.
        group: the image group; empty for the one without a name.

    Raises:
        AttestationError: ST-ATTS-009 for a key that is none.
        UsageError: ST-USAG-001.
    """
    if not keys and not retired:
        raise UsageError(
            "ST-USAG-001", "neither a key nor a prediction", "--policy-key", "name one of them"
        )
    for index, pem in enumerate(keys):
        load_policy_key(pem, f"--policy-key {index + 1}")
    for digest in retired:
        if not _DIGEST.fullmatch(digest):
            raise UsageError(
                "ST-USAG-001",
                f"{digest[:100]!r} is no SHA-256 in lower-case hex",
                "--retire",
                "give `pol` of the image's signature file",
            )
    late = values.group(group).late
    if late is None:
        raise UsageError(
            "ST-USAG-001",
            "PCR 11 to 15 of this image group are not judged yet",
            "--group",
            "learn a boot of it first: securetrain attest enroll --learn-boot",
        )
    late = msgspec.structs.replace(
        late,
        policy_keys=tuple(dict.fromkeys((*late.policy_keys, *keys))),
        retired=tuple(dict.fromkeys((*late.retired, *retired))),
    )
    if not group:
        return msgspec.structs.replace(values, late=late)
    changed = msgspec.structs.replace(values.groups[group], late=late)
    return msgspec.structs.replace(values, groups={**values.groups, group: changed})

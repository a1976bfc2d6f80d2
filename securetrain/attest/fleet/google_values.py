# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Google's part of the reference values: whose keys and firmware are accepted, and of which VMs.

Rules:

1. an endorsement is verified before it is written, with the roots that will verify it later;
2. roots, endorsements and names are added; `clear` takes everything out of a list first;
3. floors and sizes are replaced by what is said.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from securetrain.core.errors import UsageError
from securetrain.evidence import ReferenceValues
from securetrain.evidence.tee import GoogleAppraiser, GoogleReference

LISTS: Final = (
    *("roots", "intermediates", "endorsement_roots", "endorsements"),
    *("projects", "zones", "vcpus", "memory_gib"),
)


def set_google(
    values: ReferenceValues,
    added: Mapping[str, Sequence[object]],
    fields: Mapping[str, object],
    clear: Sequence[str] = (),
) -> ReferenceValues:
    """The values with other rules for VMs of Google's.

    Args:
        values: the last ones.
        added: entries to add, by the name of their list.
        fields: other fields, by name; None leaves one as it is.
        clear: names of lists that are emptied first.

    Raises:
        AttestationError: ST-ATTS-009 for a certificate, or an endorsement that does not hold.
        UsageError: ST-USAG-001 when nothing is asked for, or something is over its limit.
    """
    said = {name: value for name, value in fields.items() if value is not None}
    if not any(added.values()) and not said and not clear:
        raise UsageError("ST-USAG-001", "nothing is to be changed", "", "name what is accepted")
    old = values.google
    lists = {
        name: tuple(
            dict.fromkeys((*(() if name in clear else getattr(old, name)), *added.get(name, ())))
        )
        for name in LISTS
    }
    changed = msgspec.structs.replace(old, **lists, **said)
    try:
        # Types and limits are asked of what is read, and what is written must be readable.
        read = msgspec.convert(msgspec.to_builtins(changed), GoogleReference)
    except msgspec.ValidationError as error:
        raise UsageError(
            "ST-USAG-001", str(error), "google", "give a name, number or file that fits"
        ) from error
    GoogleAppraiser(read)
    return msgspec.structs.replace(values, google=read)

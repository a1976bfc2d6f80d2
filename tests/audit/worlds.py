# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What the tests of the audit build and look at alike."""

from securetrain.audit.facts import Body, End, Entry


def open_entries(body: Body) -> dict[str, Entry]:
    """What was not understood, by its path: several in one file with their lines."""
    entries = [one for one in body.ledger if one.end is End.NOT_UNDERSTOOD]
    paths = [one.at.path for one in entries]
    return {
        one.at.path if paths.count(one.at.path) == 1 else f"{one.at.path}:{one.at.line}": one
        for one in entries
    }

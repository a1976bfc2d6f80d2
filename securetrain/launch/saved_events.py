# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The ledger's word on a save that was signed for a script."""

from securetrain.artifacts.statement import saved_files
from securetrain.ledger import events


def saved_event(said: saved_files.SavedFiles, subject: str) -> events.SavedFilesSigned:
    """Say who has had what signed; of a directory's files, how many."""
    return events.SavedFilesSigned(
        subject=subject,
        way=said.way,
        place=said.place,
        file="" if said.form is saved_files.Form.DIRECTORY else said.files[0].name,
        files=len(said.files),
        number=said.number,
        step=said.step,
    )

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The page of ``securetrain attest explain``."""

from dataclasses import asdict

from securetrain.attest.fleet import Explained
from securetrain.report.document import Document
from securetrain.report.pieces import facts, say, title, warn


def page(explained: Explained) -> Document:
    """Every refusal of a result in words."""

    def text() -> None:
        if not explained.signed and explained.refusals:
            warn(f"{explained.source} is not signed: it says what its writer says")
        for one in explained.refusals:
            title(f"{one.code}: {one.rule}", one.severity.upper())
            rows = (
                ("node", one.node),
                ("when", one.at),
                ("about", one.about),
                ("where", one.where),
                ("found", one.found),
                ("follows", f"{one.follows}; {one.again}"),
                *(("do" if not number else "", step) for number, step in enumerate(one.steps)),
            )
            facts([(name, value) for name, value in rows if value])
        if not explained.refusals:
            say(f"{explained.source}: no evidence was refused")
        for what in explained.open:
            warn(f"open: {what}")

    return Document(data=asdict(explained), text=text)

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Text from elsewhere, made safe for a terminal.

A file name, a peer's message or a log line may hold escape sequences that repaint the screen, so
that a refusal looks like a success. Unprintable characters are shown as escapes instead.
"""


def printable(text: str, *, keep: str = "\n") -> str:
    r"""`text` with every unprintable character but those in `keep` spelled out (``\\x1b``)."""
    if text.isprintable():
        return text
    return "".join(
        ch if ch.isprintable() or ch in keep else ch.encode("unicode_escape").decode("ascii")
        for ch in text
    )

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0

from securetrain.core.text import printable
from tests.tables import items


@items(
    "text, expected",
    ("plain text", "plain text"),
    ("caf\u00e9 \u2713", "caf\u00e9 \u2713"),
    ("two\nlines", "two\nlines"),
    ("\x1b[31mred", "\\x1b[31mred"),
    ("over\rwritten\x08", "over\\rwritten\\x08"),
    ("\u202eright to left", "\\u202eright to left"),
    ("\x9b31m", "\\x9b31m"),
    ("\udc80", "\\udc80"),
    ("\x00", "\\x00"),
)
def test_what_is_not_printable_is_spelled_out(text, expected):
    assert printable(text) == expected

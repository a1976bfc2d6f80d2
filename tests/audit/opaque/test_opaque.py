# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A seeded sample of the property of `worlds.py`; `make campaign NAME=audit-opaque` has all."""

import random

import pytest

from tests.audit.opaque import worlds as opaque

DRAWN = 40


@pytest.mark.parametrize("form", opaque.FORMS, ids=["manifest", "script"])
def test_nothing_passes_beside_what_is_opaque_and_a_remark_changes_nothing(form, tmp_path):
    rng = random.Random(20261120)
    of_form = [one for one in opaque.sources() if one[1] is form]
    for _ in range(DRAWN if form is opaque.MANIFEST else DRAWN // 2):
        place = rng.choice(opaque.places(*rng.choice(of_form)))
        assert not list(place.faults(tmp_path)), place


def test_the_property_sees_a_reader_that_answers_empty(tmp_path, monkeypatch):
    text = "torchrun --standalone t.py\n$LAUNCHER\n"
    place = opaque.Place("a.sh", opaque.SCRIPT, tuple(text.split("\n")), 1)
    assert not list(place.faults(tmp_path))
    monkeypatch.setattr("securetrain.audit.documents.documents.Document.unread", lambda *_: None)
    assert any("leaves" in one for one in place.faults(tmp_path))

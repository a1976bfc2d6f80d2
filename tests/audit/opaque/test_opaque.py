# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A seeded sample of the property of `worlds.py`; `make campaign NAME=audit-opaque` has all."""

import random

import pytest

from tests.audit.opaque import worlds as opaque

DRAWN = 40
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: d, image: b}]
  hostPID: false
  initContainers:
  - name: c
    image: a
"""


@pytest.mark.parametrize("form", opaque.FORMS, ids=["manifest", "script", "hook"])
def test_nothing_passes_beside_what_is_opaque_and_a_remark_changes_nothing(form, tmp_path):
    rng = random.Random(20261120)
    of_form = [one for one in opaque.sources() if one[1] is form]
    for _ in range(DRAWN if form is opaque.MANIFEST else DRAWN // 2):
        place = rng.choice(opaque.places(*rng.choice(of_form)))
        assert not list(place.faults(tmp_path)), place


BLIND = {
    "script": (opaque.SCRIPT, "a.sh", "torchrun --standalone t.py\n\n", 1),
    "block": (opaque.MANIFEST, "a.yaml", POD, 8),
    "hook": (opaque.HOOK, "a.yaml", POD, 8),
}


@pytest.mark.parametrize("name", BLIND)
def test_the_property_sees_a_reader_that_answers_empty(name, tmp_path, monkeypatch):
    form, file, text, number = BLIND[name]
    place = opaque.Place(file, form, tuple(text.split("\n")), number)
    assert not list(place.faults(tmp_path))
    monkeypatch.setattr("securetrain.audit.documents.Document.unread", lambda *_: None)
    assert any("leaves" in one for one in place.faults(tmp_path))

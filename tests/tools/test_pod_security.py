# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The table of the Pod Security Standards is what the kept facts of Kubernetes' text make."""

import copy
import json
import re

from securetrain.audit.subjects.kubernetes.standards import controls
from tests.tables import items
from tests.vocabulary import refused
from tools.standards.pod_security import FACTS, TABLE, _setting, table_of, written

KEPT = json.loads(FACTS.read_text())


def test_the_table_is_made_of_the_facts_and_of_nothing_else():
    assert TABLE.read_text() == written(table_of(KEPT), KEPT)
    levels = [one.level for one in controls().values()]
    assert (levels.count("baseline"), levels.count("restricted")) == (12, 7)
    assert controls()["hostProbesAndHostLifecycle"].since == "1.34"


def test_every_fact_of_a_check_counts():
    for number, check in enumerate(KEPT["checks"]):
        for part, setting in enumerate(check["settings"]):
            if check["until"][part] or check["kinds"]:
                continue
            for key, other in (("fields", ["spec.x"]), ("undefined", "other"), ("refused", ["x"])):
                changed = copy.deepcopy(KEPT)
                changed["checks"][number]["settings"][part][key] = other
                if "volumes[*]" in setting["fields"][0] and key != "fields":
                    continue  # a volume has a kind
                if key == "undefined" and re.search(r"s\[\*\]\.\w+$|add$", setting["fields"][0]):
                    continue  # a list of nothing lacks nothing
                assert table_of(changed)["controls"] != table_of(KEPT)["controls"], check["id"]


@items("text", "", "\n* none of\nAllowed Values: false", "spec.x\nAllowed Values:")
def test_text_that_is_not_understood_is_an_error(text):
    refused(ValueError, "not understood", _setting, text)

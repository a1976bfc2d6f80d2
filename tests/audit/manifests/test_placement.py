# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The labels that a node must have to get a pod."""

import pytest

HEAD = (
    "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: c, image: x}]\n"
)
AFFINITY = (
    "  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: "
    "{nodeSelectorTerms: [%s]}}}\n"
)
ONE = "{matchExpressions: [{key: pool, operator: In, values: [training]}]}"


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("", []),
        ("  nodeSelector: {pool: training, gpu: h100}\n", ["pool=training", "gpu=h100"]),
        (AFFINITY % ONE, ["pool=training"]),
        (AFFINITY % f"{ONE}, {ONE}", [None, None]),  # either is enough for the scheduler
        (AFFINITY % ONE.replace("training", "training, shared"), [None]),
        (AFFINITY % ONE.replace("In,", "Exists,"), []),
        (AFFINITY.replace("required", "preferred") % ONE, []),  # a wish
        ("  nodeSelector: {pool: '{{ .Values.pool }}'}\n", [None]),
        ("  nodeSelector: {{ .Values.selector }}\n", [None]),
        ("  nodeSelector: [pool]\n", []),
    ],
)
def test_what_a_node_must_have(read, text, labels):
    (pod,) = read(HEAD + text).workloads[0].pods
    assert [one.text.value for one in pod.node_labels] == labels
    assert all(one.text.reason for one in pod.node_labels if one.text.value is None)


def test_an_operator_may_choose_the_nodes(read):
    text = "apiVersion: a.io/v1\nkind: A\nmetadata: {name: p}\nspec: {w: {image: x, env: []}}\n"
    (pod,) = read(text).workloads[0].pods
    assert [one.text.reason for one in pod.node_labels] == ["the operator of A may set it"]

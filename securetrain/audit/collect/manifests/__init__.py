# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Kubernetes manifests, read as they stand: pod templates of any kind, each value with its line.

::

    files.py      paths to bytes          bounded; no links out, no pipes
    templates.py  text to plain YAML      {{ }}, {% %}, <% %>, ${VAR}: every line stays where it is
    tree.py       YAML to nodes           with lines; no bombs; keys that stand twice are noted
    objects.py    nodes to objects        lists, strings and here-documents inside
    pods.py       objects to pod specs    by their structure, in any kind
    values.py     nodes to readings       known, absent, templated, or of a wrong type
    workloads.py  pod specs to records    effective values
    network.py, rights.py, entrances.py, admission.py, surroundings.py   what other objects say
    rendering/    charts and kustomizations, put together by helm and kustomize behind walls
    collect.py    all of it together
"""

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Kubernetes manifests, read as they stand: pod templates of any kind, each value with its line.

::

    parser/       files to objects        bounded; templates keep their lines
    pods/         objects to workloads    pod specs by structure; effective values
    cluster/      the objects around      network, rights, entrances, admission, secrets
    rendering/    charts and kustomizations, put together by helm and kustomize behind walls
    collect.py    all of it together
"""

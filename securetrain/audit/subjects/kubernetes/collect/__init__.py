# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Kubernetes manifests, read as they stand: pod templates of any kind, each value with its line.

::

    pods.py, containers.py, workloads.py   pod specs by structure; effective values
    network.py, rights.py, entrances.py, admission.py, stored.py   the objects around
    launches.py, labels.py, expressions.py   commands, what selects a pod, what a site asks
    rendering/   charts and kustomizations, put together by helm and kustomize behind walls
    collect.py   all of it together
"""

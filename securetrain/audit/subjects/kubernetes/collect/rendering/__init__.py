# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Charts and kustomizations, put together by helm and kustomize behind walls.

::

    sources.py   folders to charts and kustomizations   found by their files; objects to their lines
    tools.py     a tool of PATH, run to its end         no network, bounded time, memory and output
    confined.py  the walls                              a program itself: namespaces, Landlock
    render.py    all of it together                     texts with the file that each came from
"""

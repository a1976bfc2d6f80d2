# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The job network: which profile a job gets, what keeps its workers inside it, and the overlay.

``overlay`` builds a node's part of it: a namespace whose only way out is WireGuard to the members.
Below it stand the engines (``wireguard_go``, ``wireguard_kernel``), namespaces, packet filters and
the record that lets ``leftovers`` remove what a dead owner left.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

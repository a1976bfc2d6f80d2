# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The job network: which profile a job gets, what keeps its workers inside it, and the overlay.

``overlay`` builds a node's part of it: a namespace whose only way out is WireGuard to the members.
Below it stand the engines (``wireguard_go``, ``wireguard_kernel``), namespaces, packet filters and
the record that lets ``leftovers`` remove what a dead owner left.

Find a job's own network, and a member's address in it:

>>> from securetrain.core.vocabulary import NetworkProfile
>>> from securetrain.network import address, label, subnet
>>> str(subnet("run-7")), str(address("run-7", 1))
('100.92.48.0/20', '100.92.48.2')
>>> label(NetworkProfile.STORE_TLS)
'store-tls DEGRADED (some bytes in the clear)'
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

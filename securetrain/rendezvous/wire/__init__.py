# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The wire of the rendezvous: messages, channels, TLS and signed memberships.

Frame a message, and read it back; one of an unknown kind is refused:

>>> from securetrain.rendezvous.wire import protocol
>>> reader = protocol.FrameReader()
>>> reader.feed(protocol.encode_frame(protocol.Heartbeat()))
>>> protocol.decode_message(reader.next(limit=4096))
Heartbeat()
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Models from elsewhere: safetensors folders and OpenSSF Model Signing bundles.

Say what a Model Signing bundle covers:

>>> from securetrain.artifacts.model import oms
>>> oms.Scope(allow_symlinks=True).ignore_git
True
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

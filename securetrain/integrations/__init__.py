# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Hooks for the frameworks that people train with: guard, signed saves, verified resume.

Every name of the face is a function that makes what its framework takes: a callback, a plugin, a
reader. Importing this package loads no framework; a function loads its own when it is called, and
refuses where it is absent (ST-USAG-004) or of a version that was not tested (ST-USAG-019):
:mod:`~securetrain.integrations.versions`.

See which frameworks were tried, and guard one trainer in a line:

>>> from securetrain.integrations import TESTED
>>> "transformers" in TESTED
True
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

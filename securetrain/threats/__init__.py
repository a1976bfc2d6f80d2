# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Threat models: load them, and follow each threat to control, check, code and drill.

Load the threat models that are shipped:

>>> from securetrain.threats import load_model, shipped_models
>>> sorted(load_model(path).id for path in shipped_models())
['tm-training-artifacts', 'tm-training-cluster']
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Plan a job before anything is started. Importing this does not import torch.

Look a device up by name, with what a plan needs to know of it:

>>> from securetrain.train.planning import device_named
>>> device_named("h100", "--device").memory
80000000000
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

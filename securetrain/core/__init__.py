# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
r"""The ground floor: errors, codes, vocabulary, canonical JSON, hash trees and safe files.

Nothing here knows of policies, networks or torch.

Look a refusal up, and show text from elsewhere without its control characters:

>>> from securetrain.core import CODES, printable
>>> CODES["ST-CKPT-130"].title
'the content of a checkpoint file is not what was signed'
>>> printable("blue" + chr(27) + "[31m")
'blue\\x1b[31m'
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

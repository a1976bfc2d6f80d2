# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""TPM 2.0 evidence: keys, certificates, quotes, event logs and measurement lists.

Select registers for a quote, as they go over the bus (TPM 2.0 part 2, 10.9):

>>> from securetrain.evidence.tpm import Hash, PcrSelection, encode_selections
>>> encode_selections([PcrSelection(Hash.SHA256, (0, 4, 7))]).hex()
'00000001000b03910000'
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

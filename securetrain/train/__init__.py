# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
r"""The built-in trainer. Importing this package does not import torch.

Load a job file; a field that nobody knows is refused before a process starts:

>>> import tempfile
>>> from pathlib import Path
>>> from securetrain.core.errors import SecureTrainError
>>> from securetrain.train import load_job
>>> file = Path(tempfile.mkdtemp(), "job.yaml")
>>> _ = file.write_text("apiVersion: securetrain.dev/job/v1\nkind: TrainJob\nlayres: 4\n")
>>> try:
...     _ = load_job(file)
... except SecureTrainError as error:
...     print(error.code)
ST-USAG-007
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

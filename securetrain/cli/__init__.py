# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The command line: one file per verb parses, calls one function, and hands on the result.

What the console script runs, from Python::

    >>> from securetrain.cli.main import main
    >>> main(["--version"])  # doctest: +ELLIPSIS
    securetrain ...
    0
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

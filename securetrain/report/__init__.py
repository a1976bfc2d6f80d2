# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Everything that is shown: one `Document`, and one renderer each for people and for machines.

A page makes a document of a result, `emit` prints it in any format and returns the exit code::

    >>> from securetrain.report import Document, Row, Section, emit
    >>> row = Row(name="signed by", text="key 3f0c, trusted by trust.json")
    >>> answer = Document(word="VERIFIED", about="step-100", sections=[Section(rows=[row])])
    >>> emit(answer, "text")
    VERIFIED  step-100
    signed by  key 3f0c, trusted by trust.json
    0
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

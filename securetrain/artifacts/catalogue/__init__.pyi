# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .client import Catalogue as Catalogue
from .editor import Editor as Editor
from .editor import Term as Term
from .editor import create as create
from .entry import Entry as Entry

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from . import editor as editor
from .client import Catalogue as Catalogue
from .editor import Editor as Editor
from .entry import Entry as Entry

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .files import VerifiedFile as VerifiedFile
from .samples import TABLE_PREFIX as TABLE_PREFIX
from .sign import About as About
from .sign import sign_in_place as sign_in_place
from .versions import Removals as Removals
from .write import Document as Document
from .write import sign_documents as sign_documents

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .artifacts.checkpoint.async_save import async_save as async_save
from .artifacts.checkpoint.load import load as load
from .artifacts.checkpoint.save import save as save
from .artifacts.checkpoint.session import Session as Session
from .artifacts.dataset.verified import Dataset as Dataset
from .artifacts.scan.scanner import scan as scan
from .artifacts.signing import sign as sign
from .artifacts.statement.context import SaveContext as SaveContext
from .artifacts.statement.expectation import Expectation as Expectation
from .chain.verdict import Verdict as Verdict
from .chain.verifying import verify as verify
from .core import secret as secret
from .identity.trust import TrustRoot as TrustRoot
from .policy.schema import Policy as Policy

__version__: str

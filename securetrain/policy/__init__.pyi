# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .enforcement import load_demands as load_demands
from .enforcement import read_demands as read_demands
from .enforcement import sandbox_mode as sandbox_mode
from .enforcement import shim_demands as shim_demands
from .enforcement import unsigned_demands as unsigned_demands
from .explanation import Row as Row
from .explanation import explain as explain
from .lint import Level as Level
from .lint import Remark as Remark
from .lint import lint_policy as lint_policy
from .load import LoadedPolicy as LoadedPolicy
from .load import load_policy as load_policy
from .schema import Policy as Policy
from .signed import beside as beside
from .signed import sign_policy as sign_policy
from .signed import verify_policy as verify_policy

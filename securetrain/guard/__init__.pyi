# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .guard import GradientGuard as GradientGuard
from .kernel import sketch_backend as sketch_backend
from .verdict import RankScore as RankScore
from .verdict import StepRecord as StepRecord
from .verdict import Totals as Totals
from .verdict import Verdict as Verdict

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .ranks import PRELOAD as PRELOAD
from .ranks import RankError as RankError
from .ranks import run_ranks as run_ranks
from .registry import DRILLS as DRILLS
from .registry import Drill as Drill
from .registry import DrillResult as DrillResult
from .registry import Outcome as Outcome
from .registry import run_drill as run_drill

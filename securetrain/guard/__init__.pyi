# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from . import aggregate as aggregate
from .attachment import attach as attach
from .bound_numbers import Aftermath as Aftermath
from .entries import verdict_events as verdict_events
from .exporter import GuardTextfile as GuardTextfile
from .guard import GradientGuard as GradientGuard
from .kernel import sketch_backend as sketch_backend
from .records import SketchWriter as SketchWriter
from .suspicions import OnSuspicion as OnSuspicion
from .suspicions import Suspicion as Suspicion
from .unmodified import Listener as Listener
from .unmodified import ScriptGuard as ScriptGuard
from .verdict import RankScore as RankScore
from .verdict import StepRecord as StepRecord
from .verdict import Totals as Totals
from .verdict import Verdict as Verdict

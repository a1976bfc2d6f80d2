# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .devices import Device as Device
from .devices import device_named as device_named
from .fake_mesh import explain_cuts as explain_cuts
from .job_plan import JobPlan as JobPlan
from .job_plan import make_plan as make_plan
from .step_time import StepTime as StepTime

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .config import JobConfig as JobConfig
from .config import load_job as load_job
from .exporter import export_trained as export_trained
from .file_schema import job_schema as job_schema
from .fit import FitStep as FitStep
from .fit import fit as fit
from .self_check import check_rank as check_rank
from .self_check import small_degrees as small_degrees
from .weights import with_unverified_sizes as with_unverified_sizes

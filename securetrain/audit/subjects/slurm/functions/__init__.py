# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The functions that checks of Slurm call."""

from securetrain.audit.subjects.slurm.functions import slurm as slurm
from securetrain.audit.subjects.slurm.functions import slurm_files as slurm_files

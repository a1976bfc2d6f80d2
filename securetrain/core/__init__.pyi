# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from . import text as text
from .codes import CODES as CODES
from .codes import ExitCode as ExitCode
from .codes import Node as Node
from .codes import Retry as Retry
from .extras import install_hint as install_hint
from .nodestate import STATE_VARIABLE as STATE_VARIABLE
from .nodestate import NodeState as NodeState
from .ownership import claim_dir as claim_dir
from .ownership import judge_place as judge_place
from .process_stat import all_stats as all_stats
from .process_stat import read_stat as read_stat
from .rundir import RUN_DIR_VARIABLE as RUN_DIR_VARIABLE
from .rundir import SIGNER_VARIABLE as SIGNER_VARIABLE
from .rundir import RunDir as RunDir
from .text import printable as printable

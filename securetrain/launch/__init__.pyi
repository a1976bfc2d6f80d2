# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .checkpoints.services import this_node as this_node
from .doctor import Diagnosis as Diagnosis
from .doctor import diagnose as diagnose
from .entrypoint import main as main
from .node.compile_cache import ClearedCaches as ClearedCaches
from .node.compile_cache import StoredCache as StoredCache
from .node.compile_cache import clear_caches as clear_caches
from .node.compile_cache import list_caches as list_caches
from .node.preflight import loopback_environment as loopback_environment
from .node.preflight import run_preflight as run_preflight
from .sandbox.cgroup import collect_groups as collect_groups
from .setup import node_name as node_name
from .setup import prepare_run as prepare_run

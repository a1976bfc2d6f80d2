# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .compile_cache import ClearedCaches as ClearedCaches
from .compile_cache import StoredCache as StoredCache
from .compile_cache import clear_caches as clear_caches
from .compile_cache import list_caches as list_caches
from .doctor import Diagnosis as Diagnosis
from .doctor import diagnose as diagnose
from .entrypoint import main as main
from .node_services import this_node as this_node
from .preflight import loopback_environment as loopback_environment
from .preflight import run_preflight as run_preflight
from .run_setup import node_name as node_name
from .run_setup import prepare_run as prepare_run
from .sandbox.cgroup import collect_groups as collect_groups

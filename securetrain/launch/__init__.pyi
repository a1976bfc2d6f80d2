# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .entrypoint import main as main
from .node_services import this_node as this_node
from .preflight import run_preflight as run_preflight
from .run_setup import node_name as node_name
from .run_setup import prepare_run as prepare_run

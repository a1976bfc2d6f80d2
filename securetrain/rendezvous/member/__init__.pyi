# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .client import Member as Member
from .enrollee import enroll as enroll
from .entry import CARRIER as CARRIER
from .entry import FLOORS as FLOORS
from .entry import ON_EPOCH as ON_EPOCH
from .entry import ON_JOIN as ON_JOIN
from .entry import STORE_PORT as STORE_PORT
from .entry import TUNNEL as TUNNEL
from .entry import get_creator as get_creator
from .entry import parse_endpoint as parse_endpoint
from .entry import parse_endpoints as parse_endpoints
from .identity_dir import NodeIdentity as NodeIdentity
from .identity_dir import issue_identity as issue_identity
from .identity_dir import load_identity as load_identity
from .identity_dir import write_identity as write_identity
from .relay import Carrier as Carrier

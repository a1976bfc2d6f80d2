# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .appraisers import appraisers_for as appraisers_for
from .fleet_state import FleetState as FleetState
from .fleet_state import check_subject as check_subject
from .for_a_job import fleet_verifier as fleet_verifier
from .for_a_job import open_fleet as open_fleet
from .passport import Passport as Passport
from .passport import issue_passport as issue_passport
from .passport import svid_pem as svid_pem
from .passport import verify_passport as verify_passport
from .reference_file import load_reference_values as load_reference_values
from .reference_file import read_reference_values as read_reference_values
from .reference_file import write_reference_values as write_reference_values
from .state import MemoryState as MemoryState
from .state import Revocation as Revocation
from .verifier import Verifier as Verifier

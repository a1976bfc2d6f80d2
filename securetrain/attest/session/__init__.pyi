# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .appraisers import appraisers_for as appraisers_for
from .passport import Passport as Passport
from .passport import issue_passport as issue_passport
from .passport import svid_pem as svid_pem
from .passport import verify_passport as verify_passport
from .reference_file import write_reference_values as write_reference_values
from .state import FileState as FileState
from .state import Revocation as Revocation
from .verifier import Verifier as Verifier

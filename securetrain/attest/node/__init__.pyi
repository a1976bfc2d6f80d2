# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .attester import AUTO as AUTO
from .attester import Attester as Attester
from .attester import SoftwareAttester as SoftwareAttester
from .attester import sign_evidence as sign_evidence
from .composite import NodeAttester as NodeAttester
from .settings import AttesterSettings as AttesterSettings
from .settings import TpmSettings as TpmSettings
from .settings import make_attester as make_attester
from .settings import settings_for as settings_for
from .tpm.client import Tpm as Tpm

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .oms.model import Form as Form
from .oms.model import Scope as Scope
from .oms.model import check_model as check_model
from .oms.model import sign_model as sign_model
from .oms.signers import ModelRoots as ModelRoots
from .oms.signers import read_signer as read_signer
from .signed_model import SignedModel as SignedModel
from .signed_model import open_model as open_model

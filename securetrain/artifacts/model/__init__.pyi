# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .oms import Form as Form
from .oms import Scope as Scope
from .oms import check_model as check_model
from .oms import sign_model as sign_model
from .signed_model import SignedModel as SignedModel
from .signed_model import open_model as open_model
from .signers import ModelRoots as ModelRoots
from .signers import read_signer as read_signer

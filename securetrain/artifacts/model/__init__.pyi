# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from . import oms as oms
from . import signers as signers
from .signed_model import SignedModel as SignedModel
from .signed_model import open_model as open_model

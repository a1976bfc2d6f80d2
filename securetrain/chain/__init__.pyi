# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .container import Pack as Pack
from .container import is_pack as is_pack
from .coordinators import endorse as endorse
from .judging import Judged as Judged
from .keeper import Keeper as Keeper
from .packed import PackResult as PackResult
from .packed import claimed_time as claimed_time
from .packed import verify_pack as verify_pack
from .packed import witnessed as witnessed
from .packing import Packed as Packed
from .packing import pack as pack
from .verifying import Evidence as Evidence
from .verifying import near as near

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .config import load_job as load_job
from .config import shape_of as shape_of
from .exporter import export as export
from .weights import open_weights as open_weights
from .weights import trust_of_inputs as trust_of_inputs
from .weights import with_unverified_sizes as with_unverified_sizes

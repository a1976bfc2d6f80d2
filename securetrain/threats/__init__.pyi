# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .overview import page as page
from .resolve import verify as verify
from .source import SourceTree as SourceTree
from .threat_model import load_model as load_model
from .threat_model import locate as locate
from .threat_model import shipped_models as shipped_models

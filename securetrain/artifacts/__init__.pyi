# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from securetrain.artifacts.checkpoint.load import load as load
from securetrain.artifacts.checkpoint.save import save as save
from securetrain.artifacts.context import SaveContext as SaveContext
from securetrain.artifacts.dataset import VerifiedDataset as VerifiedDataset
from securetrain.artifacts.verify import verify_path as verify_path

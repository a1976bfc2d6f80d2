# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from securetrain.artifacts.checkpoint.async_save import SaveMode as SaveMode
from securetrain.artifacts.checkpoint.async_save import async_save as async_save
from securetrain.artifacts.checkpoint.load import load as load
from securetrain.artifacts.checkpoint.save import save as save
from securetrain.artifacts.checkpoint.save_safetensors import save_safetensors as save_safetensors
from securetrain.artifacts.dataset.verified import VerifiedDataset as VerifiedDataset
from securetrain.artifacts.lineage.floors import Floors as Floors
from securetrain.artifacts.lineage.freshness import Freshness as Freshness
from securetrain.artifacts.model.safetensors_folder import sign_safetensors as sign_safetensors
from securetrain.artifacts.statement.context import SaveContext as SaveContext
from securetrain.artifacts.statement.members import RankSigner as RankSigner
from securetrain.artifacts.verify import verify_path as verify_path

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from securetrain.artifacts.checkpoint.async_save import SaveMode as SaveMode
from securetrain.artifacts.checkpoint.async_save import async_save as async_save
from securetrain.artifacts.checkpoint.load import load as load
from securetrain.artifacts.checkpoint.save import save as save
from securetrain.artifacts.checkpoint.save_safetensors import save_safetensors as save_safetensors
from securetrain.artifacts.context import SaveContext as SaveContext
from securetrain.artifacts.dataset import VerifiedDataset as VerifiedDataset
from securetrain.artifacts.floors import Floors as Floors
from securetrain.artifacts.freshness import Freshness as Freshness
from securetrain.artifacts.members import RankSigner as RankSigner
from securetrain.artifacts.safetensors_folder import sign_safetensors as sign_safetensors
from securetrain.artifacts.verify import verify_path as verify_path

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
from .accelerate_hooks import secure_accelerator as secure_accelerator
from .deepspeed_hooks import secure_engine as secure_engine
from .lightning_plugins import lightning_environment as lightning_environment
from .lightning_plugins import lightning_hooks as lightning_hooks
from .mosaic_streaming import signed_stream as signed_stream
from .titan_hooks import secure_titan as secure_titan
from .trackers.following import DEFAULTS as DEFAULTS
from .trackers.following import TRACKERS as TRACKERS
from .trackers.following import Followed as Followed
from .trackers.following import check_trackers as check_trackers
from .trackers.following import follow_run as follow_run
from .trackers.following import open_tracker as open_tracker
from .transformers_hooks import secure_trainer as secure_trainer
from .versions import TESTED as TESTED
from .versions import framework as framework
from .web_dataset import signed_webdataset as signed_webdataset

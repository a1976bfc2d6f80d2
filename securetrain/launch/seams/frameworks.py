# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The calls by which frameworks write a directory, or read one: where they stand, and where to.

One row a call. A row says what a framework itself says of its call: which directory it writes,
which process writes into it, whether every process makes the call, and at which step it is. A
class or function that a version of a framework does not have is left out.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

Given: TypeAlias = tuple[Any, Sequence[Any], dict[str, Any]]
"""The object of which a method is called, and its arguments."""


def _argument(given: Given, place: int, name: str) -> Any:
    _, args, kwargs = given
    return args[place] if len(args) > place else kwargs.get(name)


def _always(_given: Given) -> bool:
    return True


def _no_step(_given: Given) -> int | None:
    return None


def _nothing(_given: Given) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSave:
    """A call that writes a directory."""

    modules: tuple[str, ...]
    """One name for each name under which the package is installed."""
    owner: str
    """The class."""
    call: str
    way: str
    """For people."""
    place: Callable[[Given], str]
    """The directory; empty where this call writes none that is known."""
    leads: Callable[[Given], bool] = _always
    """Whether this process signs the directory."""
    is_collective: Callable[[Given], bool] = lambda _given: False
    """Whether every process makes this call, by the framework's own contract."""
    step: Callable[[Given], int | None] = _no_step
    around: Callable[[Given], str] = _nothing
    """The directory in which files beside it are written, which are signed each."""
    is_later: Callable[[Given], bool] = lambda _given: False
    """Whether files are still written when the call has returned."""
    has_weights: bool = True
    """Whether it is noticed where nobody signs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderLoad:
    """A call that reads a directory."""

    modules: tuple[str, ...]
    owner: str
    """The class; empty for a function of the module."""
    call: str
    place: Callable[[Given], str]
    """The directory, or empty."""
    pointer: Callable[[Given], str] = _nothing
    """A file that says which of the directories around it is read."""
    point: Callable[[Given, str], Given] = lambda given, _name: given
    """The call again, with what that file says."""


# Transformers


def _trainer_place(given: Given) -> str:
    trainer, trial = given[0], _argument(given, 1, "trial")
    folder = trainer._get_output_dir(trial=trial)  # noqa: SLF001 - as the call itself does
    return os.path.join(folder, f"checkpoint-{trainer.state.global_step}")  # noqa: PTH118


def _model_place(given: Given) -> str:
    return _text(_argument(given, 0, "output_dir") or given[0].args.output_dir)


def _pretrained_place(given: Given) -> str:
    return _text(_argument(given, 0, "save_directory"))


def _is_main(given: Given) -> bool:
    return bool(given[2].get("is_main_process", given[1][1] if len(given[1]) > 1 else True))


def _resumed(given: Given) -> str:
    asked = _argument(given, 0, "resume_from_checkpoint")
    if asked is True:
        from transformers.trainer_utils import (  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415
            get_last_checkpoint,
        )

        asked = get_last_checkpoint(given[0].args.output_dir)
    return _text(asked)


_CONFIGS: Final = {
    "configuration_utils": ("PreTrainedConfig", "PretrainedConfig"),
    "feature_extraction_utils": ("FeatureExtractionMixin",),
    "generation.configuration_utils": ("GenerationConfig",),
    "image_processing_base": ("ImageProcessingMixin",),
    "processing_utils": ("ProcessorMixin",),
    "tokenization_mistral_common": ("MistralCommonBackend",),
    "tokenization_utils_base": ("PreTrainedTokenizerBase",),
    "video_processing_utils": ("BaseVideoProcessor",),
}
"""What saves no weights, into the directory of a model."""


# Accelerate


def _state_place(given: Given) -> str:
    accelerator = given[0]
    if accelerator.project_configuration.automatic_checkpoint_naming:
        name = f"checkpoint_{accelerator.save_iteration}"
        return str(Path(accelerator.project_dir, "checkpoints", name))
    return _text(_argument(given, 0, "output_dir"))


def _accelerator_leads(given: Given) -> bool:
    accelerator = given[0]
    each = accelerator.project_configuration.save_on_each_node
    return bool(accelerator.is_local_main_process if each else accelerator.is_main_process)


def _is_sharded(given: Given) -> bool:
    """Tell whether every process has to take part; with DDP a script may leave it to the first."""
    kind = getattr(given[0].distributed_type, "value", "")
    return kind in {"FSDP", "DEEPSPEED", "MEGATRON_LM"}


def _state_read(given: Given) -> str:
    accelerator, asked = given[0], _argument(given, 0, "input_dir")
    if asked is not None or not accelerator.project_configuration.automatic_checkpoint_naming:
        return "" if asked is None else os.path.expanduser(_text(asked))  # noqa: PTH111
    folder = Path(accelerator.project_dir, "checkpoints")
    numbered = [(int(found[-1]), one) for one in folder.iterdir() if (found := _numbers(one))]
    return str(max(numbered)[1]) if numbered else ""


def _numbers(path: Path) -> list[str]:
    return re.findall(r"[0-9]+", path.name)


# DeepSpeed


def _engine_tag(given: Given) -> str:
    tag = _argument(given, 1, "tag")
    return str(tag) if tag is not None else f"global_step{given[0].global_steps}"


def _engine_leads(given: Given) -> bool:
    engine = given[0]
    return bool((engine.local_rank if engine.use_node_local_storage() else engine.global_rank) == 0)


def _engine_read(given: Given) -> str:
    tag = _argument(given, 1, "tag")
    return "" if tag is None else os.path.join(_text(_argument(given, 0, "load_dir")), str(tag))  # noqa: PTH118


def _engine_pointer(given: Given) -> str:
    if _argument(given, 1, "tag") is not None:
        return ""
    name = "latest_universal" if given[0].load_universal_checkpoint() else "latest"
    return os.path.join(_text(_argument(given, 0, "load_dir")), name)  # noqa: PTH118


def _engine_pointed(given: Given, name: str) -> Given:
    engine, args, kwargs = given
    return engine, args[:1], {**kwargs, "tag": name}


# Lightning

_LIGHTNING: Final = ("lightning.pytorch", "pytorch_lightning")
_FABRIC: Final = ("lightning.fabric", "lightning_fabric")


def _below(packages: Sequence[str], name: str) -> tuple[str, ...]:
    return tuple(f"{package}.{name}" for package in packages)


def _first(name: str) -> Callable[[Given], str]:
    return lambda given: _text(_argument(given, 0, name))


def _text(path: Any) -> str:
    return os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""


SAVES: Final = (
    FolderSave(
        modules=("transformers.trainer",),
        owner="Trainer",
        call="_save_checkpoint",
        way="transformers.Trainer",
        place=_trainer_place,
        leads=lambda given: bool(given[0].args.should_save),
        is_collective=_always,
        step=lambda given: int(given[0].state.global_step),
    ),
    FolderSave(
        modules=("transformers.trainer",),
        owner="Trainer",
        call="save_model",
        way="transformers.Trainer.save_model",
        place=_model_place,
        leads=lambda given: bool(given[0].args.should_save),
        step=lambda given: int(given[0].state.global_step),
    ),
    FolderSave(
        modules=("transformers.modeling_utils",),
        owner="PreTrainedModel",
        call="save_pretrained",
        way="save_pretrained",
        place=_pretrained_place,
        leads=_is_main,
    ),
    FolderSave(
        modules=("peft.peft_model",),
        owner="PeftModel",
        call="save_pretrained",
        way="peft.save_pretrained",
        place=_pretrained_place,
        leads=lambda given: bool(given[2].get("is_main_process", True)),
    ),
    *(
        FolderSave(
            modules=(f"transformers.{module}",),
            owner=owner,
            call="save_pretrained",
            way="save_pretrained",
            place=_pretrained_place,
            has_weights=False,
        )
        for module, owners in _CONFIGS.items()
        for owner in owners
    ),
    FolderSave(
        modules=("accelerate.accelerator",),
        owner="Accelerator",
        call="save_state",
        way="accelerate.save_state",
        place=_state_place,
        leads=_accelerator_leads,
        is_collective=_is_sharded,
    ),
    FolderSave(
        modules=("accelerate.accelerator",),
        owner="Accelerator",
        call="save_model",
        way="accelerate.save_model",
        place=lambda given: _text(_argument(given, 1, "save_directory")),
        leads=_accelerator_leads,
    ),
    FolderSave(
        modules=("deepspeed.runtime.engine",),
        owner="DeepSpeedEngine",
        call="save_checkpoint",
        way="deepspeed.save_checkpoint",
        place=lambda given: os.path.join(_first("save_dir")(given), _engine_tag(given)),  # noqa: PTH118
        leads=_engine_leads,
        is_collective=_always,
        step=lambda given: int(given[0].global_steps),
        around=_first("save_dir"),
        is_later=lambda given: bool(given[0].checkpoint_engine.is_decoupled()),
    ),
    FolderSave(
        modules=_below(_LIGHTNING, "trainer.trainer"),
        owner="Trainer",
        call="save_checkpoint",
        way="lightning.Trainer",
        place=_first("filepath"),
        leads=lambda given: bool(given[0].is_global_zero),
        is_collective=_always,
        step=lambda given: int(given[0].global_step),
    ),
    FolderSave(
        modules=_below(_FABRIC, "fabric"),
        owner="Fabric",
        call="save",
        way="lightning.Fabric",
        place=_first("path"),
        leads=lambda given: bool(given[0].is_global_zero),
        is_collective=_always,
    ),
)
LOADS: Final = (
    FolderLoad(modules=("transformers.trainer",), owner="Trainer", call="train", place=_resumed),
    FolderLoad(
        modules=("transformers.trainer",),
        owner="Trainer",
        call="_load_best_model",
        place=lambda given: _text(given[0].state.best_model_checkpoint),
    ),
    FolderLoad(
        modules=("transformers.utils.hub",),
        owner="",
        call="cached_files",
        place=_first("path_or_repo_id"),
    ),
    FolderLoad(
        modules=("accelerate.accelerator",),
        owner="Accelerator",
        call="load_state",
        place=_state_read,
    ),
    FolderLoad(
        modules=("deepspeed.runtime.engine",),
        owner="DeepSpeedEngine",
        call="load_checkpoint",
        place=_engine_read,
        pointer=_engine_pointer,
        point=_engine_pointed,
    ),
    FolderLoad(
        modules=_below(_LIGHTNING, "trainer.connectors.checkpoint_connector"),
        owner="_CheckpointConnector",
        call="resume_start",
        place=_first("checkpoint_path"),
    ),
    FolderLoad(
        modules=_below(_FABRIC, "fabric"), owner="Fabric", call="load", place=_first("path")
    ),
)

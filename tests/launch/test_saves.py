# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The seams of saving, over modules like those of libraries that need not be installed."""

import io
import types
from pathlib import Path

import pytest

from securetrain.core.errors import RuntimeRefusal
from securetrain.launch.seams.saves import SaveWatch
from securetrain.ledger import events
from tests.vocabulary import refused


class Heard:
    """What a watch says, and in which order."""

    def __init__(self, *, required: bool = False, first: bool = True) -> None:
        self.order: list[str] = []
        self.recorded: list[events.CheckpointsNotSigned | events.UnsignedSaveRefused] = []
        self.watch = SaveWatch(
            is_required=required,
            is_first=first,
            say=lambda text: self.order.append(f"say {text}"),
            record=lambda make: self.recorded.append(make(events)),
            changed=lambda: self.order.append("report"),
        )

    def module(self, name, function):
        def save(*_args, **_kwargs):
            self.order.append("write")
            return "saved"

        module = types.ModuleType(name)
        setattr(module, function, save)
        self.watch.patches()[name](module)
        return getattr(module, function)


FILES = [
    ("torch.serialization", "save", "torch.save"),
    ("safetensors.torch", "save_file", "safetensors.torch.save_file"),
    ("safetensors.numpy", "save_file", "safetensors.numpy.save_file"),
    ("lightning.fabric.utilities.cloud_io", "_atomic_save", "lightning"),
    ("lightning_fabric.utilities.cloud_io", "_atomic_save", "lightning"),
]


@pytest.mark.parametrize(("module", "function", "way"), FILES)
@pytest.mark.parametrize("first", [True, False])
def test_a_save_to_a_file_is_reported_before_it_is_written(module, function, way, first):
    heard = Heard(first=first)
    save = heard.module(module, function)
    assert save({}, "/out/model.pt") == "saved"
    assert heard.order[0] == "report", "a death in the middle of a save leaves it said"
    assert heard.order[-1] == "write"
    assert save({}, Path("/out/other.pt")) == "saved"
    assert heard.watch.report().unsigned == {way: 2}
    assert heard.watch.report().places == ("/out/model.pt", "/out/other.pt")
    [said] = heard.recorded
    assert isinstance(said, events.CheckpointsNotSigned)
    assert (said.ways, said.place) == (way, "/out/model.pt")


@pytest.mark.parametrize(("module", "function", "way"), FILES)
def test_where_it_is_required_nothing_is_written(module, function, way):
    heard = Heard(required=True)
    error = refused(RuntimeRefusal, way, heard.module(module, function), {}, "/out/model.pt")
    assert error.code == "ST-RUNT-022"
    assert error.where == "/out/model.pt"
    assert "write" not in heard.order
    assert [type(said) for said in heard.recorded] == [events.UnsignedSaveRefused]


def test_memory_is_no_file_and_an_open_file_is_one(tmp_path):
    heard = Heard()
    save = heard.module("torch.serialization", "save")
    save({}, io.BytesIO())
    assert heard.watch.report().unsigned == {}
    with (tmp_path / "x.pt").open("wb") as file:
        save({}, f=file)
        save({}, open(file.fileno(), "wb", closefd=False))  # noqa: SIM115 - by number
    assert heard.watch.report().places == (str(tmp_path / "x.pt"), "an open file")


class Writer:
    """As torch's."""

    path = "/out/step-1"

    def write_data(self):
        """Nothing."""


class OurWriter(Writer):
    __module__ = "securetrain.artifacts.checkpoint.writer"


@pytest.mark.parametrize("name", ["save", "async_save", "save_state_dict"])
def test_a_distributed_save_is_ours_by_its_writer(name):
    heard = Heard()
    save = heard.module("torch.distributed.checkpoint.state_dict_saver", name)
    save({}, storage_writer=OurWriter())
    assert heard.watch.report().unsigned == {}
    save({}, storage_writer=Writer())
    save({}, checkpoint_id="s3://bucket/step-2")
    save({})
    assert heard.watch.report().unsigned == {f"dcp.{name}": 3}
    assert heard.watch.report().places == (
        *("/out/step-1", "s3://bucket/step-2", "an unknown place"),
    )


def test_what_all_ranks_do_together_one_rank_says():
    heard = Heard(first=False)
    heard.module("torch.distributed.checkpoint.state_dict_saver", "save")({}, checkpoint_id="/a")
    assert heard.watch.report().unsigned == {"dcp.save": 1}
    assert heard.recorded == []
    assert not any(one.startswith("say") for one in heard.order)


def test_a_name_of_a_file_repaints_no_screen():
    heard = Heard()
    heard.module("torch.serialization", "save")({}, "/out/\x1b[2J\nsecuretrain: succeeded")
    assert all(line.isprintable() for line in heard.order)

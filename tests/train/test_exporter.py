# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What was trained is read by others: the format's own formula computes what ours does."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from securetrain.artifacts import SaveContext, save
from securetrain.artifacts.model.signed_model import open_model
from securetrain.artifacts.verify import verify_path
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.train.exporter import export
from securetrain.train.models import hf
from securetrain.train.models.hf_weights import load_weights
from securetrain.train.models.init_weights import init_weights
from securetrain.train.models.llama import Llama
from securetrain.train.models.shape import ModelShape
from tests.train.jobs import flip
from tests.train.models.hf_files import logits, make, read_plainly
from tests.train.models.test_hf import KEY, NOW, TRUST, sign_ours

SHAPE = ModelShape(dim=32, layers=2, heads=4, kv_heads=2, ffn=48, vocab=300)
TOKENS = torch.arange(24).view(1, 24) * 11 % 300


def trained(path: Path, shape: ModelShape = SHAPE) -> Llama:
    """A checkpoint as a run saves it."""
    model = Llama(shape)
    init_weights(model, 5, shape)
    state = {f"model.{name}": one.detach() for name, one in model.named_parameters()}
    state["optim.step"] = torch.ones(1)
    save(state, path, key=KEY, context=SaveContext(run_id="r", step=4, created=NOW))
    return model


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("file_bytes", [1 << 30, 20_000])
def test_others_compute_what_we_do(tmp_path, tied, file_bytes):
    shape = ModelShape(dim=32, layers=2, heads=4, kv_heads=2, ffn=48, vocab=300, tied=tied)
    model = trained(tmp_path / "c", shape)
    made = export(
        tmp_path / "c", tmp_path / "out", shape, trust=TRUST, key=KEY, now=NOW,
        file_bytes=file_bytes,
    )  # fmt: skip
    assert (made.num_files > 1) is (file_bytes == 20_000)
    config = json.loads((made.path / "config.json").read_text())
    found = read_plainly(made.path)
    with torch.no_grad():
        ours = model(TOKENS, torch.arange(24))
    assert float((logits(config, found, TOKENS) - ours).abs().max()) < 1e-4
    if made.num_files > 1:
        said = json.loads((made.path / "model.safetensors.index.json").read_text())
        assert set(said["weight_map"]) == set(found)
        assert all((made.path / file).is_file() for file in said["weight_map"].values())


def test_it_is_signed_and_reads_back_as_weights(tmp_path):
    model = trained(tmp_path / "c")
    made = export(tmp_path / "c", tmp_path / "out", SHAPE, trust=TRUST, key=KEY, now=NOW)
    result = verify_path(made.path, trust=TRUST, policy=None, now=NOW)
    assert result.ok
    source = verify_path(tmp_path / "c", trust=TRUST, policy=None, now=NOW)
    said: Any = result.statement
    assert [(p.role, p.digest) for p in said.parents] == [("base", source.digest)]
    opened = open_model(made.path, trust=TRUST, policy=None, now=NOW)
    assert opened.digest == made.digest
    shape = hf.shape_of(opened.document(hf.CONFIG), "")
    hf.check_tensors(opened, shape)
    again = Llama(shape)
    load_weights(again.named_parameters(), opened)
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_short_floats(tmp_path):
    trained(tmp_path / "c")
    export(tmp_path / "c", tmp_path / "out", SHAPE, trust=TRUST, key=KEY, now=NOW, dtype="bfloat16")
    assert {one.dtype for one in read_plainly(tmp_path / "out").values()} == {torch.bfloat16}


def test_the_documents_of_the_base_go_along(tmp_path):
    base = make(tmp_path / "base")
    (base / "tokenizer.json").write_text("{}")
    sign_ours(base)
    trained(tmp_path / "c")
    opened = open_model(base, trust=TRUST, policy=None, now=NOW)
    export(tmp_path / "c", tmp_path / "out", SHAPE, trust=TRUST, key=KEY, now=NOW, base=opened)
    for name in ("config.json", "tokenizer.json"):
        assert (tmp_path / "out" / name).read_bytes() == (base / name).read_bytes()


def test_a_checkpoint_that_was_changed_leaves_nothing(tmp_path):
    trained(tmp_path / "c")
    path = next((tmp_path / "c").glob("rank-*.bin"))
    flip(path, path.stat().st_size // 2)
    with pytest.raises(IntegrityError, match="ST-CKPT-130"):
        export(tmp_path / "c", tmp_path / "out", SHAPE, trust=TRUST, key=KEY, now=NOW)
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_what_does_not_fit_is_refused(tmp_path):
    trained(tmp_path / "c")
    with pytest.raises(UsageError, match="ST-USAG-012"):
        export(
            tmp_path / "c", tmp_path / "out", ModelShape(dim=32, layers=3, heads=4, ffn=48),
            trust=TRUST, key=KEY, now=NOW,
        )  # fmt: skip
    with pytest.raises(UsageError, match="ST-USAG-016"):
        export(
            tmp_path / "c", tmp_path / "out", ModelShape(experts=4), trust=TRUST, key=KEY, now=NOW
        )
    (tmp_path / "out").mkdir()
    with pytest.raises(UsageError, match="ST-USAG-005"):
        export(tmp_path / "c", tmp_path / "out", SHAPE, trust=TRUST, key=KEY, now=NOW)

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A whole directory that a trusted key signed, put in the place of the one that was asked for."""

import shutil
from datetime import timedelta

import msgspec
import pytest
import torch
from msgspec.structs import replace

from securetrain.artifacts.checkpoint.load import load
from securetrain.artifacts.checkpoint.save import save
from securetrain.artifacts.dataset.verified import Dataset
from securetrain.artifacts.dataset.write import sign_dataset
from securetrain.artifacts.lineage.judging import Floors, Freshness
from securetrain.artifacts.model.oms import sign_model
from securetrain.artifacts.model.signed_model import open_model
from securetrain.artifacts.model.signers import KeySigner, ModelRoots, load_private
from securetrain.artifacts.statement.context import SaveContext
from securetrain.artifacts.statement.expectation import Expectation
from securetrain.artifacts.statement.statements import digest_of
from securetrain.artifacts.verify import verify_path
from securetrain.chain.verifying import Options, Signing, verify
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.policy.load import load_policy
from securetrain.policy.schema import Expect
from tests.identity.worlds import private_pem, public_pem
from tests.tables import items
from tests.vocabulary import refused

PROD = {"run_id": "prod", "name": "prod-model", "step": 400, "seq": 4}
TOY = {"run_id": "toy", "name": "toy-model", "step": 8, "seq": 1}


def saved(path, keys, now, said, value):
    context = SaveContext(created=now - timedelta(hours=1), **said)
    return save({"w": torch.full((64,), value)}, path, key=keys.checkpoint, context=context).digest


@pytest.fixture
def swapped(tmp_path, keys, now):
    """The run's place with the toy's checkpoint in it, and the digest that was asked for."""
    place, toy = tmp_path / "prod", tmp_path / "toy"
    digest = saved(place, keys, now, PROD, 1.0)
    saved(toy, keys, now, TOY, 2.0)
    shutil.rmtree(place)
    shutil.copytree(toy, place)
    return place, digest


def asked_of_toy(digest):
    """What somebody who wants the run's checkpoint may ask, and the code that refuses the toy's."""
    return [
        ({"run": "prod"}, "ST-CKPT-125"),
        ({"name": "prod-model"}, "ST-CKPT-126"),
        ({"digest": digest}, "ST-CKPT-127"),
        ({"signer": "a" * 64}, "ST-CKPT-128"),
        ({"step": 400}, "ST-CKPT-127"),
        ({"dataset": "a" * 64}, "ST-CKPT-127"),
        ({"dataset": "prose"}, "ST-CKPT-127"),
        ({"policy": "baseline"}, "ST-CKPT-127"),
        ({"min_step": 9}, "ST-CKPT-154"),
        ({"min_version": 2}, "ST-CKPT-154"),
    ]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_stock_torch_takes_the_checkpoint_of_another_run(tmp_path):
    """The attack: nothing in torch's format says whose it is."""
    from torch.distributed.checkpoint.state_dict_loader import load as stock_load
    from torch.distributed.checkpoint.state_dict_saver import save as stock_save

    for name, value in (("prod", 1.0), ("toy", 2.0)):
        stock_save({"w": torch.full((4,), value)}, checkpoint_id=tmp_path / name, no_dist=True)
    shutil.rmtree(tmp_path / "prod")
    shutil.copytree(tmp_path / "toy", tmp_path / "prod")
    state = {"w": torch.zeros(4)}
    stock_load(state, checkpoint_id=tmp_path / "prod", no_dist=True)
    assert state["w"].tolist() == [2.0] * 4


def test_without_an_expectation_it_is_taken_and_that_is_said(swapped, trust, now, tmp_path):
    """The positive control, with the floors of both runs: they are kept by run."""
    place, _ = swapped
    state = {"w": torch.zeros(64)}
    known = Freshness(floors=Floors(tmp_path / "floors.json"))
    load(state, place, trust=trust, policy=None, now=now, freshness=known)
    assert state["w"][0] == 2.0
    found = verify(place, trust=trust, now=now)
    assert found.ok
    assert tuple(found.not_asked) == (
        "run",
        "step",
        "dataset",
        "policy",
        "name",
        "digest",
        "signer",
    )


@pytest.mark.parametrize("number", range(6))
def test_a_swapped_checkpoint_is_refused(swapped, trust, now, number):
    place, digest = swapped
    fields, code = asked_of_toy(digest)[number]
    expect = Expectation(**fields)
    state = {"w": torch.full((64,), 7.0)}
    with pytest.raises(IntegrityError) as error:
        load(state, place, trust=trust, policy=None, now=now, expect=expect)
    assert error.value.code == code
    assert 2.0 not in state["w"]
    result = verify_path(place, trust=trust, policy=None, now=now, expect=expect)
    assert [problem.code for problem in result.problems] == [code]
    assert result.exit_code == (15 if code.endswith("154") else 12)


@pytest.mark.parametrize("number", range(6))
def test_a_policy_expects_too(swapped, trust, now, number):
    place, digest = swapped
    fields, code = asked_of_toy(digest)[number]
    loaded = load_policy("dev")
    checkpoint = replace(loaded.policy.checkpoint, expect=Expect(**fields))
    policy = replace(loaded.policy, checkpoint=checkpoint)
    with pytest.raises(IntegrityError) as error:
        load({"w": torch.zeros(64)}, place, trust=trust, policy=policy, now=now)
    assert error.value.code == code


def test_the_right_one_meets_every_expectation(tmp_path, keys, trust, now):
    digest = saved(tmp_path / "prod", keys, now, PROD, 1.0)
    expect = Expectation(
        run="prod",
        name="prod-model",
        digest=digest,
        signer=keys.checkpoint.key_id,
        min_step=400,
        min_version=4,
    )
    state = {"w": torch.zeros(64)}
    load(state, tmp_path / "prod", trust=trust, policy=None, now=now, expect=expect)
    assert state["w"][0] == 1.0
    found = verify(tmp_path / "prod", expect, trust=trust, now=now)
    assert found.ok
    assert tuple(found.not_asked) == ("dataset", "policy")


def test_all_that_does_not_hold_is_named(swapped, trust, now):
    place, digest = swapped
    expect = Expectation(run="prod", name="prod-model", digest=digest, min_step=400)
    result = verify_path(place, trust=trust, policy=None, now=now, expect=expect)
    codes = ["ST-CKPT-125", "ST-CKPT-126", "ST-CKPT-127", "ST-CKPT-154"]
    assert [problem.code for problem in result.problems] == codes


def test_equal_weights_of_another_run_are_another_run(tmp_path, keys, trust, now):
    """The digest is of the content: of two runs with one seed it is the same at step 0."""
    context = {**PROD, "save_id": "1" * 32}
    same = saved(tmp_path / "prod", keys, now, context, 1.0)
    other = {**TOY, "save_id": "2" * 32}
    assert saved(tmp_path / "toy", keys, now, other, 1.0) == same
    with pytest.raises(IntegrityError) as error:
        load(
            {"w": torch.zeros(64)},
            tmp_path / "toy",
            trust=trust,
            policy=None,
            now=now,
            expect=Expectation(digest=same, run="prod"),
        )
    assert error.value.code == "ST-CKPT-125"


# Datasets.

WRONG_DATASETS = [
    ({"run": "prod"}, "ST-DATA-125"),
    ({"name": "corpus"}, "ST-DATA-126"),
    ({"digest": "b" * 64}, "ST-DATA-127"),
    ({"signer": "a" * 64}, "ST-DATA-128"),
    ({"step": 0}, "ST-DATA-127"),
    ({"dataset": "prose"}, "ST-DATA-127"),
    ({"policy": "dev"}, "ST-DATA-127"),
    ({"min_step": 0}, "ST-DATA-154"),
    ({"min_version": 1}, "ST-DATA-154"),
]


@pytest.fixture
def dataset(tmp_path, keys, now):
    raw, path = tmp_path / "raw", tmp_path / "data"
    raw.mkdir()
    (raw / "train.bin").write_bytes(b"words " * 1000)
    sign_dataset(raw, path, name="toy-corpus", key=keys.dataset, now=now)
    return path


@pytest.mark.parametrize(("fields", "code"), WRONG_DATASETS)
def test_a_swapped_dataset_is_refused(dataset, trust, now, fields, code):
    with pytest.raises(IntegrityError) as error:
        Dataset.open(dataset, trust=trust, policy=None, now=now, expect=Expectation(**fields))
    assert error.value.code == code
    result = verify_path(dataset, trust=trust, policy=None, now=now, expect=Expectation(**fields))
    assert [problem.code for problem in result.problems] == [code]


def test_the_right_dataset_opens(dataset, keys, trust, now):
    plain = Dataset.open(dataset, trust=trust, policy=None, now=now)
    expect = Expectation(
        name="toy-corpus", digest=plain.digest, signer=keys.dataset.key_id, min_version=0
    )
    Dataset.open(dataset, trust=trust, policy=None, now=now, expect=expect)
    found = verify(dataset, trust=trust, now=now)
    assert tuple(found.not_asked) == ("name", "digest", "signer")


# Models of other makers.


@pytest.fixture
def bundled(tmp_path, keys):
    from cryptography.hazmat.primitives.asymmetric import ec

    path = tmp_path / "llama"
    path.mkdir()
    (path / "config.json").write_bytes(b"{}")
    key = ec.generate_private_key(ec.SECP256R1())
    private = private_pem(key)
    public = tmp_path / "maker.pem"
    public.write_bytes(public_pem(key))
    signer = KeySigner(key=load_private(private, None, ""))
    sign_model(path, path / "model.sig", signer)
    return path, ModelRoots(public_key=public)


@items(
    "fields, codes",
    ({"name": "llama"}, []),
    ({"name": "llama-2"}, ["ST-OMSB-126"]),
    ({"digest": "b" * 64}, ["ST-OMSB-127"]),
)
def test_a_swapped_model_is_refused(bundled, now, fields, codes):
    path, roots = bundled
    expect = Expectation(**fields)
    options = Options(signing=Signing(bundle=path / "model.sig", roots=roots))
    result = verify(path, expect, now=now, options=options)
    assert [problem.code for problem in result.problems] == codes


@pytest.mark.parametrize(
    "field", ["run", "signer", "step", "dataset", "policy", "min_step", "min_version"]
)
def test_what_no_bundle_has_is_never_passed_over(bundled, now, field):
    path, roots = bundled
    expect = msgspec.convert(
        {field: 1 if "step" in field or "version" in field else "x"}, Expectation
    )
    with pytest.raises(UsageError) as error:
        verify(
            path,
            expect,
            now=now,
            options=Options(signing=Signing(bundle=path / "model.sig", roots=roots)),
        )
    assert error.value.code == "ST-USAG-001"


def test_weights_to_start_from(tmp_path, keys, trust, now):
    from securetrain.artifacts.model.safetensors_folder import sign_safetensors

    path = tmp_path / "weights"
    path.mkdir()
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    data = len(header).to_bytes(8, "little") + header + bytes(4)
    (path / "model.safetensors").write_bytes(data)
    context = SaveContext(run_id="", name="llama", step=0, created=now, save_id="0" * 32)
    said = sign_safetensors(path, key=keys.checkpoint, context=context)
    right = Expectation(name="llama", digest=digest_of(said))
    assert open_model(path, trust=trust, policy=None, now=now, expect=right).predicate == said
    with pytest.raises(IntegrityError) as error:
        open_model(path, trust=trust, policy=None, now=now, expect=Expectation(name="mistral"))
    assert error.value.code == "ST-CKPT-126"


# What is expected.


def test_an_expectation_that_expects_nothing_is_an_error():
    """A variable that was never set must not turn a question into none."""
    for fields in (
        {"run": ""},
        {"name": ""},
        {"digest": ""},
        {"signer": ""},
        {"digest": "AB" * 32},
        {"digest": "sha256:" + "a" * 64},
        {"min_step": -1},
        {"min_version": -1},
        {"step": -1},
        {"step": 3, "min_step": 4},
        {"dataset": ""},
        {"policy": ""},
        {"name": "x" * 1025},
    ):
        refused(UsageError, "ST-USAG-001", Expectation, **fields)


def test_two_expectations_are_both_or_an_error():
    """What the catalogue says and what the caller asks: neither replaces the other."""
    mine = Expectation(name="a", min_step=3)
    both = Expectation(name="a", run="r", min_step=4)
    assert mine.and_also(Expectation(name="a", run="r", min_step=4)) == both
    assert both.and_also(mine) == both
    refused(UsageError, "ST-USAG-001", mine.and_also, Expectation(name="b"))

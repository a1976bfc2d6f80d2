# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The weights that a job starts from, and what they decide about the job.

`model.weights` names a signed directory in the format of Hugging Face. Its config.json, verified
like everything else of it, gives the sizes: the job goes on as if they stood in it. A size that the
job gives besides, and that is another one, is refused and not overruled in silence.
"""

from datetime import datetime
from pathlib import Path

import msgspec

from securetrain.artifacts.model import SignedModel, open_model
from securetrain.core.files import local_file, read_file
from securetrain.identity import load_trust
from securetrain.identity.trust import TrustRoot
from securetrain.policy.schema import Policy
from securetrain.train.config import JobConfig, ModelJob, bad_field
from securetrain.train.models import hf
from securetrain.train.models.shape import ModelShape


def trust_of_inputs(job: JobConfig, run_trust: TrustRoot, now: datetime) -> TrustRoot:
    """The trust root for inputs that come from outside of the run.

    Raises:
        IdentityError: ST-IDEN-008 when the trust root that the job names is not valid.
        UsageError: ST-USAG-002 when it cannot be read.
    """
    return run_trust if job.trust is None else load_trust(local_file(job.trust), now)


def open_weights(
    job: JobConfig, where: str, *, trust: TrustRoot, policy: Policy | None, now: datetime
) -> tuple[JobConfig, SignedModel | None]:
    """Open what `model.weights` names.

    Returns:
        The job with the model's sizes, and the model; the job as it was when it names none.

    Raises:
        UsageError: ST-USAG-007 naming the field, ST-USAG-016 when the model is not supported.
        IntegrityError: ST-CKPT-100 to 200, ST-OMSB-100 to 200.
    """
    name = job.model.weights
    if name is None:
        return job, None
    path = local_file(name)
    if not path.is_dir():
        raise bad_field(
            f"there is no directory {name}",
            where,
            "model.weights",
            "a signed directory with config.json and safetensors files, and in trust: the keys"
            " that may sign it",
            path=path,
        )
    model = open_model(path, trust=trust, policy=policy, now=now)
    shape = hf.shape_of(model.document(hf.CONFIG), str(path / hf.CONFIG))
    hf.check_tensors(model, shape)
    return _sized(job, shape, where), model


def with_unverified_sizes(job: JobConfig, where: str) -> JobConfig:
    """The job with the sizes that config.json of its weights says, whoever wrote it: for planning,
    where nothing is loaded and nobody has said whom to trust.

    Raises:
        UsageError: ST-USAG-002 without the file, ST-USAG-007, ST-USAG-016.
    """
    if job.model.weights is None:
        return job
    path = Path(job.model.weights) / hf.CONFIG
    return _sized(job, hf.shape_of(read_file(path, hf.CONFIG_LIMIT), str(path)), where)


def _sized(job: JobConfig, shape: ModelShape, where: str) -> JobConfig:
    sizes = ModelJob(
        weights=job.model.weights,
        dim=shape.dim,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        ffn=shape.ffn,
        vocab=shape.vocab,
        rope_theta=shape.rope_theta,
        rope_scaling=shape.rope_scaling,
        norm_eps=shape.norm_eps,
        tied=shape.tied,
    )
    _check_same(job.model, sizes, where)
    return msgspec.structs.replace(job, model=sizes)


def _check_same(given: ModelJob, found: ModelJob, where: str) -> None:
    for field in msgspec.structs.fields(ModelJob):
        said, true = getattr(given, field.name), getattr(found, field.name)
        if said not in {field.default, true}:
            raise bad_field(
                f"{said}, but config.json of the weights says {true}",
                where,
                f"model.{field.name}",
                "leave it out: the weights decide",
            )

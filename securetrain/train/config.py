# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The job file: what to train, on what, how. Free of torch: the command line reads it too.

Rules:

1. at most 64 KiB of the safe YAML subset, one document;
2. unknown fields are errors; every error names the file, the field and what to write instead;
3. numbers have bounds here, so that nothing absurd reaches torch;
4. what the number of processes decides is checked in composition.py, before any model is built.
"""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.artifacts import Expectation
from securetrain.core.errors import PolicyError, UsageError
from securetrain.core.files import read_file
from securetrain.parallel import (
    Compression,
    ContextKind,
    Precision,
    Recompute,
    Schedule,
    Settings,
    Zero,
    default_microbatches,
    nearest_divisor,
)
from securetrain.policy.load import parse_yaml
from securetrain.policy.schema import Expect
from securetrain.train.models.shape import ModelShape, RopeScaling

API_VERSION: Final = "securetrain.dev/job/v1"
KIND: Final = "TrainJob"
FILE_LIMIT: Final = 64 << 10
NAME: Final = r"^[a-z0-9][a-z0-9-]{0,62}$"
AUTO: Final = "auto"
NEVER: Final = "never"


Degree: TypeAlias = Annotated[int, Meta(ge=1, le=1 << 20)]


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A mapping of the job file."""


class ModelJob(_Section, frozen=True, kw_only=True):
    """The sizes of a model of the Llama family."""

    weights: Annotated[str, Meta(min_length=1)] | None = None
    """A signed directory in the format of Hugging Face to start from; its config.json then gives
    the sizes.
    """
    dim: Annotated[int, Meta(ge=8, le=65536)] = 192
    """Width of what layers pass on."""
    layers: Annotated[int, Meta(ge=1, le=1024)] = 4
    """Blocks of attention and feed-forward network."""
    heads: Annotated[int, Meta(ge=1, le=1024)] = 6
    """Heads of queries."""
    kv_heads: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """Heads of keys and values, each shared by heads / kv_heads queries; null: as many as heads."""
    head_size: Annotated[int, Meta(ge=2, le=1024)] | None = None
    """Elements of a head; null: dim / heads."""
    ffn: Annotated[int, Meta(ge=8, le=1 << 20)] = 512
    """Width of the feed-forward network."""
    vocab: Annotated[int, Meta(ge=2, le=1 << 24)] = 256
    """Tokens that there are; 256 for bytes."""
    rope_theta: Annotated[float, Meta(gt=1.0, le=1e9)] = 10_000.0
    """Base of the rotary positions' wavelengths."""
    rope_scaling: RopeScaling | None = None
    """Stretched positions, as Llama 3.1 has them: factor, low, high, length."""
    norm_eps: Annotated[float, Meta(gt=0.0, le=1.0)] = 1e-5
    tied: bool = False
    """Whether the head is the embedding's matrix."""
    experts: Annotated[int, Meta(ge=0, le=1 << 16)] = 0
    """Experts of each layer, each of width ffn; 0 is a dense model."""
    experts_per_token: Annotated[int, Meta(ge=1, le=1024)] = 2
    """How many of them compute a token."""
    expert_balance: Annotated[float, Meta(ge=0.0, le=1.0)] = 1e-3
    """How far a step moves the bias that evens out the load of experts; 0: not at all."""


class Format(StrEnum):
    """The layout of data in the files of a dataset."""

    BYTES = "bytes"
    TOKENS = "tokens"
    TEXT = "text"
    JSONL = "jsonl"
    PARQUET = "parquet"


class RowOrder(StrEnum):
    """The rule that decides where rows begin."""

    RANDOM = "random"
    EPOCHS = "epochs"


class DataJob(_Section, frozen=True, kw_only=True):
    """The data that the model reads."""

    dataset: Annotated[str, Meta(min_length=1)] | None = None
    """A signed dataset's directory; null is the run directory's own."""
    train_split: Annotated[str, Meta(min_length=1)] = "train"
    validation_split: Annotated[str, Meta(min_length=1)] | None = "validation"
    """The held-out split; null trains without validation."""
    format: Format | None = None
    """bytes: files are text, a byte is a token; tokens: numbers of token_bytes; text: a document is
    a file; jsonl: a line; parquet: a row. null: what the dataset's statement says.
    """
    field: Annotated[str, Meta(min_length=1, max_length=256)] = "text"
    """Where a jsonl or parquet document has its text."""
    token_bytes: Literal[2, 4] | None = None
    """The width of tokens, little-endian; null: what the dataset's statement says."""
    tokenizer: Annotated[str, Meta(min_length=1)] = "bytes"
    """For documents: bytes, or a tokenizer.json: dataset:NAME and model:NAME are files of what is
    signed, anything else is a path and needs tokenizer_sha256.
    """
    tokenizer_sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")] | None = None
    eos: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """The token that ends a document; null: the usual one, if the tokenizer has exactly one."""
    order: RowOrder | None = None
    """random: rows begin anywhere and data never ends; epochs: each window once an epoch. null:
    random for bytes and tokens, epochs for documents.
    """
    epochs: Annotated[int, Meta(ge=1, le=1 << 20)] = 1
    """How often data may be gone through; a job that needs more is refused."""
    prefetch: Annotated[int, Meta(ge=0, le=64)] = 2
    """Steps whose rows are made ahead; 0: none."""
    seq_len: Annotated[int, Meta(ge=8, le=1 << 20)] = 128
    """Tokens of a row."""
    batch_rows: Annotated[int, Meta(ge=1, le=1 << 20)] = 16
    """Rows of one step, over all ranks."""


class ParallelJob(_Section, frozen=True, kw_only=True):
    """The way in which ranks share the work."""

    pp: Degree = 1
    """Pipeline ranks: each holds some of the layers."""
    dp_replicate: Degree = 1
    """Copies of the model that see different rows."""
    dp_shard: Degree | Literal["auto"] = "auto"
    """Ranks that share one copy; auto takes what the other axes leave."""
    cp: Degree = 1
    """Ranks that share the positions of a row."""
    tp: Degree = 1
    """Ranks that share each matrix, and between matrices the positions."""
    ep: Degree = 1
    """Ranks that share the experts of a layer; borrowed from dp_shard, cp and tp."""
    zero: Zero = Zero.PARAMETERS
    """The state that dp_shard ranks share: 1 optimizer, 2 also gradients, 3 also parameters."""
    cpu_offload: bool = False
    """Keep parameters, gradients and optimizer state in host memory."""
    microbatches: Annotated[int, Meta(ge=1, le=1 << 20)] | Literal["auto"] = "auto"
    """Pieces of a rank's rows: they fill a pipeline, or else accumulate gradients."""
    schedule: Schedule = Schedule.ONE_F_ONE_B
    """How a pipeline's stages take turns."""
    reduce_each_microbatch: bool = False
    """In a pipeline: share gradients after each microbatch, where torch keeps them whole, in
    float32, until the last one. Less memory, more messages.
    """
    context: ContextKind = ContextKind.ALL_GATHER
    """How ranks that share positions attend to each other's."""
    async_tp: bool = False
    """Overlap tensor-parallel messages with matrix products (CUDA, compiled)."""
    compression: Compression = Compression.NONE
    """How DDP's gradients travel."""


class ComputeJob(_Section, frozen=True, kw_only=True):
    """The settings of one rank's computation."""

    recompute: Recompute = Recompute.NONE
    """Activation checkpointing: none, selective, alternate or full."""
    compile: bool = False
    """Compile each block."""
    float8: bool = False
    """Matrix products of the blocks in float8 (CUDA of capability 8.9 and more)."""


class RateSchedule(StrEnum):
    """The course of the learning rate after the warm-up."""

    COSINE = "cosine"
    """Half a cosine over all steps, down to `floor`."""
    WSD = "wsd"
    """Warm-up, stable, decay (Hu et al. 2024, arXiv:2404.06395): constant, then linearly down to
    `floor` in the last `decay_steps`.
    """
    CONSTANT = "constant"


class OptimizerJob(_Section, frozen=True, kw_only=True):
    """AdamW, and what its learning rate does."""

    lr: Annotated[float, Meta(gt=0.0, le=1.0)] = 3e-3
    """The highest learning rate."""
    warmup_steps: Annotated[int, Meta(ge=0)] = 40
    """Steps in which it rises from zero."""
    weight_decay: Annotated[float, Meta(ge=0.0, le=10.0)] = 0.1
    """Of matrices; vectors do not decay."""
    betas: tuple[
        Annotated[float, Meta(ge=0.0, lt=1.0)],
        Annotated[float, Meta(ge=0.0, lt=1.0)],
    ] = (0.9, 0.95)
    clip: Annotated[float, Meta(gt=0.0, le=1e6)] = 1.0
    """The largest norm of a step's gradient."""
    schedule: RateSchedule = RateSchedule.COSINE
    """cosine, wsd or constant, after the warm-up."""
    decay_steps: Annotated[int, Meta(ge=0)] | Literal["auto"] = "auto"
    """How many steps at the end wsd decays over; auto: a fifth."""
    floor: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.1
    """The last learning rate, as a part of lr."""


class CheckpointJob(_Section, frozen=True, kw_only=True):
    """The settings of checkpoints: when to save, and where to start from."""

    every: Annotated[int, Meta(ge=0)] = 100
    """Steps between checkpoints; the last step always saves. 0: only the last."""
    resume: Annotated[str, Meta(min_length=1)] = AUTO
    """auto: the run's newest checkpoint, if any; never; or a checkpoint's directory."""
    expect: Expect | None = None
    """What `resume` must hold: run, name, digest, signer, step, dataset, policy, min_step or
    min_version."""
    decryption_key: str = ""
    """X25519 private key file with which an encrypted checkpoint is resumed, or secret:NAME for a
    named secret of the policy; empty for none."""
    background: bool = False
    """Copy the state and go on; the copy is written meanwhile. One at a time."""
    keep: Annotated[int, Meta(ge=0)] = 0
    """How many of the newest checkpoints stay; 0: all."""
    keep_every: Annotated[int, Meta(ge=0)] = 0
    """Checkpoints of steps that this divides stay for good; 0: none."""
    tables: bool = False
    """Keep what ranks say of gradients (tens of kB a step), for `securetrain pack --tables`."""

    def expected(self) -> Expectation | None:
        """The checkpoint that is wanted."""
        return None if self.expect is None else Expectation(**msgspec.structs.asdict(self.expect))


class MetricsJob(_Section, frozen=True, kw_only=True):
    """The settings of metrics: which are written, and how often."""

    every: Annotated[int, Meta(ge=1)] = 1
    """Steps between lines of metrics.jsonl."""
    console_every: Annotated[int, Meta(ge=0)] = 10
    """Steps between lines on standard output; 0: none."""
    tensorboard: bool = True
    prometheus: bool = True
    """metrics.prom, for node-exporter's textfile collector."""


class EvalJob(_Section, frozen=True, kw_only=True):
    """Validation on the held-out split."""

    every: Annotated[int, Meta(ge=0)] = 100
    """Steps between evaluations; the last step always evaluates. 0: only the last."""
    rows: Annotated[int, Meta(ge=1, le=1 << 20)] = 64
    """Rows of an evaluation, over all ranks."""


class ProfileJob(_Section, frozen=True, kw_only=True):
    """A window of steps under torch's profiler."""

    start: Annotated[int, Meta(ge=1)] = 10
    """The first step of the window."""
    steps: Annotated[int, Meta(ge=0, le=1000)] = 0
    """How many; 0: none."""


class LaunchJob(_Section, frozen=True, kw_only=True):
    """The number of processes that `securetrain train` starts."""

    nproc_per_node: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Processes on each node."""
    nnodes: Annotated[int, Meta(ge=1, le=65536)] = 1
    device: Annotated[str, Meta(min_length=1)] | None = None
    """The accelerator that `securetrain plan` compares with: h100, h200, ...; null: none."""


class JobConfig(_Section, frozen=True, kw_only=True):
    """A whole job file."""

    apiVersion: str  # noqa: N815 - the field's name in the file
    kind: str
    name: Annotated[str, Meta(pattern=NAME)]
    """Lower-case letters, digits and hyphens."""
    seed: Annotated[int, Meta(ge=0, lt=1 << 53)] = 0
    """Of first weights and of the order of data."""
    steps: Annotated[int, Meta(ge=1, le=1 << 40)]
    """Optimizer steps of the whole run."""
    precision: Precision = Precision.FP32
    """fp32 or bf16: what is computed in; parameters stay in float32."""
    trust: Annotated[str, Meta(min_length=1)] | None = None
    """The trust root (a file, or a folder of securetrain trust update) that verifies data.dataset,
    model.weights and another run's checkpoint; null: the run's own, whose keys are its own.
    """
    model: ModelJob = ModelJob()
    data: DataJob = DataJob()
    parallel: ParallelJob = ParallelJob()
    compute: ComputeJob = ComputeJob()
    optimizer: OptimizerJob = OptimizerJob()
    checkpoint: CheckpointJob = CheckpointJob()
    metrics: MetricsJob = MetricsJob()
    eval: EvalJob = EvalJob()
    profile: ProfileJob = ProfileJob()
    launch: LaunchJob = LaunchJob()


def load_job(path: Path) -> JobConfig:
    """Read a job file.

    Raises:
        UsageError: ST-USAG-002 when it cannot be read, ST-USAG-007 naming file and field.
    """
    try:
        text = read_file(path, FILE_LIMIT).decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad_field("not UTF-8", str(path), "", "save it as UTF-8") from error
    return parse_job(text, str(path))


def parse_job(text: str, where: str) -> JobConfig:
    """Parse and check the text of a job file; `where` names it in messages.

    Raises:
        UsageError: ST-USAG-007 naming `where` and the field.
    """
    try:
        document = parse_yaml(text, where)
    except PolicyError as error:
        raise UsageError("ST-USAG-007", error.what, error.where, error.fix) from error
    if not isinstance(document, dict):
        raise bad_field("not a mapping", where, "", "start from examples/fsdp.yaml")
    job = _convert(document, where)
    _check(job, where)
    return job


def override(
    job: JobConfig, where: str, *, steps: int | None = None, resume: str | None = None
) -> JobConfig:
    """The job with what the command line says, checked again.

    Raises:
        UsageError: ST-USAG-007.
    """
    document = msgspec.to_builtins(job)
    if steps is not None:
        document["steps"] = steps
    if resume is not None:
        document["checkpoint"]["resume"] = resume
    changed = _convert(document, f"{where} with the command line's options")
    _check(changed, where)
    return changed


def shape_of(job: JobConfig) -> ModelShape:
    """The model's sizes."""
    sizes = msgspec.structs.asdict(job.model)
    del sizes["weights"]
    return ModelShape(**sizes)


def settings_of(job: JobConfig) -> Settings:
    """The settings for making the job's model parallel."""
    asked, compute = job.parallel, job.compute
    return Settings(
        precision=job.precision,
        zero=asked.zero,
        cpu_offload=asked.cpu_offload,
        microbatches=default_microbatches(asked.pp)
        if asked.microbatches == AUTO
        else int(asked.microbatches),
        schedule=asked.schedule,
        reduce_each_microbatch=asked.reduce_each_microbatch,
        context=asked.context,
        recompute=compute.recompute,
        compile=compute.compile,
        async_tp=asked.async_tp,
        float8=compute.float8,
        compression=asked.compression,
    )


def bad_field(
    what: str, where: str, field: str, fix: str, *, path: Path | None = None
) -> UsageError:
    """The one error of this module; `path` is a file that the field names and that is not there."""
    return UsageError("ST-USAG-007", what, f"{where}: {field}" if field else where, fix, path=path)


def _convert(document: dict[Any, Any], where: str) -> JobConfig:
    _check_names(document, JobConfig, "", where)
    try:
        return msgspec.convert(document, JobConfig, strict=True)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        field = path.strip("`").removeprefix("$").removeprefix(".")
        if missing := re.search(r"missing required field `([^`]*)`", what):
            field = f"{field}.{missing[1]}" if field else missing[1]
        raise bad_field(what, where, field, _fix(field)) from error


def _check_names(section: dict[Any, Any], struct: Any, path: str, where: str) -> None:
    """Refuse unknown fields and name the known ones; goes only as deep as the schema."""
    known = {field.name: field.type for field in msgspec.structs.fields(struct)}
    for name, value in section.items():
        if name not in known:
            fix = f"remove it, or use one of: {', '.join(known)}"
            raise bad_field("unknown field", where, f"{path}{name}", fix)
        inner = known[name]
        if isinstance(value, dict) and isinstance(inner, type) and issubclass(inner, _Section):
            _check_names(value, inner, f"{path}{name}.", where)


def _fix(field: str) -> str:
    """Say what to write instead: the default, where there is one."""
    struct: Any = JobConfig
    default: Any = msgspec.NODEFAULT
    for part in re.sub(r"\[[^\]]*\]", "", field).split("."):
        found = [f for f in msgspec.structs.fields(struct) if f.name == part]
        if not found:
            break
        struct, default = found[0].type, found[0].default
        if not (isinstance(struct, type) and issubclass(struct, msgspec.Struct)):
            break
    if default is msgspec.NODEFAULT or isinstance(default, msgspec.Struct):
        return "see examples/fsdp.yaml"
    return f"for example {field.rsplit('.', 1)[-1]}: {msgspec.json.encode(default).decode()}"


def _check(job: JobConfig, where: str) -> None:
    """Check the rules that types cannot express."""
    if job.apiVersion != API_VERSION or job.kind != KIND:
        raise bad_field(
            f"apiVersion {job.apiVersion!r}, kind {job.kind!r}",
            where,
            "apiVersion",
            f"apiVersion: {API_VERSION} and kind: {KIND}",
        )
    model = job.model
    if model.head_size is None and (model.dim % model.heads or model.dim // model.heads % 2):
        heads = next(
            n for n in range(model.heads, 0, -1) if model.dim % n == 0 and model.dim // n % 2 == 0
        ) if model.dim % 2 == 0 else 0  # fmt: skip
        raise bad_field(
            f"dim {model.dim} does not split into {model.heads} heads of an even size",
            where,
            "model.heads",
            f"heads: {heads}" if heads else "an even dim",
        )
    if model.head_size is not None and model.head_size % 2:
        fix = f"head_size: {model.head_size + 1}"
        raise bad_field("rotary positions turn pairs", where, "model.head_size", fix)
    if model.rope_scaling is not None and model.rope_scaling.high <= model.rope_scaling.low:
        raise bad_field(
            "what turns fast must turn faster than what turns slowly",
            where,
            "model.rope_scaling.high",
            "high: 4.0 and low: 1.0",
        )
    if model.kv_heads is not None and model.heads % model.kv_heads:
        raise bad_field(
            f"{model.heads} heads cannot share {model.kv_heads} heads of keys evenly",
            where,
            "model.kv_heads",
            f"kv_heads: {nearest_divisor(model.heads, model.kv_heads)}",
        )
    if model.experts and model.experts_per_token > model.experts:
        raise bad_field(
            f"a token cannot go to {model.experts_per_token} of {model.experts} experts",
            where,
            "model.experts_per_token",
            f"experts_per_token: {model.experts}",
        )
    if job.checkpoint.keep_every and not job.checkpoint.keep:
        raise bad_field(
            "without keep nothing is removed",
            where,
            "checkpoint.keep_every",
            "keep: 3, or keep_every: 0",
        )
    if job.checkpoint.expect is not None and job.checkpoint.resume in {AUTO, NEVER}:
        raise bad_field(
            "the run's own ledger says which checkpoint is resumed; nothing would be compared",
            where,
            "checkpoint.expect",
            "name the checkpoint's directory in resume:, or leave expect: out",
        )
    if not job.checkpoint.resume.strip():
        raise bad_field("empty", where, "checkpoint.resume", "auto, never or a directory")

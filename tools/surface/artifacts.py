# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Keys, trust roots, datasets, checkpoints, models, waivers, the log, and a run that made some."""

import json
import shutil
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tools.surface.story import Story

TRUST: Final = "trust/root.json"
FORMATS: Final = ("text", "json", "sarif", "junit")
_TRAINING: Final = """\
apiVersion: securetrain.dev/job/v1
kind: TrainJob
name: tiny
steps: 4
model: {dim: 32, layers: 2, heads: 2, ffn: 48}
data: {seq_len: 32, batch_rows: 4, dataset: text}
trust: trust/root.json
optimizer: {warmup_steps: 2}
checkpoint: {every: 2}
metrics: {console_every: 0, tensorboard: false}
eval: {every: 2, rows: 4}
"""


def keys_and_trust(story: Story) -> None:
    """Keys of every role and kind, and trust roots made, rotated, held and refused."""
    run, here = story.run, story.here
    for name in ("root", "root-2", "checkpoint", "dataset", "operator", "log", "witness", "other"):
        run("key", "generate", f"{name}.pem", *(["--json"] if name == "root" else []))
    run("key", "generate", "root.pem")
    run("key", "generate", "p256.pem", "--kind", "ecdsa-p256")
    run("key", "generate", "rsa.pem", "--kind", "rsa")
    (here / "secret").write_text("one\n")
    (here / "wrong").write_text("two\n")
    run("key", "generate", "locked.pem", "--passphrase-file", "secret", "--json")
    run("key", "show", "locked.pem", "--passphrase-file", "wrong")
    run("key", "show", "locked.pem", "--passphrase-file", "secret", "--json")
    run("key", "passphrase", "locked.pem", "--passphrase-file", "secret", "--remove", "--json")
    run("key", "show", "checkpoint.pem")
    run("key", "show", "log.pem", "--name", "log.example")
    run("key", "show", "witness.pem", "--name", "w.example", "--cosigner", "--json")
    run("key", "show", "p256.pem", "--name", "log.example")
    run("key", "show", "p256.pem", "--pem")
    run("key", "show", "absent.pem", "--json")
    roles = ("checkpoint", "dataset", "operator", "log", "witness")
    adds = [word for role in roles for word in ("--add", f"{role}={role}.pem.pub")]
    run("trust", "init", "trust", "--key", "root.pem", *adds, "--log-origin", "log.example/t")
    run("trust", "init", "trust", "--key", "root.pem", "--json")
    run("trust", "init", "other-trust", "--key", "root.pem", "--add", "checkpoint=other.pem.pub",
        "--json")  # fmt: skip
    run("trust", "init", "strange-trust", "--key", "other.pem", "--add", "dataset=other.pem.pub")
    run("trust", "init", "bad-trust", "--key", "root.pem", "--add", "nobody=other.pem.pub")
    run("trust", "show", "trust")
    run("trust", "show", TRUST, "--json")
    run("trust", "show", "secret")
    run("trust", "rotate", "other-trust", "--key", "root.pem", "--key", "root-2.pem",
        "--add", "root=root-2.pem.pub", "--threshold", "root=2", "--json")  # fmt: skip
    run("trust", "rotate", "other-trust", "--key", "root.pem", "--add", "dataset=dataset.pem.pub")
    run("trust", "sign", "other-trust", "--key", "root-2.pem", "--yes", "--json")
    run("trust", "sign", "other-trust", "--key", "root-2.pem", "--yes")
    key_id = json.loads(run("key", "show", "other.pem", "--json"))["key_id"]
    run("trust", "revoke", "other-trust", key_id, "--key", "root.pem", "--key", "root-2.pem",
        "--reason", "lost", "--json")  # fmt: skip
    run("trust", "revoke", "other-trust", "0" * 64, "--key", "root.pem", "--reason", "lost")
    run("trust", "update", "held", "--pin", "other-trust/1.root.json", "--from", "other-trust")
    run("trust", "update", "held", "--from", "other-trust", "--json")


def _judge(story: Story, folder: str, *more: str, trust: str = TRUST) -> None:
    for form in FORMATS:
        story.run("verify", folder, "--trust", trust, "--format", form, *more)


def _tampered(story: Story, folder: str, damage: Callable[[Path], object]) -> None:
    """What `verify` says of a copy after `damage`."""
    copy = story.here / "tampered"
    shutil.copytree(story.here / folder, copy)
    damage(copy)
    _judge(story, "tampered")
    shutil.rmtree(copy)


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def datasets(story: Story) -> None:
    """A dataset and its next version, verified whole and damaged."""
    run, here = story.run, story.here
    corpus = here / "corpus"
    (corpus / "train").mkdir(parents=True)
    (corpus / "train" / "a.jsonl").write_text("one\ntwo\n" * 9000)
    (here / "report.txt").write_text("clean")
    (here / "croissant.json").write_text("{}")
    sign = ("sign", "corpus", "--dataset", "--key", "dataset.pem")
    run(*sign, "--samples", "--license", "CC0-1.0", "--source", "https://example.org",
        "--croissant", "croissant.json", "--metadata", "language=en",
        "--scan-report", "clamav:1.4:clean:report.txt")  # fmt: skip
    run(*sign)
    _judge(story, "corpus")
    _judge(story, "corpus", trust="strange-trust/root.json")
    run("verify", "corpus", "--trust", "held", "--json")
    run("verify", "corpus", "--trust", "trust")
    run("verify", "corpus", "--json")
    run("verify", "corpus", "--trust", "absent.json", "--json")
    run("verify", "corpus", "--trust", TRUST, "--policy", "hardened")
    run("verify", "corpus", "--trust", TRUST, "--policy", "nonsense")
    run("verify", "corpus", "--trust", TRUST, "--vsa", "vsa.json", "--vsa-key", "other.pem")
    _tampered(story, "corpus", lambda c: flip(c / "train" / "a.jsonl"))
    _tampered(story, "corpus", lambda c: (c / "train" / "a.jsonl").unlink())
    _tampered(story, "corpus", lambda c: (c / "train" / "b.jsonl").write_text("three\n"))
    _tampered(story, "corpus", lambda c: (c / "train" / "b").symlink_to("a.jsonl"))
    _tampered(story, "corpus", lambda c: flip(c / "statement.json"))
    _tampered(story, "corpus", lambda c: (c / "statement.json").unlink())
    (corpus / "train" / "b.jsonl").write_text("three\n")
    run(*sign, "--append")
    run(*sign, "--append", "--trust", TRUST, "--remove", "train/a.jsonl:0:4:erasure")
    run("verify", "corpus", "--trust", TRUST, "--floors", "floors.json", "--json")
    run(*sign, "--append", "--trust", TRUST, "--remove", "nowhere:0:4")
    run("sign", "corpus", "--dataset", "--oms", "--key", "dataset.pem")
    run("sign", "absent", "--dataset", "--key", "dataset.pem")
    run("verify", "absent", "--trust", TRUST, "--json")


def checkpoints(story: Story) -> None:
    """A checkpoint that was converted from torch, verified whole and damaged."""
    import torch  # noqa: PLC0415 - the chapter that needs it
    from torch.distributed.checkpoint.state_dict_saver import save  # noqa: PLC0415

    run, here = story.run, story.here
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = {"w": torch.arange(300_000, dtype=torch.float32), "step": 1}
        save(values, checkpoint_id=here / "old", no_dist=True)
    convert = ("convert", "old", "new", "--key", "checkpoint.pem", "--run", "r1", "--step", "5")
    run(*convert, "--json")
    run(*convert)
    run("convert", "corpus", "never", "--key", "checkpoint.pem", "--run", "r1", "--step", "5")
    run("convert", "new", "hf", "--to", "hf", "--key", "checkpoint.pem", "--trust", TRUST)
    _judge(story, "new")
    _judge(story, "new", "--policy", "dev")
    run("verify", "new", "--trust", TRUST, "--policy", "baseline", "--json")
    run("verify", "new", "--trust", TRUST, "--policy", "hardened")
    run("verify", "new", "--trust", TRUST, "--walk", "--json")
    run("verify", "new", "--trust", TRUST, "--floors", "floors.json")
    run("verify", "new", "--trust", TRUST, "--scan")
    run("verify", "new", "--trust", "other-trust/root.json", "--json")
    run("verify", "new", "--trust", TRUST, "--vsa", "vsa-2.json", "--vsa-key", "other.pem")
    run("verify", "new", "--trust", TRUST, "--log-proof", "absent.proof")
    for name in sorted(path.name for path in (here / "new").iterdir()):
        _tampered(story, "new", lambda c, name=name: flip(c / name))  # type: ignore[misc]
        _tampered(story, "new", lambda c, name=name: (c / name).unlink())  # type: ignore[misc]
    _tampered(story, "new", lambda c: (c / "more.bin").write_bytes(b"x"))
    run("verify", "old", "--trust", TRUST, "--json")


def models(story: Story) -> None:
    """Models as safetensors and with an OpenSSF bundle."""
    run, here = story.run, story.here
    (here / "llama").mkdir()
    header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    (here / "llama" / "model.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + bytes(8)
    )
    (here / "llama" / "config.json").write_text("{}")
    shutil.copytree(here / "llama", here / "oms")
    run("sign", "llama", "--safetensors", "--key", "checkpoint.pem")
    _judge(story, "llama")
    _tampered(story, "llama", lambda c: flip(c / "model.safetensors"))
    run("sign", "oms", "--oms", "--key", "p256.pem")
    check = ("verify", "oms", "--bundle", "oms/model.sig", "--public-key")
    for form in FORMATS:
        run(*check, "p256.pem.pub", "--format", form)
    run(*check, "other.pem.pub", "--json")
    run("verify", "oms", "--bundle", "absent.sig", "--public-key", "p256.pem.pub")
    flip(here / "oms" / "model.safetensors")
    for form in FORMATS:
        run(*check, "p256.pem.pub", "--format", form)


def waivers(story: Story) -> None:
    """Waivers of operators, and of somebody else."""
    run = story.run
    waive = ("waive", "new", "--trust", TRUST, "--out", "waiver.json", "--key")
    run("waive", "new", "--trust", TRUST, "--out", "nobody.json", "--key", "other.pem",
        "--reason", "a test")  # fmt: skip
    run("verify", "new", "--trust", TRUST, "--waiver", "nobody.json", "--json")
    run(*waive, "operator.pem")
    run(*waive, "operator.pem", "--reason", "a test", "--days", "3")
    run(*waive, "operator.pem", "--reason", "a test", "--days", "3")
    run("verify", "new", "--trust", TRUST, "--waiver", "waiver.json", "--json")
    run("verify", "new", "--trust", "other-trust/root.json", "--waiver", "waiver.json")


def log(story: Story) -> None:
    """A statement on its way into a log, past a witness, and out of it as a proof."""
    run, here = story.run, story.here
    place, trust = "tlog", ("--trust", TRUST)
    statement = next((here / "new").glob("*statement*"), here / "new" / "statement.json")
    run("log", "init", place, "--origin", "log.example/t", "--key", "log.pem", "--json")
    run("log", "init", place, "--origin", "log.example/t", "--key", "log.pem")
    run("log", "append", place, statement, "--key", "log.pem", *trust)
    run("log", "append", place, "secret", "--key", "log.pem", *trust, "--json")
    run("log", "append", place, statement, "--key", "other.pem", *trust)
    run("log", "checkpoint", place, *trust)
    run("log", "witness", place, "--key", "witness.pem", "--name", "w.example", "--state", "seen",
        *trust, "--json")  # fmt: skip
    run("log", "checkpoint", place, *trust, "--all", "--json")
    run("log", "prove", place, statement, *trust, "--out", "proof.txt", "--json")
    run("log", "verify", statement, "--proof", "proof.txt", *trust)
    run("log", "verify", statement, "--proof", "proof.txt", *trust, "--json")
    run("log", "verify", "vsa.json", "--proof", "proof.txt", *trust)
    run("log", "prove", place, "vsa.json", *trust, "--json")
    run("verify", "new", "--trust", TRUST, "--log-proof", "proof.txt", "--json")


def training(story: Story) -> None:
    """A run of two ranks: what it leaves, and what is said of that."""
    run, here = story.run, story.here
    for split in ("train", "validation"):
        (here / "text" / split).mkdir(parents=True)
        (here / "text" / split / "a.txt").write_text("every rank signs what it saw. " * 400)
    run("sign", "text", "--dataset", "--key", "dataset.pem", "--data-format", "raw")
    (here / "tiny.yaml").write_text(_TRAINING)
    story.start("train", "tiny.yaml", "--standalone", "--nproc-per-node", "2", "--run-dir", "ran")
    trust, saved = "ran/trust.json", here / "ran" / "checkpoints"
    newest, older = saved / "step-00000004", saved / "step-00000002"
    run("verify", newest, "--trust", trust, "--policy", "dev")
    run("verify", newest, "--trust", trust, "--policy", "dev", "--json", "--floors", "ran.floors")
    run("verify", older, "--trust", trust, "--floors", "ran.floors", "--json")
    run("verify", older, "--trust", trust, "--policy", "hardened", "--json")
    run("verify", newest, "--trust", trust, "--walk", "--walk-in", "text", "--json")
    run("verify", newest, "--trust", trust, "--walk")
    run("convert", newest, "exported", "--to", "hf", "--job", "tiny.yaml", "--key",
        "checkpoint.pem", "--trust", trust, "--json")  # fmt: skip
    story.start("report", "ran", "--html", "ran.html")
    run("report", "ran", "--json")
    shutil.copytree(here / "ran", here / "tampered")
    shutil.rmtree(here / "tampered" / "checkpoints" / newest.name)
    run("verify", f"tampered/checkpoints/{older.name}", "--trust", trust, "--json")
    (here / "tampered" / "checkpoints" / "head.json").unlink()
    run("verify", f"tampered/checkpoints/{older.name}", "--trust", trust, "--json")
    flip(here / "tampered" / "ledger.jsonl")
    story.start("report", "tampered", "--json")
    shutil.rmtree(here / "tampered")

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What ``sign`` and ``verify`` take a target for, and that what was signed by a guess verifies."""

import builtins
import json
import os
import random
import socket
import struct
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner

from securetrain.artifacts import kinds
from securetrain.artifacts.dataset import sign as dataset_sign
from securetrain.artifacts.kinds import LEFT_OUT, TargetKind, check_whole, guess
from securetrain.artifacts.model import oms, safetensors_folder
from securetrain.artifacts.saved import signer
from securetrain.cli.artifacts.sign import command as sign
from securetrain.cli.artifacts.verify import command as verify
from securetrain.cli.main import main
from securetrain.core import CODES
from securetrain.core.errors import SecureTrainError, UsageError
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.trust import TrustRole, sign_root
from tests.tables import forgeries

HEADER: Final = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  '
TENSORS: Final = struct.pack("<Q", len(HEADER)) + HEADER + bytes(8)
TORCH: Final = b"PK\x03\x04" + bytes(60)
POINTER: Final = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
CLONE: Final = {
    ".git/HEAD": b"ref: x",
    ".gitattributes": b"*.bin filter=lfs",
    ".cache/huggingface/download/x.lock": b"-",
    "README.md": b"# model",
    "tokenizer.json": b"{}",
}


def index(*shards: str) -> bytes:
    named = {str(number): shard for number, shard in enumerate(shards)}
    return json.dumps({"metadata": {"total_size": 8}, "weight_map": named}).encode()


SHAPES: Final[dict[str, tuple[dict[str, bytes], TargetKind]]] = {
    "a clone of Hugging Face": (
        {**CLONE, "config.json": b"{}", "model.safetensors": TENSORS},
        TargetKind.FOLDER,
    ),
    "pickled weights": ({"config.json": b"{}", "pytorch_model.bin": TORCH}, TargetKind.FOLDER),
    "what Trainer saves": (
        {"config.json": b"{}", "model.safetensors": TENSORS, "optimizer.bin": TORCH, "r.pth": b""},
        TargetKind.FOLDER,
    ),
    "a pipeline": (
        {"model_index.json": b"{}", "unet/config.json": b"{}", "unet/model.safetensors": TENSORS},
        TargetKind.FOLDER,
    ),
    "an adapter": (
        {"adapter_config.json": b"{}", "adapter_model.safetensors": TENSORS},
        TargetKind.ADAPTER,
    ),
    "shards": (
        {"m.safetensors.index.json": index("a.safetensors"), "a.safetensors": TENSORS},
        TargetKind.SHARDED,
    ),
    "GGUF": ({"README.md": b"x", "q4.gguf": b"GGUF", "q8.gguf": b"GGUF"}, TargetKind.GGUF),
    "loose safetensors": ({"a.safetensors": TENSORS}, TargetKind.WEIGHTS),
    "torch": ({".metadata": TORCH, "__0_0.distcp": TORCH}, TargetKind.DISTRIBUTED),
    "torch, beside it": ({"x/__0_0.distcp": b"x", "rng.pt": TORCH}, TargetKind.DISTRIBUTED),
    "MDS": ({"index.json": b"{}", "shard.00000.mds": b"x"}, TargetKind.DATASET),
    "parquet": ({"data/train-0.parquet": b"PAR1", "README.md": b"x"}, TargetKind.DATASET),
    "numpy": ({"train.npy": b"\x93NUMPY", "val.npy": b"\x93NUMPY"}, TargetKind.DATASET),
    "jsonl": ({"train/a.jsonl": b"{}\n"}, TargetKind.DATASET),
    "token files": ({"train.bin": b"\1\0\2\0", "meta.pkl": TORCH}, TargetKind.DATASET),
    "WebDataset": ({"0.tar": bytes(1024)}, TargetKind.DATASET),
    "text": ({"input.txt": b"to be", "LICENSE.txt": b"x"}, TargetKind.DATASET),
    "pictures": ({"train/cat/1.png": b"x", "train/dog/2.png": b"x"}, TargetKind.DATASET),
}
FILES: Final = {
    "model.safetensors": (TENSORS, TargetKind.FILE, "ST-CKPT-100"),
    "net.pt": (TORCH, TargetKind.FILE, "ST-CKPT-100"),
    "program.pt2": (TORCH, TargetKind.FILE, "ST-CKPT-100"),
    "weights": (b"GGUF", TargetKind.GGUF, "ST-CKPT-100"),
    "notes": (b"", TargetKind.FILE, "ST-CKPT-100"),
    "train.parquet": (b"PAR1", TargetKind.FILE, "ST-DATA-100"),
}
MIXED: Final = {
    "weights and data": ({"config.json", "model.safetensors", "a.jsonl"}, ("--oms", "--dataset")),
    "torch and weights": ({".metadata", "model.safetensors"}, ("--saved", "--oms")),
    "torch and data": ({"0.distcp", "a.parquet"}, ("--saved", "--dataset")),
    "nothing": (set(), ("--dataset", "--safetensors", "--oms", "--saved")),
    "documents": ({"README.md", "config.json"}, ("--dataset", "--oms")),
}


def made(root: Path, files: dict[str, bytes]) -> Path:
    root.mkdir(parents=True)
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def run(verb: Any, *words: object) -> tuple[int, str]:
    result = CliRunner().invoke(verb, [str(one) for one in words], standalone_mode=False)
    if isinstance(result.exception, SecureTrainError):
        return int(result.exception.exit_code), str(result.exception) + result.exception.fix
    if result.exception is not None:
        raise result.exception
    return int(result.return_value), " ".join(result.stdout.split())


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """maker.key, maker.pem and trust.json."""
    folder, now = tmp_path_factory.mktemp("keys"), datetime.now(UTC)
    key = PrivateKey.create(folder / "maker.key", KeyKind.P256)
    (folder / "maker.pem").write_bytes(key.public.pem)
    roles = {TrustRole.DATASET: [key.public], TrustRole.CHECKPOINT: [key.public]}
    (folder / "trust.json").write_bytes(sign_root(roles, key, now, now + timedelta(days=1)))
    return folder


def test_each_kind_is_told_refused_unsigned_signed_and_verified(
    tmp_path: Path, keys: Path, subtests: pytest.Subtests
) -> None:
    key, pem, trust = keys / "maker.key", keys / "maker.pem", keys / "trust.json"
    by: dict[str, tuple[object, ...]] = {
        "oms": ("--public-key", pem),
        "dataset": ("--trust", trust),
        "saved": ("--trust", trust),
    }
    for number, (name, (files, kind)) in enumerate(SHAPES.items()):
        with subtests.test(name):
            path = made(tmp_path / str(number), files)
            found = guess(path)
            assert found.kind is kind
            way = found.one()
            code = "ST-DATA-100" if kind is TargetKind.DATASET else "ST-CKPT-100"
            for asked in ((), ("--trust", trust)):
                exit_code, text = run(verify, path, *asked)
                assert exit_code == 10
                assert code in text
                assert kind in text
            if way == "oms":
                exit_code, text = run(verify, path, *by["oms"])
                assert (exit_code, "ST-OMSB-100" in text) == (10, True)
            exit_code, text = run(sign, path, "--key", key)
            assert (exit_code, text.startswith(f"kind {kind} (")) == (0, True)
            assert f"--{way}" in text
            exit_code, text = run(verify, path, *by[way])
            assert exit_code == 0, text
            assert way != "oms" or f"taken for {kind} (" in text
            if ".git/HEAD" in files:
                left = ".cache/huggingface, .git, .gitattributes"
                assert f"NOT VERIFIED (3) {left}" in text
            if way == "oms":
                # Named, with the command, until an option says whose signature counts.
                assert guess(path).kind is kind
                for asked in ((), ("--trust", trust)):
                    exit_code, text = run(verify, path, *asked)
                    assert exit_code == (10 if asked else 2)
                    assert "model.sig --public-key" in text
                assert run(verify, path / "model.sig", *by[way])[0] == 0
            first = max(path / one for one in files if not one.startswith((".git", ".cache")))
            first.write_bytes(first.read_bytes() + b"!")
            assert run(verify, path, *by[way])[0] == 13


def test_one_file_is_what_it_is_and_signed_beside_itself(
    tmp_path: Path, keys: Path, subtests: pytest.Subtests
) -> None:
    for name, (data, kind, code) in FILES.items():
        with subtests.test(name):
            path = made(tmp_path / f"in {name}", {name: data}) / name
            assert guess(path).kind is kind
            exit_code, text = run(verify, path)
            assert (exit_code, code in text) == (10, True)
            assert run(sign, path, "--key", keys / "maker.key")[0] == 0
            root = ("--public-key", keys / "maker.pem")
            for target in (path, path.with_name(f"{name}.sig")):
                assert run(verify, target, *root)[0] == 0
            assert run(sign, path.with_name(f"{name}.sig"), "--key", keys / "maker.key")[0] == 2
            path.write_bytes(data + b"!")
            assert run(verify, path, *root)[0] == 13


@pytest.mark.parametrize("name", MIXED)
def test_two_kinds_in_one_directory_are_one_clear_error(
    tmp_path: Path, keys: Path, name: str
) -> None:
    names, flags = MIXED[name]
    path = made(tmp_path / "x", dict.fromkeys(names, TENSORS))
    exit_code, text = run(sign, path, "--key", keys / "maker.key")
    assert (exit_code, "ST-USAG-001" in text) == (2, True)
    assert all(flag in text for flag in flags)
    assert not (path / "model.sig").exists()
    assert run(verify, path)[0] == 10
    if names:
        assert run(sign, path, "--oms", "--key", keys / "maker.key")[0] == 0, "a flag overrules"


def test_what_is_signed_already_goes_by_its_signature(tmp_path: Path) -> None:
    signed = {
        TargetKind.DATASET: {"statement.json": b"{}", "_securetrain/a.tree": b""},
        TargetKind.CHECKPOINT: {"statement.json": b"{}", "model.safetensors": TENSORS},
        TargetKind.SAVED: {".securetrain.json": b"{}", "model.safetensors": TENSORS},
    }
    for number, (kind, files) in enumerate(signed.items()):
        found = guess(made(tmp_path / str(number), files))
        assert (found.kind, found.is_signed) == (kind, True)
    with pytest.raises(UsageError, match="signed already"):
        found.one()
    lost = made(tmp_path / "lost", {"rank-00000.bin": b"x", "rank-00000.bin.leaves": b"x"})
    assert (guess(lost).kind, guess(lost).is_signed) == (TargetKind.CHECKPOINT, False)
    assert guess("s3://bucket/x").kind is TargetKind.STORE
    several = made(tmp_path / "several", {"model.sig": b"{}", "b.sigstore.json": b"{}"})
    with pytest.raises(UsageError, match="several may be its bundle"):
        kinds.bundle_of(several)


@forgeries(
    "id, files, left_out, told",
    ("a pointer", {"model.safetensors": POINTER}, LEFT_OUT, "git lfs pull"),
    ("a pointer of data", {"data/a.parquet": POINTER}, None, "git lfs pull"),
    ("the control: a pointer's words", {"a.txt": b"about " + POINTER}, None, ""),
    ("a lost shard", {"m.index.json": index("a.bin", "b.bin"), "a.bin": b"x"}, None, "'b.bin'"),
    ("one above", {"m.index.json": index("../a.bin")}, None, "outside"),
    ("one elsewhere", {"m.index.json": index("/etc/passwd")}, None, "outside"),
    ("a shard below", {"x/m.index.json": index("a.bin"), "x/a.bin": b"x"}, None, ""),
    ("no JSON", {"m.index.json": b"{" * 100_000}, None, "m.index.json"),
    ("another index", {"m.index.json": b'{"shards":[]}'}, None, ""),
    ("git's own", {".git/HEAD": b"x", "a.jsonl": b"x"}, None, "--oms"),
    ("git's own, left out", {".git/HEAD": POINTER, "a.jsonl": b"x"}, LEFT_OUT, ""),
)
def test_what_is_not_whole_is_not_signed(
    tmp_path: Path, files: dict[str, bytes], left_out: Any, told: str
) -> None:
    path = made(tmp_path / str(random.getrandbits(60)), files)
    if not told:
        check_whole(path, left_out)
        return
    with pytest.raises(UsageError) as refused:
        check_whole(path, left_out)
    assert told in f"{refused.value.where} {refused.value.what} {refused.value.fix}"
    assert refused.value.code in {"ST-USAG-025", "ST-USAG-008"}


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


HOSTILE: Final[dict[str, tuple[Callable[[Path], object], str]]] = {
    "a pipe": (pipe, "ST-USAG-002 ST-DATA-142"),
    "a socket": (listening, "ST-USAG-002 ST-DATA-142"),
    "a link": (lambda path: path.symlink_to("a.jsonl"), "ST-DATA-142"),
    "a link to a pipe": (lambda path: path.symlink_to("../pipe"), "ST-DATA-142"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "ST-DATA-142"),
    "a link to what is above": (lambda path: path.symlink_to(".."), "ST-DATA-142"),
    "no UTF-8": (lambda path: path.with_name("\udcff.bin").write_bytes(b"x"), "ST-DATA-142"),
    "a control character": (lambda path: path.with_name("\x1b[2J").write_bytes(b""), "ST-DATA-142"),
}


@pytest.mark.forgery
def test_what_nobody_should_sign_is_refused_by_name(
    tmp_path: Path, keys: Path, capsys: Any, subtests: pytest.Subtests
) -> None:
    """Nothing waits, and nothing is written. Its control are the rows of `SHAPES`."""
    os.mkfifo(tmp_path / "pipe")
    for name, (put, codes) in HOSTILE.items():
        with subtests.test(name):
            path = made(tmp_path / name, {"a.jsonl": b"{}\n"})
            put(path / "b.bin")
            before = set(path.iterdir())
            for way in ((), ("--oms",), ("--saved",)):
                assert main(["sign", str(path), "--key", str(keys / "maker.key"), *way]) != 0
                said = capsys.readouterr().err
                (found,) = (one for one in CODES if one in said)
                assert way or found in codes
                assert set(path.iterdir()) == before
            for more in ((), ("--json",)):
                assert main(["verify", str(path), "--trust", str(keys / "trust.json"), *more]) == 10
    assert main(["verify", str(tmp_path / "pipe"), "--trust", str(keys / "trust.json")]) == 20


def test_a_deep_directory_is_looked_through(tmp_path: Path, keys: Path) -> None:
    folders = [tmp_path / "deep"]
    folders += (folders[0] / ("d/" * depth) for depth in range(1, 1100))
    for folder in folders:
        folder.mkdir()
    try:
        assert guess(folders[0]).kind is TargetKind.UNKNOWN
        assert main(["sign", str(folders[0]), "--dataset", "--key", str(keys / "maker.key")]) == 14
    finally:  # pytest would need as many frames
        for folder in reversed(folders):
            folder.rmdir()


FILE_KINDS: Final = (
    *("config.json", "adapter_config.json", "model.safetensors", "adapter_model.bin", "a.gguf"),
    *("m.safetensors.index.json", "train.bin", "x.pt", ".metadata", "__0_0.distcp", "a.parquet"),
    *("train/b.jsonl", "c.txt", "README.md", "p.png", ".git/config", "sub/model.onnx", "e.npy"),
    *("->link.safetensors", "->link.bin", "->up", "model.sig", "\udcfe.jsonl"),
)
HEADS: Final = (b"", TENSORS, TORCH, POINTER, b"GGUF", b"\x93NUMPY", b"{}")


def draw(dice: random.Random, root: Path, names: list[str]) -> Path:
    dice.shuffle(names)
    root.mkdir()
    for name in names:
        path = root / name.removeprefix("->")
        path.parent.mkdir(exist_ok=True)
        if name.startswith("->"):
            path.symlink_to(root.parent / "secret")
        else:
            path.write_bytes(HEADS[hash(name) % len(HEADS)])
    return root


@pytest.mark.forgery
def test_a_guess_is_one_for_every_order_and_opens_nothing_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(31)
    (tmp_path / "secret").write_bytes(TORCH)
    opened: list[str] = []
    plain = os.open

    def watched(path: Any, *rest: Any, **more: Any) -> int:
        fd = plain(path, *rest, **more)
        opened.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        return fd

    monkeypatch.setattr(os, "open", watched)
    monkeypatch.setattr(builtins, "open", None)
    seen = set()
    for number in range(20):
        names = dice.sample(FILE_KINDS, dice.randint(1, 8))
        found = []
        for order in "ab":
            path = draw(dice, tmp_path / f"{number}{order}", names)
            told = guess(path)
            found.append((told.kind, told.why, [(one.kind, one.why) for one in told.others]))
            assert sorted(map(str, told.problems())) == sorted(map(str, guess(path).problems()))
        assert found[0] == found[1], names
        seen.add(found[0][0])
    assert len(seen) >= 4
    assert not any("secret" in one for one in opened)
    (tmp_path / "control.bin").symlink_to("secret")
    assert guess(tmp_path / "control.bin").kind is TargetKind.FILE
    assert any("secret" in one for one in opened), "the control: the target's own path is followed"


def moved(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}-moved"))


def replaced(path: Path) -> None:
    (path.parent / "new").write_bytes(path.read_bytes()[::-1])
    (path.parent / "new").rename(path)


def written(at: int, data: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(at if at >= 0 else path.stat().st_size)
            file.write(data)

    return write


CHANGES: Final[tuple[Callable[[Path], object], ...]] = (
    *(moved, replaced, Path.unlink, lambda path: os.truncate(path, 5)),
    *(written(-1, b"more"), written(200, b"xx"), written(2 << 20, b"xx")),
)
WAYS: Final = {
    "dataset": "--trust",
    "safetensors": "--trust",
    "oms": "--public-key",
    "saved": "--trust",
}


@pytest.mark.forgery
@pytest.mark.parametrize("way", WAYS)
def test_what_changes_while_it_is_signed_is_refused_or_was_signed_as_it_is(
    tmp_path: Path, keys: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a drawn call that opens or reads; without the check, what is nowhere would be signed."""
    dice = random.Random(f"31 {way}")
    size = (5 << 19) - len(TENSORS) + 8
    header = HEADER.replace(b"[2]", b"[%d]" % (size // 4)).replace(b",8]", b",%d]" % size)
    data = struct.pack("<Q", len(header)) + header + dice.randbytes(size)
    other = data.replace(b'"w"', b'"v"', 1)
    refused: list[bool] = []
    root = keys / ("maker.pem" if way == "oms" else "trust.json")
    calls = {name: getattr(os, name) for name in ("open", "preadv", "readv")}
    state: dict[str, Any] = {"left": -1}
    lock = threading.Lock()

    def counted(name: str) -> Callable[..., Any]:
        def call(*words: Any, **more: Any) -> Any:
            found = calls[name](*words, **more)
            shown = str(
                words[0] if name == "open" else Path(f"/proc/self/fd/{words[0]}").readlink()
            )
            with lock:
                state["left"] -= shown.endswith(".safetensors")
                due, state["left"] = state["left"] == 0, state["left"] - (state["left"] == 0)
            if due:
                state["change"](state["file"])
            return found

        return call

    def attempt(name: str, left: int, change: Callable[[Path], object], file: str) -> Any:
        """The rest of the calls, the exit code of sign, and whether the outcome verifies."""
        path = made(tmp_path / name, {"a.safetensors": data, "b.safetensors": other})
        state.update(left=left, change=change, file=path / file)
        with monkeypatch.context() as patched:
            for call in calls:
                patched.setattr(os, call, counted(call))
            code, _ = run(sign, path, f"--{way}", "--key", keys / "maker.key")
        return state["left"], code, run(verify, path, WAYS[way], root)[0] == 0

    left, *outcome = attempt("dry", 1 << 20, moved, "a.safetensors")
    assert outcome == [0, True]
    total = (1 << 20) - left
    for number in range(20):
        change, file = dice.choice(CHANGES), dice.choice(["a.safetensors", "b.safetensors"])
        left, *outcome = attempt(str(number), dice.randint(1, total), change, file)
        assert (left < 0, outcome[1]) == (True, outcome[0] == 0), number
        refused.append(outcome[0] != 0)
    assert sum(refused) >= 15
    for module in (dataset_sign, safetensors_folder, oms, signer):
        monkeypatch.setattr(module, "check_same", lambda *_: None)
    control = attempt("control", total, written(200, b"xx"), "a.safetensors")
    assert control[1:] == (0, False), "the control"

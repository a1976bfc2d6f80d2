# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Files that several loaders read, scanned by ours and loaded by the loaders themselves.

A case is one file: two formats in one, under a suffix of either, or a configuration with one of its
texts replaced by one that some loader would run. It is missed when the scan is clean and a loader
runs something (`tools.scan_corpus.oracle`). A clean scan is no fault where no loader did; loaders
that are not installed are named as not asked.
"""

import atexit
import json
import random
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

from securetrain.artifacts.scan.scanner import scan_path
from tools.campaigns import Campaign, Missed
from tools.scan_corpus import pieces as p

ROOT: Final = Path(__file__).resolve().parent.parent.parent


class Oracle:
    """The loaders in a process of their own, and the folder that says that one ran something."""

    def __init__(self) -> None:
        # Short, and of letters that stand in every format as they are.
        self.folder = tempfile.TemporaryDirectory(prefix="r")
        self.marker = f"{self.folder.name}/ran"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.scan_corpus.oracle", self.marker],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.close)
        exported = Path(self.folder.name) / "exported.pt2"
        self.ask(f"export {exported}")
        self.exported = exported.read_bytes()
        self.absent = self.ask("absent")

    def ask(self, line: str) -> list[str]:
        """The loaders that ran what is in a file."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return [str(name) for name in json.loads(self._process.stdout.readline())]

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self.folder.cleanup()


@cache
def _oracle() -> Oracle:
    return Oracle()


def _attacks(marker: str) -> dict[str, tuple[tuple[str, ...], bytes]]:
    """Files that run something: suffixes and bytes."""
    plain = f"cos\nmkdir\n(S'{marker}'\ntR.".encode()
    call = p.call("os.mkdir", marker)
    tag = f"!!python/object/apply:os.mkdir ['{marker}']\n".encode()
    template = f"{{{{ cycler.__init__.__globals__.os.mkdir('{marker}') }}}}".encode()
    return {
        "pickle 0": ((".pkl", ".pt", ".bin"), plain),
        "pickle 4": ((".pkl", ".pth", ".ckpt", ".joblib"), call),
        "two pickles": ((".pkl", ".pt"), b"\x80\x04N." + call),
        "torch": ((".pt", ".bin", ".ckpt"), p.torch_zip(call)),
        "numpy": ((".npy", ".pkl"), p.numpy_objects(call)),
        "numpy spelled": (
            (".npy",),
            p.numpy_objects(call).replace(b"'|O', ", b"'\\x4f',").replace(b" \n", b"\n"),
        ),
        "npz": ((".npz", ".pt"), p.zipped({"a.npy": p.numpy_objects(call)})),
        "yaml": ((".yaml", ".json", ".yml"), tag),
        "template": ((".jinja", ".json"), template),
        "export": ((".pt2", ".pt"), b""),
    }


def _carriers() -> dict[str, tuple[tuple[str, ...], bytes]]:
    """Sound files."""
    entry = '"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}'
    return {
        "safetensors": ((".safetensors",), p.safetensors("{" + entry + "}", bytes(4))),
        "gguf": ((".gguf",), p.gguf({"general.name": "x"})),
        "png": ((".png",), b"\x89PNG\r\n\x1a\n" + bytes(64)),
        "tar": ((".tar", ".nemo"), p.tarred({"notes.txt": b"hello"})),
        "zip": ((".zip", ".npz", ".keras"), p.zipped({"notes.txt": b"hello"})),
        "torch": ((".pt", ".pth"), p.torch_zip(p.tensor(2))),
        "onnx": ((".onnx",), p.onnx(nodes=[p.onnx_node("Relu")])),
        "hdf5": ((".h5",), p.hdf5([], name=b"other_name__")),
        "json": ((".json",), b'{"a": 1}'),
        "yaml": ((".yaml",), b"a: 1\n"),
        "text": ((".txt", ".md"), b"hello\n"),
        "empty": (("", ".dat"), b""),
    }


def _joined(rng: random.Random, marker: str) -> tuple[str, bytes]:
    """Two formats in one file."""
    (ours, attack), (others, carrier) = (
        rng.choice(list(found.values())) for found in (_attacks(marker), _carriers())
    )
    attack = attack or _changed(rng, _oracle().exported, marker)
    suffix = rng.choice([*ours, *others])
    ascii_pickle = f"cos\nmkdir\n(S'{marker}'\ntR.".encode()
    data = rng.choice(
        (
            lambda: attack + carrier,
            lambda: carrier + attack,
            lambda: attack + carrier[len(attack) :],
            lambda: p.tarred({"a": carrier, "b" + suffix: attack}),
            lambda: p.zipped({"a": carrier, "b" + suffix: attack}),
            lambda: p.zipped({"m/data.pkl": attack, "m/data/0": carrier}),
            lambda: p.polyglot(ascii_pickle),
            lambda: p.tar_polyglot(ascii_pickle),
            lambda: attack,
        )
    )()
    return "model" + suffix, data


CONFIGURATIONS: Final[dict[str, Any]] = {
    "config.json": {
        "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "torch_dtype": "bfloat16",
        "rope_scaling": {"type": "linear", "factor": 2}, "quantization_config": {"method": "awq"},
    },
    "tokenizer_config.json": {
        "tokenizer_class": "LlamaTokenizer", "chat_template": "{{ messages[0].role }}",
        "added_tokens_decoder": {"0": {"content": "<s>"}},
    },
    "adapter_config.json": {
        "peft_type": "LORA", "target_modules": ["q_proj"], "base_model_name_or_path": "a/b",
        "auto_mapping": {"base_model_class": "M", "parent_library": "transformers.models.llama"},
    },
    "model_index.json": {"_class_name": "P", "unet": ["diffusers", "UNet2DConditionModel"]},
    "modules.json": [{"name": "0", "type": "sentence_transformers.models.Pooling"}],
    "index.json": {"shards": [{"column_encodings": ["str"], "raw_data": {"basename": "s.mds"}}]},
    "model_config.yaml": {"target": "nemo.collections.asr.models.EncDec", "labels": ["a", "b"],
                          "optim": {"_target_": "torch.optim.AdamW", "name": "adamw"}},
    "MLmodel": {"flavors": {"python_function": {"loader_module": "mlflow.sklearn"}}},
    "config.cfg": {"nlp": {"lang": "en", "pipeline": ["ner"]}, "training": {"seed": "0"}},
    "model.json": json.loads(p.keras({"class_name": "Dense", "config": {"activation": "relu"}})),
}  # fmt: skip


def values(marker: str) -> tuple[str, ...]:
    """Texts that some loader would run: each makes the marker."""
    run = f"__import__('os').mkdir('{marker}')"
    tree = '[1, {"type": "builtins.dict", "context": "{\\"__enum__\\": 1, \\"fqn\\": \\"os:x\\"}"}]'
    return (
        run,
        f"x={run}",
        f"x: {run}",
        f"1 if {run} else 2",
        f"x\\n{run}",
        f"x'); {run} #",
        f'x"); {run} #',
        f"L['x'].size()[{run}]",
        f"{{{{ cycler.__init__.__globals__.os.mkdir('{marker}') }}}}",
        f"!!python/object/apply:os.mkdir ['{marker}']",
        "os.system",
        "ranhere",
        "ranhere.Thing",
        tree,
    )


def leaves(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every text of a tree, by its holder and key."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(value, str):
            yield tree, key
        elif isinstance(value, (dict, list)):
            yield from leaves(value)


def _configured(rng: random.Random, marker: str) -> tuple[str, bytes]:
    """A configuration with one text replaced."""
    name = rng.choice([*CONFIGURATIONS, "exported.pt2", "exported.pt2", "exported.pt2"])
    if name not in CONFIGURATIONS:
        return name, _changed(rng, _oracle().exported, marker)
    tree = json.loads(json.dumps(CONFIGURATIONS[name]))
    holder, key = rng.choice(list(leaves(tree)))
    value = holder[key] = rng.choice(values(marker))
    return name, written(name, tree, value)


def written(name: str, tree: Any, tagged: str = "") -> bytes:
    """The bytes of a configuration; of YAML, one of its texts may be a tag."""
    text = json.dumps(tree)
    if name == "config.cfg":
        text = "".join(
            f"[{section}]\n"
            + "".join(f"{key} = {json.dumps(said)}\n" for key, said in pairs.items())
            for section, pairs in tree.items()
        )
    if tagged.startswith("!!") and not name.endswith(".json"):
        text = text.replace(json.dumps(tagged), tagged)
    return text.encode()


def _changed(rng: random.Random, archive: bytes, marker: str) -> bytes:
    """What torch.export wrote, with one text of its graph replaced, or given a guard."""
    members = p.unzipped(archive)
    name = rng.choice([name for name in members if name.endswith(".json")])
    tree = json.loads(members[name])
    if "graph_module" in tree and rng.random() < 0.1:
        tree["guards_code"] = [rng.choice(values(marker))]
    elif texts := list(leaves(tree)):
        holder, key = rng.choice(texts)
        holder[key] = rng.choice(values(marker))
    return p.zipped(members | {name: json.dumps(tree).encode()}, zipfile.ZIP_STORED)


KINDS: Final[tuple[Callable[[random.Random, str], tuple[str, bytes]], ...]] = (
    _joined,
    _configured,
)


def case(rng: random.Random, folder: Path) -> str:
    """Scan a file and load it."""
    oracle = _oracle()
    name, data = rng.choice(KINDS)(rng, oracle.marker)
    path = folder / name
    path.write_bytes(data)
    code = int(scan_path(path).exit_code)
    ran = oracle.ask(str(path))
    if ran and code == 0:
        raise Missed(f"{name} is clean, and {', '.join(ran)} ran it: {data[:80]!r}")
    unasked = f" (not asked: {', '.join(oracle.absent)})" if oracle.absent else ""
    return f"exit {code}, " + ("runs" if ran else f"runs nothing{unasked}")


CAMPAIGN: Final = Campaign(title="files by ours and by their loaders", count=1000, case=case)

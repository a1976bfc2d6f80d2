# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Make something to fine-tune: a tiny model in the format of Hugging Face, and documents.

    python examples/make_tiny_model.py OUT

``OUT/base`` has config.json, model.safetensors (random weights) and a tokenizer.json that was
trained on the documents; ``OUT/docs`` has what Python's own help says, as lines of JSON. Neither is
signed: see fine-tune.yaml.
"""

import json
import sys
from pathlib import Path
from pydoc_data.topics import topics

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from securetrain.artifacts.tree import safetensors_header
from securetrain.train.models import hf
from securetrain.train.models.init_weights import init_weights
from securetrain.train.models.llama import Llama
from securetrain.train.models.shape import ModelShape

VOCAB = 2048


def main(out: Path) -> None:
    """Write both directories."""
    texts = [topics[name] for name in sorted(topics)]
    held_out = texts[::10]
    rest = [text for text in texts if text not in held_out]
    for split, documents in (("train", rest), ("validation", held_out)):
        path = out / "docs" / split / "help.jsonl"
        path.parent.mkdir(parents=True)
        lines = (json.dumps({"text": text}) + "\n" for text in documents)
        path.write_text("".join(lines), encoding="utf-8")
    base = out / "base"
    base.mkdir()
    (base / "tokenizer.json").write_text(tokenizer(rest), encoding="utf-8")
    shape = ModelShape(dim=64, layers=2, heads=4, kv_heads=2, ffn=192, vocab=VOCAB)
    (base / "config.json").write_bytes(hf.config_of(shape))
    (base / "model.safetensors").write_bytes(weights(shape))


def tokenizer(texts: list[str]) -> str:
    """A byte-level BPE."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=["</s>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(texts, trainer)
    return str(made.to_str())


def weights(shape: ModelShape) -> bytes:
    """A safetensors file."""
    model = Llama(shape)
    init_weights(model, 0, shape)
    tensors = {hf.hf_name(name): one.detach() for name, one in model.named_parameters()}
    header = safetensors_header.encode_header(
        {name: ("float32", tuple(one.shape)) for name, one in tensors.items()}
    )
    return header + b"".join(one.view(torch.uint8).numpy().tobytes() for one in tensors.values())


if __name__ == "__main__":
    main(Path(sys.argv[1]))

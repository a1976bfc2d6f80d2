# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""A tiny checkpoint in the format of Hugging Face, written by hand, and the format's own formula.

Nothing here comes from the code that is tested: `logits` follows the published LlamaForCausalLM,
with its rotation of halves and its repeated heads of keys.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "transformers_version": "4.46.0",
}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}
FLOATS = {name: dtype for dtype, name in NAMES.items()}


def weights(config: dict[str, Any], dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Random weights under the format's names."""
    torch.manual_seed(11)
    dim, ffn, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    head = config.get("head_dim") or dim // config["num_attention_heads"]
    queries = config["num_attention_heads"] * head
    keys = config["num_key_value_heads"] * head
    sizes = {"model.embed_tokens": (vocab, dim), "model.norm": (dim,)}
    if not config["tie_word_embeddings"]:
        sizes["lm_head"] = (vocab, dim)
    for n in range(config["num_hidden_layers"]):
        at = f"model.layers.{n}"
        sizes |= {
            f"{at}.self_attn.q_proj": (queries, dim),
            f"{at}.self_attn.k_proj": (keys, dim),
            f"{at}.self_attn.v_proj": (keys, dim),
            f"{at}.self_attn.o_proj": (dim, queries),
            f"{at}.mlp.gate_proj": (ffn, dim),
            f"{at}.mlp.up_proj": (ffn, dim),
            f"{at}.mlp.down_proj": (dim, ffn),
            f"{at}.input_layernorm": (dim,),
            f"{at}.post_attention_layernorm": (dim,),
        }
    return {
        f"{name}.weight": (torch.randn(size) * 0.2 + (1.0 if len(size) == 1 else 0.0)).to(dtype)
        for name, size in sizes.items()
    }


def write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """A safetensors file."""
    header, body, at = {}, [], 0
    for name, tensor in tensors.items():
        data = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + len(data)],
        }
        body.append(data)
        at += len(data)
    said = json.dumps(header).encode()
    said += b" " * (-len(said) % 8)
    path.write_bytes(len(said).to_bytes(8, "little") + said + b"".join(body))


def make(root: Path, *, shards: int = 1, dtype: torch.dtype = torch.float32, **config: Any) -> Path:
    """A directory with a configuration and weights, in one file or in several with their map."""
    said = CONFIG | config
    root.mkdir()
    (root / "config.json").write_text(json.dumps(said, indent=2))
    tensors = weights(said, dtype)
    if shards == 1:
        write(root / "model.safetensors", tensors)
        return root
    names = list(tensors)
    where: dict[str, str] = {}
    for n in range(shards):
        file = f"model-{n + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[n::shards]}
        write(root / file, part)
        where |= dict.fromkeys(part, file)
    (root / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": where})
    )
    return root


def read_plainly(root: Path) -> dict[str, torch.Tensor]:
    """As a tool that knows nothing of us."""
    found = {}
    for path in sorted(root.glob("*.safetensors")):
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header, body = json.loads(data[8 : 8 + size]), bytearray(data[8 + size :])
        for name, said in header.items():
            if name != "__metadata__":
                begin, end = said["data_offsets"]
                flat = torch.frombuffer(body[begin:end], dtype=FLOATS[said["dtype"]])
                found[name] = flat.reshape(said["shape"])
    return found


def scaled(frequencies: torch.Tensor, rope: dict[str, Any] | None) -> torch.Tensor:
    """Llama 3.1's rule, pair by pair."""
    if rope is None or rope.get("rope_type", "default") == "default":
        return frequencies
    old = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    found = []
    for frequency in frequencies.tolist():
        wavelength = 2 * math.pi / frequency
        if wavelength < old / high:
            found.append(frequency)
        elif wavelength > old / low:
            found.append(frequency / rope["factor"])
        else:
            smooth = (old / wavelength - low) / (high - low)
            found.append((1 - smooth) * frequency / rope["factor"] + smooth * frequency)
    return torch.tensor(found)


def logits(
    config: dict[str, Any], w: dict[str, torch.Tensor], tokens: torch.Tensor
) -> torch.Tensor:
    """The forward pass, as the format's documentation has it."""
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    head = config.get("head_dim") or config["hidden_size"] // heads
    length = tokens.shape[1]
    frequencies = 1.0 / (config["rope_theta"] ** (torch.arange(0, head, 2).float() / head))
    frequencies = scaled(frequencies, config.get("rope_scaling"))
    angles = torch.arange(length).float()[:, None] * frequencies
    cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"])
        return w[f"{name}.weight"] * (x * scale)

    def rotate_half(x: torch.Tensor) -> torch.Tensor:
        return torch.cat((-x[..., head // 2 :], x[..., : head // 2]), -1)

    x = w["model.embed_tokens.weight"][tokens]
    for n in range(config["num_hidden_layers"]):
        at = f"model.layers.{n}"
        y = norm(x, f"{at}.input_layernorm")
        q, k, v = (
            (y @ w[f"{at}.self_attn.{one}_proj.weight"].T)
            .view(*tokens.shape, -1, head)
            .transpose(1, 2)
            for one in "qkv"
        )
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        k, v = (one.repeat_interleave(heads // groups, dim=1) for one in (k, v))
        scores = q @ k.transpose(-1, -2) / head**0.5
        mask = torch.full((length, length), float("-inf")).triu(1)
        y = ((scores + mask).softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = x + y @ w[f"{at}.self_attn.o_proj.weight"].T
        y = norm(x, f"{at}.post_attention_layernorm")
        gate = F.silu(y @ w[f"{at}.mlp.gate_proj.weight"].T)
        x = x + (gate * (y @ w[f"{at}.mlp.up_proj.weight"].T)) @ w[f"{at}.mlp.down_proj.weight"].T
    x = norm(x, "model.norm")
    return x @ w.get("lm_head.weight", w["model.embed_tokens.weight"]).T

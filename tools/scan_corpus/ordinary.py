# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Ordinary files, written by the libraries themselves: no scan should raise an alarm.

``python -m tools.scan_corpus.ordinary FOLDER`` in an environment with torch, transformers,
scikit-learn, joblib, skops, onnx, gguf, keras, h5py, peft and spacy. Each file lies in a folder of
its own.
"""

import argparse
import importlib
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

Maker = tuple[str, Callable[[Path], object]]

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant"
    "\\n' }}{% endif %}"
)
TOOLS = (
    "{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}"
    "{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}"
    "{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}"
    "{%- if ns.multi_step and message.role == 'user' and message.content is string and not("
    "message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')"
    ") %}{%- set ns.multi_step = false %}{%- set ns.last = index %}{%- endif %}{%- endfor %}"
    "{%- for message in messages %}{%- set content = message.content if message.content is string"
    " else '' %}{%- if '</think>' in content %}{%- set r = content.split('</think>')[0].rstrip("
    "'\\n').split('<think>')[-1].lstrip('\\n') %}{%- endif %}{%- for call in message.tool_calls or"
    ' [] %}{{- \'{"name": "\' + call.function.name ~ \'", "arguments": \' }}{{- call.arguments |'
    " tojson }}{%- endfor %}{%- endfor %}"
)


def _torch() -> Iterator[Maker]:
    torch: Any = importlib.import_module("torch")
    nn = torch.nn
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 2))
    adam = torch.optim.AdamW(model.parameters())
    model(torch.ones(3, 4)).sum().backward()
    adam.step()
    save = torch.save
    quantized = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
    channels = torch.quantize_per_channel(
        torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.qint8
    )
    options = argparse.Namespace(lr=0.1, name="run", layers=[1, 2])
    lightning = {
        "state_dict": model.state_dict(), "hyper_parameters": {"lr": 0.1}, "epoch": 3,
        "pytorch-lightning_version": "2.6.0", "callbacks": {}, "optimizer_states": [],
    }  # fmt: skip
    rng = {"cpu": torch.get_rng_state(), "python": __import__("random").getstate()}
    numpy: Any = importlib.import_module("numpy")
    for name, value in (
        ("pytorch_model.bin", model.state_dict()),
        ("whole.pt", model),
        ("optimizer.pt", adam.state_dict()),
        ("scheduler.pt", torch.optim.lr_scheduler.StepLR(adam, 3).state_dict()),
        ("transformer.pt", nn.TransformerEncoderLayer(8, 2)),
        ("lstm.pth", nn.LSTM(3, 4)),
        ("epoch=3.ckpt", lightning),
        ("options.pt", {"args": options, "model": model.state_dict()}),
        ("quantized.pt", {"w": quantized, "scheme": torch.per_tensor_affine}),
        ("channels.pt", {"w": channels, "scheme": quantized.qscheme()}),
        ("half.pt", {"w": torch.ones(2).half(), "b": torch.ones(2, dtype=torch.bfloat16)}),
        ("sparse.pt", torch.eye(3).to_sparse()),
        ("rng_state.pth", rng | {"numpy": numpy.random.get_state()}),
        ("generator.pt", {"dtype": torch.float16, "size": torch.Size([2])}),
    ):
        yield name, partial(save, value)
    yield "old.pt", lambda to: save(model.state_dict(), to, _use_new_zipfile_serialization=False)
    yield "scripted.pt", lambda to: torch.jit.save(torch.jit.script(model), str(to))
    yield (
        "traced.pt",
        lambda to: torch.jit.save(torch.jit.trace(model.eval(), torch.ones(2, 4)), str(to)),
    )
    yield "lstm_scripted.pt", lambda to: torch.jit.save(torch.jit.script(nn.LSTM(3, 4)), str(to))
    yield (
        "exported.pt2",
        lambda to: torch.export.save(
            torch.export.export(model.eval(), (torch.ones(2, 4),)), str(to)
        ),
    )
    dcp: Any = importlib.import_module("torch.distributed.checkpoint")
    yield (
        "dcp",
        lambda to: dcp.save(
            {"model": model.state_dict(), "step": 3}, checkpoint_id=to, no_dist=True
        ),
    )
    stored: Any = importlib.import_module("safetensors.torch")
    yield "model.safetensors", lambda to: stored.save_file(model.state_dict(), to)
    yield "array.npy", lambda to: numpy.save(to, numpy.ones((3, 3)))
    yield "arrays.npz", lambda to: numpy.savez(to, a=numpy.ones(3), b=numpy.zeros(2))


MODULES: dict[str, tuple[Any, ...]] = {
    "linear": (3, 4), "bilinear": (2, 3, 4), "conv1d": (2, 4, 3), "conv2d": (2, 4, 3),
    "conv3d": (1, 2, 3), "conv_transpose2d": (2, 4, 3), "batch_norm2d": (4,), "layer_norm": (4,),
    "group_norm": (2, 4), "instance_norm2d": (4,), "rms_norm": (4,), "embedding": (9, 4),
    "embedding_bag": (9, 4), "lstm": (3, 4, 2), "gru": (3, 4), "rnn": (3, 4), "lstm_cell": (3, 4),
    "multihead_attention": (8, 2), "transformer_decoder_layer": (8, 2), "prelu": (), "gelu": (),
    "silu": (), "dropout": (0.1,), "upsample": (None, 2.0), "pixel_shuffle": (2,), "flatten": (),
    "softmax": (1,), "max_pool2d": (2,), "adaptive_avg_pool2d": (1,), "cosine_similarity": (),
}  # fmt: skip
"""Of torch.nn, by their functional names, with what they take."""
OPTIMIZERS = "SGD Adam AdamW Adagrad Adadelta RMSprop NAdam RAdam Adamax Rprop ASGD Adafactor"
SCHEDULERS: dict[str, tuple[Any, ...]] = {
    "StepLR": (3,), "MultiStepLR": ([1, 2],), "ExponentialLR": (0.9,), "ConstantLR": (),
    "LinearLR": (), "CosineAnnealingLR": (5,), "PolynomialLR": (), "ReduceLROnPlateau": (),
    "CosineAnnealingWarmRestarts": (2,), "OneCycleLR": (0.1, 9), "CyclicLR": (0.1, 0.2),
}  # fmt: skip


def torch_zoo() -> Iterator[Maker]:
    """Modules, optimizers and schedulers of torch, each saved in the ways that people save them."""
    torch: Any = importlib.import_module("torch")
    kinds = {name.lower(): name for name in dir(torch.nn) if name[0].isupper()}
    for name, takes in MODULES.items():
        module = getattr(torch.nn, kinds[name.replace("_", "")])(*takes)
        yield f"{name}.pt", partial(torch.save, module.state_dict())
        yield f"{name}-whole.pth", partial(torch.save, module)
        yield f"{name}-old.bin", partial(_saved_old, torch, module.state_dict())
        yield f"{name}-scripted.pt", partial(_scripted, torch, module)
    weight = torch.nn.Parameter(torch.ones(3, 4))
    for name in OPTIMIZERS.split():
        made = getattr(torch.optim, name)([weight], lr=0.1)
        weight.sum().backward()
        made.step()
        yield f"{name}.ckpt", partial(torch.save, {"optimizer": made.state_dict(), "epoch": 1})
    for name, takes in SCHEDULERS.items():
        sgd = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        made = getattr(torch.optim.lr_scheduler, name)(sgd, *takes)
        yield f"{name}.pt", partial(torch.save, made.state_dict())


def _saved_old(torch: Any, value: object, to: Path) -> None:
    torch.save(value, to, _use_new_zipfile_serialization=False)


def _scripted(torch: Any, module: Any, to: Path) -> None:
    torch.jit.save(torch.jit.script(module), str(to))


def tokenizers_zoo() -> Iterator[Maker]:
    """Tokenizers as their own library saves them."""
    made: Any = importlib.import_module("tokenizers")
    before, after = made.pre_tokenizers, made.decoders
    for name, model, split, decode in (
        ("bpe", made.models.BPE(), before.ByteLevel(), after.ByteLevel()),
        ("wordpiece", made.models.WordPiece({"[UNK]": 0, "a": 1}), before.BertPreTokenizer(),
         after.WordPiece()),
        ("unigram", made.models.Unigram([("a", 0.0)], 0), before.Metaspace(), after.Metaspace()),
        ("words", made.models.WordLevel({"a": 0}, "a"), before.Whitespace(), after.Fuse()),
    ):  # fmt: skip
        one = made.Tokenizer(model)
        one.pre_tokenizer, one.decoder = split, decode
        one.normalizer = made.normalizers.Sequence([made.normalizers.NFKC()])
        one.add_special_tokens(["<s>", "</s>"])
        one.post_processor = made.processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", one.token_to_id("<s>"))]
        )
        yield f"tokenizer-of-{name}", partial(_tokenizer, one)


def _tokenizer(one: Any, to: Path) -> None:
    to.mkdir()
    one.save(str(to / "tokenizer.json"))


def _sklearn() -> Iterator[Maker]:
    numpy: Any = importlib.import_module("numpy")
    rng = numpy.random.RandomState(0)
    x, y = numpy.abs(rng.rand(60, 5)), rng.randint(0, 2, 60)

    def get(path: str, *args: Any, **options: Any) -> Any:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(f"sklearn.{module}"), name)(*args, **options)

    models = {
        "logistic": get("linear_model.LogisticRegression"),
        "ridge": get("linear_model.Ridge"),
        "sgd": get("linear_model.SGDClassifier"),
        "forest": get("ensemble.RandomForestClassifier", n_estimators=5, random_state=rng),
        "boosting": get("ensemble.GradientBoostingClassifier", n_estimators=5),
        "histogram": get("ensemble.HistGradientBoostingClassifier", max_iter=5),
        "svc": get("svm.SVC", probability=False),
        "kmeans": get("cluster.KMeans", n_clusters=3),
        "neighbours": get("neighbors.KNeighborsClassifier"),
        "pca": get("decomposition.PCA", n_components=2),
        "mlp": get("neural_network.MLPClassifier", max_iter=20),
        "bayes": get("naive_bayes.GaussianNB"),
        "isolation": get("ensemble.IsolationForest", n_estimators=5),
        "pipeline": get(
            "pipeline.make_pipeline", get("preprocessing.StandardScaler"),
            get("linear_model.LogisticRegression"),
        ),
        "search": get("model_selection.GridSearchCV", get("linear_model.Ridge"), {"alpha": [1, 2]}),
    }  # fmt: skip
    joblib: Any = importlib.import_module("joblib")
    for number, (name, model) in enumerate(models.items()):
        model.fit(x, y)
        if number % 2:
            yield f"{name}.joblib", partial(joblib.dump, model)
        else:
            yield f"{name}.pkl", partial(_pickle, model)
    yield "packed.joblib", lambda to: joblib.dump(models["forest"], to, compress=3)
    words = get("feature_extraction.text.TfidfVectorizer").fit(["a zip file", "hex and rot13"])
    yield "words.joblib", lambda to: joblib.dump(words, to)
    skops: Any = importlib.import_module("skops.io")
    yield "forest.skops", lambda to: skops.dump(models["forest"], to)
    yield "logistic.skops", lambda to: skops.dump(models["logistic"], to)


def _transformers() -> Iterator[Maker]:
    hf: Any = importlib.import_module("transformers")
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    small |= {"intermediate_size": 32, "vocab_size": 64}
    bert = hf.BertModel(hf.BertConfig(**small))
    yield "bert", bert.save_pretrained
    llama = hf.LlamaForCausalLM(hf.LlamaConfig(**small, num_key_value_heads=2))
    yield "llama", llama.save_pretrained
    yield (
        "training_args.bin",
        lambda to: importlib.import_module("torch").save(
            hf.TrainingArguments(output_dir=str(to.parent / "out"), use_cpu=True, report_to=[]), to
        ),
    )
    tokens: Any = importlib.import_module("tokenizers")
    made = tokens.Tokenizer(tokens.models.BPE())
    for name, template in (("chatml", CHATML), ("tools", TOOLS)):
        fast = hf.PreTrainedTokenizerFast(tokenizer_object=made, chat_template=template)
        yield f"tokenizer-{name}", fast.save_pretrained
    both = {"chat_template": [{"name": "default", "template": TOOLS}]}
    yield "tokenizer_config.json", lambda to: to.write_text(json.dumps(both))
    yield "chat_template.jinja", lambda to: to.write_text(TOOLS)


def _graphs() -> Iterator[Maker]:
    onnx: Any = importlib.import_module("onnx")
    numpy: Any = importlib.import_module("numpy")
    make = onnx.helper

    def info(name: str) -> Any:
        return make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 4])

    weight = onnx.numpy_helper.from_array(numpy.ones((4, 4), "float32"), "w")
    node = make.make_node("MatMul", ["x", "w"], ["y"])
    graph = make.make_graph([node], "g", [info("x")], [info("y")], [weight])
    plain = make.make_model(graph)
    fused = make.make_node("FusedMatMul", ["x", "w"], ["y"], domain="com.microsoft")
    other = make.make_model(make.make_graph([fused], "g", [info("x")], [info("y")], [weight]))
    tree = make.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", scale=[1.0], offset=[0.0])
    scaled = make.make_model(make.make_graph([tree], "g", [info("x")], [info("y")]))
    branch = make.make_graph([make.make_node("Identity", ["x"], ["z"])], "b", [], [info("z")])
    either = make.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    flag = make.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])
    split = make.make_model(make.make_graph([either], "g", [flag, info("x")], [info("y")]))
    yield "plain.onnx", lambda to: onnx.save(plain, to)
    yield "microsoft.onnx", lambda to: onnx.save(other, to)
    yield "trees.onnx", lambda to: onnx.save(scaled, to)
    yield "branch.onnx", lambda to: onnx.save(split, to)
    yield "outside", partial(_outside, onnx, plain)
    gguf: Any = importlib.import_module("gguf")
    for name, template in (("chat", CHATML), ("tools", TOOLS), ("plain", "")):
        yield f"{name}.gguf", partial(_gguf, gguf, numpy, template)


def _pickle(value: object, to: Path) -> None:
    to.write_bytes(pickle.dumps(value))


def _outside(onnx: Any, model: Any, to: Path) -> None:
    to.mkdir()
    onnx.save(
        model, to / "model.onnx", save_as_external_data=True, location="model.onnx.data",
        size_threshold=0,
    )  # fmt: skip


def _gguf(gguf: Any, numpy: Any, template: str, to: Path) -> None:
    writer = gguf.GGUFWriter(str(to), "llama")
    writer.add_context_length(128)
    writer.add_token_list(["a", "b", "<s>"])
    writer.add_token_scores([0.0, 1.0, 2.0])
    if template:
        writer.add_chat_template(template)
    writer.add_tensor("w", numpy.ones((4, 4), "float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _keras() -> Iterator[Maker]:
    os.environ["KERAS_BACKEND"] = "torch"
    keras: Any = importlib.import_module("keras")
    layers = keras.layers
    dense = keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="relu")])
    dense.compile(optimizer="adam", loss="mse")
    entry = keras.Input((8, 8, 1))
    flat = layers.Flatten()(layers.Conv2D(2, 3, activation="gelu")(entry))
    deep = keras.Model(entry, layers.Dense(2)(layers.Dropout(0.1)(flat)))
    yield "dense.keras", dense.save
    yield "deep.keras", deep.save
    yield "dense.h5", dense.save
    yield "deep.h5", deep.save
    yield "deep.weights.h5", deep.save_weights
    yield "deep.json", lambda to: to.write_text(deep.to_json())


def _configured() -> Iterator[Maker]:
    """Folders of PEFT and spaCy, whose configurations name what they build."""
    hf: Any = importlib.import_module("transformers")
    peft: Any = importlib.import_module("peft")
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 64}
    for name, options in (
        ("lora", peft.LoraConfig(target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")),
        ("lora-all", peft.LoraConfig(target_modules="all-linear", modules_to_save=["lm_head"])),
        (
            "lora-regex",
            peft.LoraConfig(target_modules=r"model\.layers\.0\..*q_proj", use_dora=True),
        ),
        ("ia3", peft.IA3Config(task_type="CAUSAL_LM")),
        ("prompt", peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)),
    ):
        base = hf.LlamaForCausalLM(hf.LlamaConfig(**small, intermediate_size=32))
        yield f"adapter-{name}", peft.get_peft_model(base, options).save_pretrained
    spacy: Any = importlib.import_module("spacy")
    for number, pipes in enumerate((["sentencizer"], ["tagger", "ner"], ["textcat", "lemmatizer"])):
        nlp = spacy.blank("en")
        for pipe in pipes:
            nlp.add_pipe(pipe, config={"mode": "rule"} if pipe == "lemmatizer" else {})
        yield f"spacy-{number}", partial(_spacy, nlp)


def _spacy(nlp: Any, to: Path) -> None:
    """What it writes as text; the rest is in formats of its own, and unknown to a scan."""
    to.mkdir()
    nlp.config.to_disk(to / "config.cfg")
    (to / "meta.json").write_text(json.dumps(nlp.meta))


def main() -> int:
    """Write all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    shutil.rmtree(folder, ignore_errors=True)
    for maker in (
        _torch,
        torch_zoo,
        tokenizers_zoo,
        _sklearn,
        _transformers,
        _graphs,
        _keras,
        _configured,
    ):
        for name, write in maker():
            place = folder / name.replace(".", "-")
            place.mkdir(parents=True)
            write(place / name)
            print(name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

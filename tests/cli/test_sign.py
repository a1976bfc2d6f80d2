# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain sign``: a dataset, its next version, a model; and verify agrees.

Commands of docs/how-to/train-a-job.md are tried here.
"""

import json
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from securetrain.cli.artifacts.sign import command as sign
from securetrain.cli.artifacts.verify import command as verify
from securetrain.cli.identity.trust import command as trust
from securetrain.cli.main import VERBS
from securetrain.core.errors import IntegrityError, UsageError
from securetrain.identity.keys import KeyKind, PrivateKey
from securetrain.identity.trust import TrustRole, TrustRoot, sign_root
from tests.tables import items


def run(verb: object, *arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(verb, [str(one) for one in arguments], standalone_mode=False)  # type: ignore[arg-type]
    if result.exception is not None:
        raise result.exception
    return int(result.return_value), result.stdout


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """key.pem and trust.json."""
    path, now = tmp_path / "key.pem", datetime.now(UTC)
    private = PrivateKey.create(path)
    roles = {TrustRole.DATASET: [private.public], TrustRole.CHECKPOINT: [private.public]}
    data = sign_root(roles, private, now, now + timedelta(days=1))
    (tmp_path / "trust.json").write_bytes(data)
    return path


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    (folder / "train").mkdir(parents=True)
    (folder / "train" / "a.jsonl").write_text("one\ntwo\n")
    return folder


def test_a_dataset_and_its_next_version(corpus: Path, key: Path, tmp_path: Path) -> None:
    trust = tmp_path / "trust.json"
    (tmp_path / "scan.txt").write_text("all clean")
    (tmp_path / "croissant.json").write_text("{}")
    code, text = run(
        sign, corpus, "--dataset", "--key", key, "--samples", "--license", "CC0-1.0",
        "--source", "https://example.org", "--croissant", tmp_path / "croissant.json",
        "--scan-report", f"clamav:1.4:clean:{tmp_path / 'scan.txt'}",
    )  # fmt: skip
    assert code == 0
    assert "version 0 of corpus" in text
    assert "samples  2" in text
    assert run(verify, corpus, "--trust", trust)[0] == 0

    (corpus / "train" / "b.jsonl").write_text("three\n")
    assert run(verify, corpus, "--trust", trust)[0] == 14
    with pytest.raises(IntegrityError) as refused:
        run(sign, corpus, "--dataset", "--key", key)
    assert refused.value.code == "ST-DATA-201"
    with pytest.raises(UsageError, match="must be verified"):
        run(sign, corpus, "--dataset", "--key", key, "--append")
    code, text = run(
        sign, corpus, "--dataset", "--key", key, "--append", "--trust", trust,
        "--remove", "train/a.jsonl:0:4:erasure",
    )  # fmt: skip
    assert "version 1 of corpus" in text
    assert "samples  3" in text
    assert "removed  1" in text
    _, text = run(verify, corpus, "--trust", trust)
    assert "4 bytes are not to be read" in text
    assert "CC0-1.0" in text
    old = (corpus / "statement.json").read_bytes()
    code, text = run(verify, corpus, "--trust", trust, "--json")
    assert code == 0
    said = json.loads(text)["statement"]
    assert said["removed"][0]["reason"] == "erasure"
    assert said["licenses"] == ["CC0-1.0"]
    assert said["scans"][0]["verdict"] == "clean"
    assert len(said["croissant"]) == 64

    # A machine that remembers refuses the version before, once it has seen a newer one.
    floors = ("--floors", tmp_path / "floors.json")
    assert run(verify, corpus, "--trust", trust, *floors)[0] == 0
    code, _ = run(
        sign, corpus, "--dataset", "--key", key, "--append", "--trust", trust,
        "--remove", "train/b.jsonl:0:2:second thoughts",
    )  # fmt: skip
    assert run(verify, corpus, "--trust", trust, *floors)[0] == 0
    (corpus / "statement.json").write_bytes(old)
    assert run(verify, corpus, "--trust", trust)[0] == 0
    code, text = run(verify, corpus, "--trust", trust, *floors)
    assert code == 15
    assert "ST-DATA-151" in text


def test_a_file_of_a_dataset_that_has_grown(corpus: Path, key: Path, tmp_path: Path) -> None:
    next_version = ("--dataset", "--key", key, "--append", "--trust", tmp_path / "trust.json")
    run(sign, corpus, "--dataset", "--key", key)
    (corpus / "train" / "a.jsonl").write_text("one\ntwo\nthree\n")
    _, text = run(sign, corpus, *next_version)
    assert "grown   train/a.jsonl, by 6 bytes" in text
    assert run(verify, corpus, "--trust", tmp_path / "trust.json")[0] == 0
    (corpus / "train" / "a.jsonl").write_text("One\ntwo\nthree\nfour\n")
    with pytest.raises(IntegrityError) as refused:
        run(sign, corpus, *next_version)
    assert refused.value.code == "ST-DATA-171"


def test_a_model_for_other_peoples_tools(corpus: Path, tmp_path: Path) -> None:
    private = PrivateKey.create(tmp_path / "maker.key", KeyKind.P256)
    (tmp_path / "maker.pem").write_bytes(private.public.pem)
    assert run(sign, corpus, "--oms", "--key", tmp_path / "maker.key")[0] == 0
    bundle = corpus / "model.sig"
    check = (verify, corpus, "--bundle", bundle, "--public-key", tmp_path / "maker.pem")
    code, text = run(*check)
    assert code == 0
    assert "VERIFIED" in text
    (corpus / "extra").write_text("x")
    for output in ("text", "json", "sarif", "junit"):
        code, text = run(*check, "--format", output)
        assert code == 14
        assert "ST-OMSB-141" in text
    with pytest.raises(UsageError, match="one root"):
        run(verify, corpus, "--bundle", bundle)


def test_what_of_a_model_is_not_verified_is_named(corpus: Path, tmp_path: Path) -> None:
    private = PrivateKey.create(tmp_path / "maker.key", KeyKind.P256)
    (tmp_path / "maker.pem").write_bytes(private.public.pem)
    (corpus / ".gitattributes").write_text("x")
    (corpus / "logs").mkdir()
    (corpus / "logs" / "a").write_text("x")
    bundle = tmp_path / "model.sig"
    oms = (sign, corpus, "--oms", "--key", tmp_path / "maker.key", "--bundle", bundle)
    code, text = run(*oms, "--ignore-paths", corpus / "logs", "--hash", "blake3")
    assert code == 0
    assert "left out (2): .gitattributes, logs" in text
    (corpus / "extra").write_text("x")
    check = (verify, corpus, "--bundle", bundle, "--public-key", tmp_path / "maker.pem")
    assert run(*check)[0] == 14
    code, text = run(*check, "--ignore-unsigned")
    assert code == 0
    assert "NOT VERIFIED (1)  extra" in text
    assert "NOT VERIFIED (2)  .gitattributes, logs" in text
    found = json.loads(run(*check, "--ignore-unsigned", "--json")[1])
    assert (found["unsigned"], found["left_out"]) == (["extra"], [".gitattributes", "logs"])
    code, text = run(*check, "--ignore-paths", corpus / "extra", "--no-ignore-git-paths")
    assert code == 14
    assert ".gitattributes" in text


def test_a_model_of_one_file(tmp_path: Path) -> None:
    private = PrivateKey.create(tmp_path / "maker.key", KeyKind.P256)
    (tmp_path / "maker.pem").write_bytes(private.public.pem)
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    assert run(sign, model, "--oms", "--key", tmp_path / "maker.key", "--shard-size", 3)[0] == 0
    bundle = tmp_path / "model.gguf.sig"
    check = (verify, model, "--bundle", bundle, "--public-key", tmp_path / "maker.pem")
    assert run(*check)[0] == 0
    model.write_bytes(b"GGUX")
    code, text = run(*check)
    assert code == 13
    assert "bytes 3 to 4" in text


def test_options_of_a_bundle_are_never_passed_over(corpus: Path, key: Path) -> None:
    for option in (("--ignore-paths", "x"), ("--allow-symlinks",), ("--shard-size", 9)):
        with pytest.raises(UsageError, match="goes with --oms"):
            run(sign, corpus, "--dataset", "--key", key, *option)
    for option in (("--ignore-paths", "x"), ("--allow-symlinks",), ("--ignore-unsigned",)):
        with pytest.raises(UsageError, match="one root"):
            run(verify, corpus, *option)


def test_safetensors_where_they_lie(key: Path, tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    folder.mkdir()
    header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  '
    data = struct.pack("<Q", len(header)) + header + bytes(8)
    (folder / "model.safetensors").write_bytes(data)
    (folder / "config.json").write_text("{}")
    code, text = run(sign, folder, "--safetensors", "--key", key, "--name", "llama")
    assert code == 0
    assert "digest" in text
    assert run(verify, folder, "--trust", tmp_path / "trust.json")[0] == 0
    (folder / "zzz.safetensors").write_bytes(data)
    assert run(verify, folder, "--trust", tmp_path / "trust.json")[0] == 14


@items(
    "arguments",
    ("--dataset", "--remove", "a:b:c"),
    ("--dataset", "--remove", "a"),
    ("--dataset", "--scan-report", "x"),
    ("--dataset", "--scan-report", "a:1:maybe:f"),
)
def test_a_bad_command_line_is_said(arguments: tuple[str, ...], corpus: Path, key: Path) -> None:
    with pytest.raises(UsageError) as error:
        run(sign, corpus, "--key", key, *arguments)
    assert error.value.code == "ST-USAG-001"
    assert not (corpus / "statement.json").exists()


def test_help_has_examples() -> None:
    result = CliRunner().invoke(sign, ["--help"])
    assert "securetrain sign data/corpus --key" in result.output
    assert "sign" in VERBS


def test_nothing_says_who_signs(corpus: Path, key: Path) -> None:
    for given in (
        [],
        ["--keyless", "--key", key],
        ["--key", key, "--trust-config", key],
        ["--key", key, "--identity-token", key],
    ):
        with pytest.raises(click.UsageError):
            run(sign, corpus, "--dataset", *given)


def test_a_dataset_and_a_model_by_identity(corpus: Path, tmp_path: Path) -> None:
    """A pipeline signs; a trust root names it; its tag is open, its owner is not."""
    pytest.importorskip("sigstore", reason="sigstore is not installed: nothing is signed keyless")
    from tests.identity.sigstore_services import ISSUER, PIPELINE, serve, token

    PrivateKey.create(tmp_path / "root.pem")
    (tmp_path / "token").write_bytes(token())
    with serve() as services:
        (tmp_path / "config.json").write_bytes(services.config())
        (tmp_path / "sigstore.json").write_bytes(services.instance.trusted_root())
        by = ["--keyless", "--identity-token", tmp_path / "token"]
        by += ["--trust-config", tmp_path / "config.json"]
        assert run(sign, corpus, "--dataset", *by)[0] == 0
    for name, identity in (("good", PIPELINE.replace("v1.0", "*")), ("bad", f"{PIPELINE}/x")):
        code, text = run(
            trust, "init", tmp_path / name, "--key", tmp_path / "root.pem", "--issuer", ISSUER,
            "--identity", f"dataset={identity}", "--trusted-root", tmp_path / "sigstore.json",
        )  # fmt: skip
        assert code == 0
    code, text = run(trust, "show", tmp_path / "good" / "root.json")
    assert f"vouched for by {ISSUER}" in " ".join(text.split())
    assert run(verify, corpus, "--trust", tmp_path / "good" / "root.json")[0] == 0
    code, text = run(verify, corpus, "--trust", tmp_path / "bad" / "root.json")
    assert (code, "ST-DATA-120" in text) == (12, True)
    good = ["--trust", tmp_path / "good" / "root.json", "--expect-signer"]
    (name,) = TrustRoot.load(tmp_path / "good" / "root.json", datetime.now(UTC)).document.identities
    for asked in (PIPELINE, name):
        assert run(verify, corpus, *good, asked)[0] == 0
    template = PIPELINE.replace("v1.0", "*")
    for asked in (template, PIPELINE.replace("v1.0", "v1.1"), PIPELINE[:-1], "a" * 64):
        code, text = run(verify, corpus, *good, asked, "--json")
        assert (code, "ST-DATA-128" in text) == (12, True)
        assert PIPELINE in text, "whom it names instead"

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Commands of docs/how-to/train-a-job.md, docs/how-to/verify-in-ci.md are tried here."""

import hashlib
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner

from securetrain.artifacts.dataset.sign import About, sign_in_place
from securetrain.artifacts.dataset.verified import sign_documents
from securetrain.artifacts.statement.statements import (
    CheckpointPredicate,
    DatasetRef,
    GradientRecord,
    GradientVerdict,
    IndexFile,
    NodeRef,
    Parent,
    PolicyRef,
    TreeInfo,
    sign,
)
from securetrain.artifacts.tree.layout import INDEX, STATEMENT
from securetrain.artifacts.tree.storage import storage_of
from securetrain.cli.artifacts.verify import command
from securetrain.cli.main import main
from securetrain.core.errors import IdentityError, UsageError
from securetrain.core.hashtree import TreeParams
from securetrain.core.vocabulary import NodeTier
from securetrain.identity.keys import PrivateKey
from securetrain.identity.trust import TrustRole, sign_root
from securetrain.policy.load import load_policy
from tests import s3_store
from tests.tables import each


@pytest.fixture(scope="module")
def key():
    return PrivateKey.generate()


@pytest.fixture
def trust(tmp_path, key):
    now = datetime.now(UTC)
    roles = {TrustRole.CHECKPOINT: [key.public], TrustRole.DATASET: [key.public]}
    path = tmp_path / "trust.json"
    path.write_bytes(
        sign_root(roles, PrivateKey.generate(), now - timedelta(hours=1), now + timedelta(days=30))
    )
    return path


@pytest.fixture
def dataset(tmp_path, key):
    return sign_documents(
        [("train", "a", b"x" * 100_000), ("validation", "b", b"y")],
        tmp_path / "data",
        name="corpus",
        key=key,
        now=datetime.now(UTC),
        metadata={"license": "CC0-1.0"},
    ).path


@pytest.fixture
def checkpoint(tmp_path, key):
    """A checkpoint that holds one value and no tensors: enough for what is said about it."""
    root = tmp_path / "step-00000009"
    root.mkdir()
    index = b'{"tensors":[],"values":[{"fqn":"step","value":9}],"version":1}'
    (root / INDEX).write_bytes(index)
    predicate = CheckpointPredicate(
        run_id="run-1",
        step=9,
        seq=1,
        save_id="0" * 32,
        created=datetime.now(UTC),
        world_size=1,
        tree=TreeInfo.of(TreeParams()),
        files=[],
        index=IndexFile(name=INDEX, size=len(index), sha256=hashlib.sha256(index).hexdigest()),
        parents=[Parent(digest="ee" * 32)],
        dataset=DatasetRef(name="corpus", digest="ab" * 32, cursor={"row": 5}),
        policy=PolicyRef(id="dev", digest=load_policy("dev").digest),
        gradients=GradientRecord(verdict=GradientVerdict.CLEAN, judged=9),
        nodes=[NodeRef(node="n0", tier=NodeTier.SELF_ASSERTED, label="UNATTESTED")],
    )
    (root / STATEMENT).write_bytes(sign(predicate, root.name, key))
    return root


def run(*arguments, env=None):
    result = CliRunner().invoke(
        command, [str(a) for a in arguments], env=env, standalone_mode=False
    )
    if result.exception is not None:
        raise result.exception
    return result.return_value, result.stdout


def test_a_policy_is_named_and_compared(checkpoint, trust):
    code, out = run(checkpoint, "--trust", trust, "--policy", "dev")
    assert code == 0
    assert "the one given here" in out
    code, out = run(checkpoint, "--trust", trust, "--policy", "baseline")
    assert code == 12
    assert "REFUSED" in out
    assert "another than the one given here" in out
    assert {"ST-CKPT-121", "ST-CHAN-010", "ST-CHAN-022"} <= set(out.split())
    assert "node n0 is self-asserted" in out


def test_a_changed_dataset(dataset, trust):
    code, out = run(dataset, "--trust", trust)
    assert code == 0
    assert "corpus, version 0, 4 files" in out
    assert "CC0-1.0" in out
    with (dataset / "train.bin").open("r+b") as file:
        file.seek(70_000)
        file.write(b"!")
    code, out = run(dataset, "--trust", trust)
    assert code == 13
    assert "REFUSED" in out
    assert "ST-DATA-130" in out
    assert "train.bin bytes 65536..100000" in out
    assert out.count("fix: ") == 1


@pytest.mark.parametrize("flags", [["--json"], ["--format", "json"]])
def test_json(checkpoint, dataset, trust, flags):
    code, out = run(checkpoint, "--trust", trust, "--policy", "dev", *flags)
    said = json.loads(out)
    assert (code, said["ok"], said["exit"], said["kind"]) == (0, True, 0, "checkpoint")
    assert said["statement"]["runId"] == "run-1"
    assert said["policy"]["id"] == "dev"
    (dataset / "extra").write_bytes(b"")
    code, out = run(dataset, "--trust", trust, *flags)
    said = json.loads(out)
    assert (code, said["ok"], said["exit"]) == (14, False, 14)
    (problem,) = said["problems"]
    assert (problem["code"], problem["file"]) == ("ST-DATA-141", "extra")
    assert problem["fix"]


def test_the_trust_root_has_no_default(checkpoint, trust):
    with pytest.raises(IdentityError) as caught:
        run(checkpoint)
    assert caught.value.code == "ST-IDEN-007"
    assert "--trust FILE" in caught.value.fix
    assert "SECURETRAIN_TRUST" in caught.value.fix
    assert run(checkpoint, env={"SECURETRAIN_TRUST": str(trust)})[0] == 0


def test_an_unsigned_directory(tmp_path, trust):
    (tmp_path / "nothing").mkdir()
    code, out = run(tmp_path / "nothing", "--trust", trust)
    assert code == 10
    assert "nobody that this trust root names" in out
    assert "unknown: there is no statement that verifies" in out


def test_through_the_one_place_where_errors_end(tmp_path, trust, capsys, monkeypatch):
    monkeypatch.delenv("SECURETRAIN_TRUST", raising=False)
    assert main(["verify", str(tmp_path)]) == 10
    assert "ST-CKPT-100" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "no"), "--trust", str(trust), "--json"]) == 20
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "ST-USAG-002"
    assert main(["verify", str(tmp_path / "no"), "--trust", str(tmp_path / "no")]) == 20


def test_help_has_examples():
    _, out = run("--help")
    assert "securetrain verify runs/r1/checkpoints" in out
    assert "Exit codes" in out


UNASKED = (
    *("yaml", "jwt", "http.client", "ssl", "jinja2", "pickle", "obstore"),
    *("cryptography.x509", "OpenSSL", "sigstore", "securetrain.policy.lint"),
    *("securetrain.chain.coordinators", "securetrain.chain.reappraise", "securetrain.evidence.tee"),
    *("securetrain.evidence.gpu", "securetrain.evidence.tpm", "securetrain.artifacts.scan.scanner"),
)
"""What verifying without a policy, a bundle, evidence or a scan does not need: start-up is all the
time that a small artifact takes."""


@pytest.mark.parametrize(
    ("options", "left_out"), [((), UNASKED), (("--policy", "dev"), UNASKED[1:])]
)
def test_verifying_imports_what_the_target_needs(checkpoint, trust, options, left_out):
    program = (
        "import sys\n"
        "from securetrain.cli.main import main\n"
        "code = main(sys.argv[1:])\n"
        f"bad = {{'torch', 'numpy', *{left_out}}} & set(sys.modules)\n"
        "sys.exit(f'{code} {bad}' if bad or code else 0)\n"
    )
    arguments = ["verify", str(checkpoint), "--trust", str(trust), *options]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], timeout=60, capture_output=True, check=False
    )
    # Standard error is not a terminal here: no progress bar in it.
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_summary_is_written_beside_the_verdict(checkpoint, trust, tmp_path):
    target = tmp_path / "vsa.json"
    code, _ = run(checkpoint, "--trust", trust, "--vsa", target)
    assert code == 0
    said = json.loads(target.read_bytes())
    assert said["predicateType"] == "https://slsa.dev/verification_summary/v1"
    assert said["predicate"]["verificationResult"] == "PASSED"
    assert said["predicate"]["verifiedLevels"] == ["SECURETRAIN_L1"]


def test_a_scan_on_top_finds_what_the_signature_does_not_care_about(dataset, trust):
    code, text = run(dataset, "--trust", trust, "--scan", "--json")
    said = json.loads(text)
    assert code == 0
    assert said["ok"]
    assert said["scan"]["findings"] == []
    assert "train.bin" in " ".join(said["scan"]["passed_over"])


def test_a_summary_does_not_pass_what_the_scan_refuses(tmp_path, trust, key):
    source = tmp_path / "evil"
    source.mkdir()
    (source / "x.pkl").write_bytes(b"cposix\nsystem\n(S'id'\ntR.")
    sign_in_place(source, About(name="evil"), key=key, now=datetime.now(UTC))
    target = tmp_path / "vsa.json"
    code, _ = run(source, "--trust", trust, "--scan", "--vsa", target)
    assert code == 19
    predicate = json.loads(target.read_bytes())["predicate"]
    assert predicate["verificationResult"] == "FAILED"
    assert predicate["verifiedLevels"] == []


def test_without_a_digest_there_is_no_summary_and_the_verdict_stays(checkpoint, trust, tmp_path):
    (checkpoint / "statement.json").unlink()
    code, _ = run(checkpoint, "--trust", trust, "--vsa", tmp_path / "vsa.json")
    assert code == 10
    assert not (tmp_path / "vsa.json").exists()


@pytest.mark.parametrize(
    "extra",
    [["--vsa", "v"], ["--walk"], ["--trust", "t"], ["--log-proof", "p"]],
)
def test_nothing_that_was_asked_for_is_ignored_with_a_bundle(tmp_path, extra):
    with pytest.raises(UsageError, match=extra[0]) as caught:
        run(tmp_path, "--bundle", "b", "--public-key", "k", *extra)
    assert caught.value.code == "ST-USAG-001"


def test_the_chain_is_followed_and_a_missing_link_is_a_refusal(checkpoint, dataset, trust):
    code, text = run(checkpoint, "--trust", trust, "--walk")
    assert code == 17
    # Nothing is cut off where a line ends.
    words = " ".join(word for word in text.split() if word.isascii())
    for said in ("ST-CKPT-172", "BROKEN", "not found among the directories that were given"):
        assert said in words
    _, text = run(dataset, "--trust", trust, "--walk", "--json")
    assert json.loads(text)["chain"]["role"] == "dataset"


# URLs.


@pytest.fixture
def url(request, dataset):
    """The dataset's place, as a URL."""
    if not request.param.startswith("gs"):
        yield request.param.format(folder=dataset.parent)
        return
    with s3_store.lent() as store:
        for path in (path for path in dataset.rglob("*") if path.is_file()):
            store.direct("PUT", f"data/{path.relative_to(dataset)}", path.read_bytes())
        yield request.param


@pytest.mark.parametrize(
    "url", ["file://{folder}/data", "local://{folder}/data/", "gs://bucket/data"], indirect=True
)
def test_an_object_store(url, dataset, trust, tmp_path):
    code, out = run(url, "--trust", trust)
    assert code == 0
    assert "VERIFIED" in out
    summary = tmp_path / "vsa.json"
    floors = tmp_path / "floors.json"
    code, out = run(url, "--trust", trust, "--json", "--vsa", summary, "--floors", floors)
    assert code == 0
    assert json.loads(out)["path"] in {str(dataset), url}
    assert json.loads(summary.read_bytes())["predicate"]["verificationResult"] == "PASSED"

    store = storage_of(url)
    before = store.read("train.bin", 1 << 20)
    store.exchange("train.bin", b"y" + before[1:], before)
    code, out = run(url, "--trust", trust)
    assert code == 13
    assert "ST-DATA-130" in out


@pytest.mark.parametrize("url", ["file://{folder}", "local://{folder}"])
def test_links_are_not_followed_by_way_of_a_url(dataset, trust, tmp_path, url):
    real = dataset / "train.bin"
    real.rename(tmp_path / "elsewhere")
    real.symlink_to(tmp_path / "elsewhere")
    code, out = run(url.format(folder=dataset), "--trust", trust, "--json")
    assert code == 14
    assert "ST-DATA-142" in {one["code"] for one in json.loads(out)["problems"]}
    real.unlink()
    real.hardlink_to(tmp_path / "elsewhere")
    code, out = run(url.format(folder=dataset), "--trust", trust, "--json")
    assert code == 14
    assert {one["code"] for one in json.loads(out)["problems"]} == {"ST-DATA-142"}


@pytest.mark.parametrize(
    ("url", "code", "what"),
    [
        ("file:///no/such/place", "ST-USAG-002", "no such directory"),
        ("nosuchstore://bucket/data", "ST-USAG-001", "nosuchstore"),
        ("github://owner/repository", "ST-USAG-001", "no store of the scheme github://"),
        ("gs://bucket/data", "ST-USAG-001", "no credentials are named"),
    ],
)
def test_a_url_that_leads_nowhere(url, code, what, trust):
    with pytest.raises(UsageError, match=what) as refused:
        run(url, "--trust", trust)
    assert refused.value.code == code


@each(
    "id, name, beside, told",
    ("safetensors", "model.safetensors", None, "nobody signed"),
    ("GGUF", "model.gguf", None, "nobody signed"),
    ("an unsigned save of a script", "checkpoint.pt", None, "nobody signed"),
    (
        "with its bundle beside it",
        "a.safetensors",
        "a.safetensors.sig",
        "a.safetensors.sig --public",
    ),
    ("with a bundle of its folder", "a.gguf", "model.sig", "model.sig --public-key"),
)
def test_a_file_that_nobody_signed_is_refused_as_such(tmp_path, trust, name, beside, told):
    folder = tmp_path / name.replace(".", "-") / str(beside)
    folder.mkdir(parents=True)
    (folder / name).write_bytes(b"weights")
    if beside is not None:
        (folder / beside).write_bytes(b"{}")
    code, out = run(folder / name, "--trust", trust, "--json")
    (problem,) = json.loads(out)["problems"]
    assert (code, problem["code"]) == (10, "ST-CKPT-100")
    assert told in problem["what"]


def test_a_store_that_answers_with_errors_of_its_own(trust, monkeypatch):
    """Nothing is there; or it does not say."""
    monkeypatch.setattr("securetrain.artifacts.tree.objects.LONGEST_PAUSE", 0.0)
    for fails, what in ((False, "no such directory"), (True, "500 Internal")):
        with s3_store.lent() as store:
            if fails:
                store.fault = lambda _: s3_store.Fault.INTERNAL
            with pytest.raises(UsageError, match=what) as refused:
                run("gs://bucket/data", "--trust", trust)
        assert refused.value.code == "ST-USAG-002"


@pytest.mark.parametrize(
    "asked", [["--scan"], ["--at", "witness"], ["--offline"], ["--bundle", "b", "--ca", "k"]]
)
def test_what_is_not_done_with_a_store_is_refused(asked, trust):
    asked = asked if "--bundle" in asked else ["--trust", trust, *asked]
    with s3_store.lent(), pytest.raises(UsageError, match="does not apply to a store") as refused:
        run("gs://bucket/data", *asked)
    assert refused.value.code == "ST-USAG-001"


@each(
    "flags, ended, code",
    (("--expect-run", "run-1", "--expect-min-step", "9", "--expect-step", "9"), 0, ""),
    (("--expect-step", "8"), 12, "ST-CKPT-127"),
    (("--expect-dataset", "e" * 64), 17, "ST-CKPT-173"),
    (("--expect-policy", "hardened"), 17, "ST-CKPT-174"),
    (("--expect-name", "prod-model"), 12, "ST-CKPT-126"),
    (("--expect-min-version", "2"), 15, "ST-CKPT-154"),
)
def test_the_artifact_that_is_meant(checkpoint, trust, flags, ended, code):
    found, out = run(checkpoint, "--trust", trust, *flags, "--json")
    assert found == ended
    data = json.loads(out)
    assert [problem["code"] for problem in data["problems"]] == [code] * bool(code)
    assert len(data["expected"]) == 1

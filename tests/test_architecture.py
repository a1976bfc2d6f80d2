# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""What the verbs load when they run.

What the text of the tree shows is held by import-linter and by ``tools/gates`` (``make lint``).
"""

import json
import sys
from collections import Counter
from datetime import UTC, datetime

from tests.vocabulary import ran


def _modules_after(arguments, tmp_path, before=""):
    """Run a command; its exit code and the third-party packages that it imported."""
    out = tmp_path / "modules.json"
    code = (
        f"import json, sys\n{before}\n"
        "from securetrain.cli.main import main\n"
        "try:\n"
        "    code = main(sys.argv[2:])\n"
        "except SystemExit as error:\n"
        "    code = error.code\n"
        "names = sorted({name.partition('.')[0] for name in sys.modules})\n"
        "open(sys.argv[1], 'w').write(json.dumps([code, names]))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(out), *map(str, arguments)]
    result = ran(command, cwd=tmp_path)
    exit_code, names = json.loads(out.read_text())
    return exit_code, set(names), result.stdout


HEAVY = {"torch", "numpy", "matplotlib", "scapy", "sigstore"}


def test_help_imports_nothing_heavy(tmp_path):
    code, names, out = _modules_after(["--help"], tmp_path)
    assert code in (0, None)
    assert "quickstart" in out
    assert not names & (HEAVY | {"cryptography", "OpenSSL", "yaml", "rich"})


def test_the_check_for_heavy_imports_can_see(tmp_path):
    _, names, _ = _modules_after(["--help"], tmp_path, before="sys.modules['torch'] = sys")
    assert "torch" in names


def test_verify_needs_no_torch(tmp_path):
    from securetrain.artifacts.dataset.write import sign_dataset
    from securetrain.testing.runs import make_run

    run = make_run(tmp_path / "run", clock=lambda: datetime.now(UTC))
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.bin").write_bytes(b"x" * 1000)
    sign_dataset(
        source,
        tmp_path / "signed",
        name="small",
        key=run.keys["dataset"],
        now=datetime.now(UTC),
        splits={"train": ["train.bin"]},
    )
    arguments = ["verify", tmp_path / "signed", "--trust", run.run_dir.trust]
    code, names, out = _modules_after(arguments, tmp_path)
    assert code in (0, None), out
    assert not names & HEAVY
    (tmp_path / "signed" / "train.bin").write_bytes(b"y" * 1000)
    code, _, _ = _modules_after(arguments, tmp_path)
    assert code == 13  # so that it was really verified


def test_a_launcher_loads_no_judge_of_what_its_policy_does_not_name(tmp_path):
    """Modules are counted, not time: what is imported here delays every start of a job."""
    code = (
        "import sys, securetrain.launch.entrypoint, securetrain.rendezvous.member.client;"
        "print(*(name[12:] for name in sys.modules if name.startswith('securetrain.')))"
    )
    names = ran([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path).stdout.split()
    rooms = Counter(name.partition(".")[0] for name in names)
    assert rooms["launch"] > 40
    assert rooms["audit"] <= 5, "the form of its results"
    assert rooms["evidence"] <= 15, "what a node says of itself"
    assert rooms["attest"] <= 16
    judges = ("audit.subjects", "evidence.gpu", "evidence.tee", "evidence.tpm.", "attest.fleet")
    assert not [name for name in names if name.startswith(judges)]


def test_audit_of_a_node_needs_no_torch(tmp_path):
    code, names, out = _modules_after(["audit", "--node", "--policy", "dev"], tmp_path)
    assert code in (0, 1, 3, None), out
    assert out
    assert not names & HEAVY


def test_training_and_signing_need_no_other_extra(tmp_path):
    """What `pip install securetrain[train,report]` leaves out; the tests have all of it."""
    missing = ("boto3", "nacl", "obstore", "pkcs11", "psycopg", "pyarrow", "scapy", "sigstore")
    code = (
        f"import sys; sys.modules |= dict.fromkeys({(*missing, 'securesystemslib', 'tuf')!r})\n"
        "import securetrain.train.run, securetrain.report.pages.signatures"
    )
    ran([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path)

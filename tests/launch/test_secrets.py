# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Named secrets in whole runs: an unmodified script has them, and no disk, log or variable has.

Commands of docs/how-to/give-secrets.md are tried here.
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from securetrain.core import hold_secret, secret, secret_variable
from securetrain.core.errors import RuntimeRefusal
from securetrain.identity.signing import Ask, SigningSocket, frame
from securetrain.launch.node.secrets import NodeSecrets, no_secrets
from securetrain.launch.worker.script import hand_over
from securetrain.policy.schema import Secret
from securetrain.policy.secret import HandOver
from securetrain.rendezvous.member import Opened
from securetrain.rendezvous.wire.protocol import WithheldSecret
from tests.vocabulary import refused
from tests.waiting import in_time

CANARY = b"CANARY-SECRET-a91d-0123456789"
TOKEN = b"CANARY-TOKEN-a91d-0123456789"
POLICY = """\
extends: dev
apiVersion: securetrain.dev/policy/v1
kind: Policy
metadata: {id: with-secrets, version: 1.0.0}
node:
  secrets:
    dataset-key: {min_tier: self-asserted}
    registry-token: {min_tier: self-asserted, hand_over: environment, variable: HF_TOKEN}
    for-the-proven: {min_tier: vtpm}
"""

# Everything that can be read of this run while the script has the secrets, and by whom.
SCRIPT = """
import json, multiprocessing, os, resource, subprocess, sys, time
import securetrain
key, token = securetrain.secret("dataset-key"), os.environ["HF_TOKEN"].encode()
fd = int(os.environ["SECURETRAIN_SECRET_DATASET_KEY_FD"])
assert os.pread(fd, 100, 0) == key
try:
    os.pwrite(fd, b"x", 0)
    sealed = False
except PermissionError:
    sealed = True
try:
    withheld = securetrain.secret("for-the-proven").decode()
except Exception as error:
    withheld = str(error)
queue = multiprocessing.get_context("fork").SimpleQueue()
child = multiprocessing.get_context("fork").Process(
    target=lambda: queue.put(securetrain.secret("dataset-key").decode()))
child.start(); forked = queue.get(); child.join()
read = "import securetrain; securetrain.secret('dataset-key')"
other = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True)
out = sys.argv[1]
json.dump({
    "key": key.decode(), "token": token.decode(), "sealed": sealed, "withheld": withheld,
    "forked": forked, "other": other.stderr[-400:],
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "filter": open("/proc/self/coredump_filter").read().strip(),
}, open(f"{out}/rank-{os.environ['RANK']}.part", "w"))
os.rename(f"{out}/rank-{os.environ['RANK']}.part", f"{out}/rank-{os.environ['RANK']}.json")
for _ in range(2400):
    if os.path.exists(f"{out}/go"):
        break
    time.sleep(0.05)
"""


def files_with(root, what):
    found = [path for path in root.rglob("*") if path.is_file() and what in path.read_bytes()]
    return [str(path.relative_to(root)) for path in found]


def in_sight():
    """The processes of this machine that show a secret in their environment or arguments."""
    found = []
    for pid in [one.name for one in Path("/proc").iterdir() if one.name.isdecimal()]:
        with suppress(OSError):
            shown = Path(f"/proc/{pid}/environ").read_bytes()
            shown += Path(f"/proc/{pid}/cmdline").read_bytes()
            if CANARY in shown or TOKEN in shown:
                found.append(ascii(Path(f"/proc/{pid}/cmdline").read_bytes()))
    return found


@pytest.mark.dist
def test_a_script_has_its_secrets_and_nothing_else_has(launch, tmp_path):
    out, kept = tmp_path / "out", tmp_path / "kept"
    out.mkdir()
    kept.mkdir()
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "train.py").write_text(SCRIPT)
    for name, value in (("key", CANARY), ("token", TOKEN + b"\n"), ("proven", CANARY)):
        (kept / name).write_bytes(value)
        (kept / name).chmod(0o600)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            launch,
            tmp_path / "run",
            *("--standalone", "--nproc-per-node", "2", "--policy", str(tmp_path / "policy.yaml")),
            *("--secret", f"dataset-key=file:{kept / 'key'}"),
            *("--secret", f"registry-token=command:cat {kept / 'token'}"),
            *("--secret", f"for-the-proven=file:{kept / 'proven'}"),
            *(str(tmp_path / "train.py"), str(out)),
        )
        while not running.done() and len(list(out.glob("rank-*.json"))) < 2:
            time.sleep(0.05)
        meanwhile, on_disk = in_sight(), files_with(tmp_path / "run", b"CANARY-")
        (out / "go").touch()
        done = running.result()
    assert done.code == 0, done.err
    assert (meanwhile, on_disk) == ([], []), "while two workers and their launcher hold them"
    for rank in range(2):
        said = json.loads((out / f"rank-{rank}.json").read_text())
        assert (said["key"], said["token"]) == (CANARY.decode(), TOKEN.decode())
        assert said["sealed"]
        assert "ST-RUNT-036" in said["withheld"]
        assert said["forked"] == CANARY.decode()
        assert "ST-RUNT-036" in said["other"], "a program that was started has the variable alone"
        assert said["core"] in ([0, 0], [1, 1])
        assert int(said["filter"], 16) == 0
    assert files_with(tmp_path / "run", b"CANARY") == []
    assert b"CANARY" not in (done.err + done.out).encode()
    assert "for-the-proven was withheld: ST-ADMN-043" in done.err
    names = [(e.details["secret"], e.details["tier"]) for e in done.events("secret-released")]
    assert names == [("dataset-key", "self-asserted"), ("registry-token", "self-asserted")]
    assert {e.code for e in done.events("secret-withheld")} == {"ST-ADMN-043"}
    # The control: what people do without this is in sight.
    with subprocess.Popen(["/bin/sleep", "60"], env={"HF_TOKEN": TOKEN.decode()}) as plain:
        try:
            deadline = time.monotonic() + 60
            # A program's environment and arguments come in sight a moment after it has started.
            while in_sight() != [ascii(b"/bin/sleep\x0060\x00")]:
                in_time(deadline, in_sight)
        finally:
            plain.kill()


@pytest.mark.parametrize("given", [[], ["--secret", "dataset-key=CANARY-IN-THE-LINE"]])
def test_a_run_does_not_start_without_its_secrets_and_shows_none(launch, tmp_path, given):
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "train.py").write_text("")
    done = launch(
        tmp_path / "run",
        *("--standalone", "--policy", str(tmp_path / "policy.yaml"), *given),
        str(tmp_path / "train.py"),
    )
    assert done.code == 2
    assert "ST-USAG-001" in done.err
    assert "CANARY" not in done.err
    if given:
        assert not (tmp_path / "run").exists(), "refused before there is anything to write to"
    else:
        assert [e.code for e in done.events("secrets-refused")] == ["ST-USAG-001"]


class Connected:
    """A member that is in, until it is not."""

    connected = True

    def __init__(self, opened):
        self.opened = opened
        self.asked = []

    def ask_secrets(self, epoch, timeout):
        self.asked.append(epoch)
        return self.opened


def test_a_launcher_gives_what_it_has_while_it_is_in():
    withheld = WithheldSecret(name="b", code="ST-ADMN-043", what="for tpm")
    member = Connected(Opened(epoch=0, secrets={"a": b"1"}, withheld={"b": withheld}))
    said: list[str] = []
    node = NodeSecrets(rules={"a": Secret(), "b": Secret()}, say=said.append)
    refused(RuntimeRefusal, "ST-RUNT-036", node.give, "a")
    node.begin(member, 0)
    assert node.give("a") == b"1"
    assert "ST-ADMN-043" in refused(RuntimeRefusal, "ST-RUNT-036", node.give, "b").what
    refused(RuntimeRefusal, "ST-RUNT-036", node.give, "c")
    member.connected = False
    refused(RuntimeRefusal, "ST-RUNT-036", node.give, "a")
    member.connected, member.opened = True, None
    node.begin(member, 1)
    refused(RuntimeRefusal, "ST-RUNT-036", node.give, "a")
    assert (member.asked, len(said)) == ([0, 1], 2)
    NodeSecrets(rules={}, say=said.append).begin(member, 2)
    assert member.asked == [0, 1], "where the policy names none, nobody is asked"
    refused(RuntimeRefusal, "ST-RUNT-036", no_secrets, "a")


def test_a_number_that_belongs_to_another_file(tmp_path, monkeypatch):
    """A variable outlives the file where a program is started: its number is somebody else's."""
    fd = hold_secret("dataset-key", CANARY)
    monkeypatch.setenv(secret_variable("dataset-key"), str(fd))
    assert secret("dataset-key") == CANARY
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    another = hold_secret("registry-token", TOKEN)
    for wrong in (other, another, 999_999):
        monkeypatch.setenv(secret_variable("dataset-key"), str(wrong))
        refused(RuntimeRefusal, "ST-RUNT-036", secret, "dataset-key")
    for text in ("", "-1", "x"):
        monkeypatch.setenv(secret_variable("dataset-key"), text)
        refused(RuntimeRefusal, "ST-RUNT-036", secret, "dataset-key")
    for one in (fd, other, another):
        os.close(one)


@pytest.mark.parametrize("value", [b"\xff\xfe", b"a\0b"], ids=["no-text", "zero"])
def test_a_variable_is_a_text(value, monkeypatch, capsys):
    monkeypatch.setattr(SigningSocket, "secret", lambda _self, _name: value)
    environ: dict[str, str] = {}
    rule = Secret(hand_over=HandOver.ENVIRONMENT, variable="HF_TOKEN")
    # Without the limits, which would stay in this process.
    monkeypatch.setattr("securetrain.launch.worker.script.undumped", lambda: None)
    hand_over({"token": rule}, "/nowhere", environ, 3)
    assert "HF_TOKEN" not in environ
    assert "ST-RUNT-036" in capsys.readouterr().err
    os.close(int(environ[secret_variable("token")]))


CRASH = """
import os, sys
from securetrain.core import undumped
if sys.argv[1] == "ours":
    undumped()
os.chdir(sys.argv[2])
held = "CANARY-IN-MEMORY" * 100
os.abort()
"""


def test_a_process_that_holds_secrets_dumps_no_core(tmp_path):
    """Where the machine writes dumps into the working directory the control leaves one."""
    limits = {}
    for how in ("plain", "ours"):
        folder = tmp_path / how
        folder.mkdir()
        code = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (-1, -1))\n" + CRASH
        subprocess.run([sys.executable, "-c", code, how, str(folder)], check=False)
        limits[how] = files_with(folder, b"CANARY-IN-MEMORY")
    assert limits["ours"] == []
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if pattern and pattern[0] not in "|/":
        assert limits["plain"], pattern


def test_the_letter_of_the_question_is_one():
    assert frame(Ask.SECRET, b"{}")[:1] == b"S"

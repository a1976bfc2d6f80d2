# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Bad command lines, the CA, policies, audits, evidence of nodes, scans, and what is left."""

import json
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tools.surface.artifacts import FORMATS, flip
from tools.surface.story import Story

FACTS: Final = Path(__file__).resolve().parents[2] / "tests" / "audit" / "fixtures/reference.json"
EVIL: Final = b"cposix\nsystem\n(S'true'\ntR."
POLICY: Final = (
    "extends: baseline\napiVersion: securetrain.dev/policy/v1\nkind: Policy\n"
    "metadata: {id: p, version: 1.0.0}\n"
)
JOB: Final = "apiVersion: securetrain.dev/job/v1\nkind: TrainJob\nname: t\nsteps: 1\n"


def usage(story: Story) -> None:
    """Command lines that no verb takes."""
    run = story.run
    for words in ("", "--version", "nonsense", "--nonsense", "verify", "verify --json"):
        run(*words.split())
    plain = "quickstart plan sign convert waive scan audit drill coordinator report run train"
    groups = ("attest", "policy", "threats", "ca", "trust", "log", "key", "enroll", "network")
    for verb in (*plain.split(), *groups):
        run(verb, "--no-such-option")
        run(verb, "--json", "--no-such-option")
    for verb in ("plan", "sign", "convert", "scan", "waive", "report", "coordinator", "audit"):
        run(verb)
    for group in groups:
        run(group)
        run(group, "nonsense")
        run(group, "nonsense", "--json")


def ca(story: Story) -> None:
    """A certificate authority, its nodes, a revoked one, and tokens."""
    run, here = story.run, story.here
    run("ca", "init", "ca", "--trust-domain", "a.example", "--json")
    run("ca", "init", "ca")
    run("ca", "issue", "ca", "--job", "j", "--node", "n", "--out", "identity")
    run("ca", "issue", "ca", "--job", "j", "--node", "n", "--out", "identity")
    run("ca", "issue", "ca", "--job", "j", "--coordinator", "--out", "coordinator")
    run("ca", "issue", "ca", "--job", "j", "--out", "neither")
    run("ca", "list", "ca")
    run("ca", "revoke", "ca", "--node", "n", "--reason", "sold", "--json")
    run("ca", "revoke", "ca", "--reason", "sold")
    run("ca", "issue", "ca", "--job", "j", "--node", "n", "--out", "identity-2")
    run("ca", "list", "ca", "--json")
    run("enroll", "token", "--ca", "ca", "--job", "j", "--node", "m", "--address", "127.0.0.1:9")
    run("enroll", "token", "--ca", "ca", "--job", "j", "--node", "m", "--address", "127.0.0.1:9",
        "--json")  # fmt: skip
    run("enroll", "token", "--ca", "ca", "--job", "j", "--node", "n", "--address", "127.0.0.1:9")
    run("enroll", "join", "st1_nonsense", "--out", "joined", "--json")
    run("coordinator", "--ca", "absent", "--job", "j", "--nnodes", "1", "--json")
    run("coordinator", "--ca", "ca", "--job", "j", "--nnodes", "many")
    shutil.copytree(here / "ca", here / "tampered")
    (here / "tampered" / "revoked.json").write_text("{")
    run("ca", "list", "tampered", "--json")
    shutil.rmtree(here / "tampered")


def policies(story: Story) -> None:
    """The shipped policies explained, and files with one mistake each."""
    run, here = story.run, story.here
    for name in ("dev", "baseline", "hardened"):
        run("policy", "explain", name)
        run("policy", "explain", name, "--json")
    run("policy", "explain", "dev", "--section", "node")
    run("policy", "explain", "dev", "--section", "weather")
    run("policy", "explain", "absent", "--json")
    bodies = {
        "warn": "host: {preflight: warn}\n",
        "field": "colour: red\n",
        "value": "supply_chain: {torch_min: newest}\n",
        "check": "host: {skip_checks: [ST-NET-999]}\n",
        "broken": "host: [\n",
        "twice": "host: {fail_on: high, fail_on: low}\n",
    }
    for name, body in bodies.items():
        (here / f"{name}.yaml").write_text(POLICY + body)
        run("policy", "lint", f"{name}.yaml")
        run("policy", "lint", f"{name}.yaml", "--json")
    run("policy", "explain", "warn.yaml", "--section", "host")
    run("policy", "explain", "field.yaml")


def audit(story: Story) -> None:
    """Judgements of saved facts, good and bad."""
    run, here = story.run, story.here
    run("audit", "--list")
    run("audit", "--list", "--json")

    def write(name: str, change: Callable[[Any], object] = lambda _: None, at: str = "") -> None:
        facts = json.loads(FACTS.read_text())
        facts["collected"]["at"] = at or datetime.now(UTC).isoformat()
        change(facts)
        (here / name).write_text(json.dumps(facts))

    def deny(facts: Any) -> None:
        for section in facts["node"].values():
            section.update(outcome="denied", reason="no rights", value=None)

    def open_port(facts: Any) -> None:
        facts["node"]["listeners"]["value"].append(
            {"address": "0.0.0.0", "port": 8888, "scope": "any", "uid": 0, "process": None}  # noqa: S104
        )

    write("good.json")
    write("open.json", open_port)
    write("denied.json", deny)
    write("old.json", at="2026-01-01T00:00:00+00:00")
    write("strange.json", lambda facts: facts.update(colour="red"))
    for name in ("good", "open", "denied", "old", "strange"):
        run("audit", "--facts", f"{name}.json", "--unsigned")
        run("audit", "--facts", f"{name}.json", "--unsigned", "--json")
    run("audit", "--facts", "open.json", "--unsigned", "--policy", "dev")
    run("audit", "--facts", "open.json", "--unsigned", "--policy", "hardened", "--json")
    run("audit", "--facts", "absent.json", "--json")
    run("audit", "--facts", "good.json", "--unsigned", "--waivers", "secret")
    run("audit", "--facts", "good.json", "--node")


def attest(story: Story) -> None:
    """Evidence of a node that only its own word speaks for."""
    run, here = story.run, story.here
    run("attest", "keygen", "attest.pem")
    run("attest", "keygen", "attest.pem", "--json")
    signed_by = json.loads(run("attest", "keygen", "cache.pem", "--json"))["signed_by"]
    (here / "attester.json").write_text("{}")
    collect = ("attest", "collect", "--node", "node-0", "--state", "state", "--attester")
    run(*collect, "attester.json", "--out", "n0.json", "--json")
    run(*collect, "absent.json", "--out", "never.json")
    run(*collect, "self", "--out", "never.json")
    run("attest", "show", "n0.json")
    run("attest", "show", "n0.json", "--json")
    for section in ("node", "self-report", "tpm", "weather"):
        run("attest", "show", "n0.json", "--section", section)
    run("attest", "show", "secret", "--json")
    for policy in ("dev", "baseline", "hardened"):
        run("attest", "verify", "n0.json", "--policy", policy)
        run("attest", "verify", "n0.json", "--policy", policy, "--json")
    run("attest", "challenge", "n0.json", "--policy", "dev", "--out", "q.json", "--secret", "q.key")
    run("attest", "challenge", "n0.json", "--policy", "dev", "--out", "q2.json", "--secret",
        "q2.key", "--json")  # fmt: skip
    run(*collect, "attester.json", "--out", "a0.json", "--question", "q.json")
    run("attest", "verify", "a0.json", "--policy", "dev", "--secret", "q.key", "--json")
    run("attest", "verify", "a0.json", "--policy", "dev", "--secret", "q2.key", "--json")
    run("attest", "verify", "a0.json", "--policy", "dev", "--secret", "q.key", "--ear", "ear.jwt",
        "--sign-key", "p256.pem")  # fmt: skip
    run("attest", "verify", "a0.json", "--policy", "dev", "--at", "yesterday")
    enroll = ("attest", "enroll", "n0.json", "--reference-values", "fleet.json", "--key")
    run(*enroll, "attest.pem")
    run(*enroll, "attest.pem", "--json")
    run(*enroll, "other.pem", "--json")
    run("attest", "cache", "list", "cache", "--signed-by", signed_by)
    run("attest", "cache", "add", "cache", "--key", "cache.pem", "--json")
    run("attest", "cache", "add", "cache", "--key", "cache.pem", "--crl", "nonsense")
    run("attest", "cache", "add", "cache", "--key", "cache.pem", "--crl", "amd-Milan-VCEK=secret")
    run("attest", "cache", "list", "cache", "--signed-by", signed_by, "--json")
    run("attest", "cache", "list", "cache", "--signed-by", "cache.pem.pub")
    run("attest", "revocations", "state")
    run("attest", "revocations", "state", "--json")
    run("attest", "restore", "node-0", "--state", "state")


def machine(story: Story) -> None:
    """A node with a software TPM: enrolled, asked, proven, and what is refused."""
    if shutil.which("swtpm") is None:
        print("there is no swtpm: nothing is recorded of machines with a TPM", file=sys.stderr)
        return
    from securetrain.testing.bootlog import Boot  # noqa: PLC0415 - public fakes
    from securetrain.testing.machine import Machine  # noqa: PLC0415

    run, here = story.run, story.here

    def collect(machine: Machine, out: str, *more: str, node: str = "") -> None:
        machine.write_settings(here / "tpm.json")
        run("attest", "collect", "--node", node or machine.name, "--attester", "tpm.json",
            "--state", f"{machine.name}.state", "--out", out, *more)  # fmt: skip

    home = here / "machines"
    home.mkdir()
    with (
        Machine(home / "node-1", "node-1", ca=home / "ca") as first,
        Machine(home / "node-2", "node-2", ca=home / "ca") as second,
    ):
        first.boot()
        second.boot()
        collect(first, "n1.json", "--json")
        (here / "root.crt").write_text(first.tpm.root_certificate)
        (here / "issuer.crt").write_text(first.tpm.issuer_certificate)
        enroll = ("attest", "enroll", "--reference-values", "machines.json", "--key", "cache.pem")
        roots = ("--virtual-root", "root.crt", "--intermediate", "issuer.crt")
        chain = (*roots, "--learn-boot", "--unproven")
        run(*enroll, "n1.json")
        run(*enroll, "n1.json", *chain)
        told = json.loads(run(*enroll, "n1.json", *chain, "--json"))
        (here / "machines.yaml").write_text(
            POLICY + "node:\n  min_tier: vtpm\n  tpm: {ima: log}\n  reference_values:"
            f" {{file: machines.json, signed_by: ['{told['signed_by']}']}}\n"
        )
        policy = ("--policy", "machines.yaml")
        question = ("--out", "q1.json", "--secret", "q1.key")
        run("attest", "challenge", "n1.json", *policy, *question, "--json")
        collect(first, "a1.json", "--question", "q1.json")
        check = ("attest", "verify", "a1.json", *policy)
        run(*check, "--secret", "q1.key")
        run(*check, "--secret", "q1.key", "--json", "--ear", "a1.jwt", "--sign-key", "p256.pem")
        run(*check)
        run(*check, "--json")
        run(*check, "--secret", "q1.key", "--at", "2026-01-01T00:00:00Z", "--json")
        run("attest", "show", "a1.json")
        sections = json.loads(run("attest", "show", "a1.json", "--json"))["sections"]
        for section in sections:
            run("attest", "show", "a1.json", "--section", section["name"])
        collect(second, "wrong.json", node="node-1")
        run("attest", "verify", "wrong.json", *policy, "--json")
        run("attest", "challenge", "wrong.json", *policy, "--out", "q2", "--secret", "q3")
        run(*enroll, "wrong.json", *chain)
        first.execute("/tmp/backdoor", b"unknown")  # noqa: S108 - a name in a log
        collect(first, "executed.json")
        run("attest", "verify", "executed.json", *policy, "--json")
        first.what = Boot(kernel=b"a kernel with a back door")
        first.reboot()
        collect(first, "booted.json")
        run("attest", "verify", "booted.json", *policy)
        run("attest", "verify", "booted.json", *policy, "--json")
    shutil.rmtree(home)  # the TPMs' own files are not ours


def scan(story: Story) -> None:
    """Files with and without something that would run."""
    run, here = story.run, story.here
    (here / "scanned").mkdir()
    (here / "empty").mkdir()
    (here / "scanned" / "evil.pkl").write_bytes(EVIL)
    (here / "scanned" / "a\x1b[2J.pkl").write_bytes(EVIL)
    (here / "clean.pkl").write_bytes(b"\x80\x02}q\x00.")
    (here / "cut.pkl").write_bytes(EVIL[:9])
    for form in FORMATS:
        run("scan", "scanned", "--format", form)
        run("scan", "clean.pkl", "--format", form)
    run("scan", "clean.pkl", "--opcodes", "--json")
    run("scan", "cut.pkl", "--json")
    run("scan", "empty", "--json")
    run("scan", "absent", "--json")
    run("scan", "old")
    run("scan", "new", "--json")


def rest(story: Story) -> None:
    """Threat models, drills, networks, plans, bad jobs and the report of a small run."""
    from securetrain.testing.runs import make_run  # noqa: PLC0415 - public fakes

    run, here = story.run, story.here
    run("threats", "verify")
    run("threats", "verify", "--json")
    run("threats", "verify", "absent", "--json")
    (here / "mine.yaml").write_text("schema: x\n")
    run("threats", "verify", "mine.yaml", "--json")
    run("drill", "--list")
    run("drill", "--list", "--json")
    run("drill", "D-NOT-THERE", "--json")
    run("network", "gc", "--state", "none", "--json")
    (here / "job.yaml").write_text(JOB)
    (here / "bad.yaml").write_text(JOB + "colour: red\n")
    run("plan", "job.yaml")
    run("plan", "job.yaml", "--device", "h100", "--json")
    run("plan", "job.yaml", "--memory", "1", "--json")
    run("plan", "job.yaml", "--device", "abacus")
    run("plan", "bad.yaml", "--json")
    run("plan", "absent.yaml", "--json")
    run("train", "absent.yaml")
    run("train")
    run("train", "bad.yaml")
    run("run")
    run("run", "--policy", "absent", "script.py")
    make_run(here / "run", clock=lambda: datetime.now(UTC))
    run("report", "run")
    run("report", "run", "--json")
    run("report", "run", "--html", "run.html", "--json")
    run("report", "absent", "--json")
    shutil.copytree(here / "run", here / "tampered")
    flip(here / "tampered" / "ledger.jsonl")
    run("report", "tampered", "--json")
    shutil.rmtree(here / "tampered")

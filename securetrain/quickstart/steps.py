# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The steps of the story that need no training: keys, corpus, audit, verification, drills, report.

Each function is one step: it does the thing with the code that the other commands use, shows what
it found, and returns one sentence. Errors are left to the command line.
"""

import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from securetrain.artifacts import report, verify_path
from securetrain.artifacts.dataset import write
from securetrain.audit import AuditResult, Finding
from securetrain.core import RunDir, canonical
from securetrain.core.files import write_atomic
from securetrain.core.vocabulary import TEST_ONLY, UNATTESTED, State
from securetrain.drills import DRILLS, run_drill
from securetrain.identity.keys import PrivateKey
from securetrain.launch import loopback_environment, prepare_run, run_preflight
from securetrain.quickstart import corpus
from securetrain.quickstart.story_state import Story
from securetrain.report import DRILLS_FILE, VERIFY_FILE, VerificationView

DATASET_NAME: Final = "cpython-prose"
MAX_FINDINGS: Final = 6


def keys_and_policy(story: Story) -> str:
    """Step 1."""
    setup = prepare_run(story.options.run_dir, story.policy_name, story.clock())
    story.policy = setup.policy
    metadata = setup.policy.policy.metadata
    story.screen.result(f"policy {metadata.id} {metadata.version}: {metadata.title}")
    story.screen.result(
        "five signing keys, a node key and a signed trust root; the job CA lives in memory only"
    )
    return f"policy {metadata.id} {metadata.version}, digest {setup.policy.digest[:12]}"


def signed_corpus(story: Story) -> str:
    """Step 2."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    with story.screen.bar() as bar:
        found = corpus.collect(
            stdlib, progress=lambda done, total: bar.update(done, total, "reading docstrings")
        )
        signed = write.sign_documents(
            _in_splits(found),
            story.run.dataset,
            name=DATASET_NAME,
            key=PrivateKey.load(story.run.key("dataset")),
            now=story.clock(),
            metadata={
                "source": f"docstrings and help topics of {sysconfig.get_python_version()}",
                "licence": "PSF-2.0",
                "documents": str(len(found.documents)),
                "skipped": str(len(found.skipped)),
            },
        )
    held_out = sum(d.split is corpus.Split.VALIDATION for d in found.documents)
    story.screen.result(
        f"{found.num_bytes / 1e6:.2f} MB of English in {len(found.documents)} documents,"
        f" {held_out} of them held out"
    )
    if found.skipped:
        some = ", ".join(found.skipped[:3]) + (", ..." if len(found.skipped) > 3 else "")
        story.screen.warn(f"left out (a link, too large, or no valid Python): {some}")
    story.screen.result(f"signed as {signed.digest[:16]}, read in verified pieces from now on")
    return f"{found.num_bytes} bytes, digest {signed.digest}"


def _in_splits(found: corpus.Corpus) -> Iterator[tuple[str, str, bytes]]:
    for document in found.documents:
        yield document.split.value, document.name, document.text.encode()


def preflight(story: Story) -> str:
    """Step 3."""
    assert story.policy is not None, "step 1 came first"
    policy = story.policy.policy
    # What `run` takes out or pins a moment later is nothing to complain about.
    environ = loopback_environment(story.run, policy, story.environ)
    done = run_preflight(story.run, policy, environ, story.ledger(), story.clock())
    if done.result is None:
        story.screen.warn("this policy asks for no audit")
        return "not audited"
    if done.result.of(State.FAIL, State.UNKNOWN):
        story.screen.warn(done.sentence)
    else:
        story.screen.result(done.sentence)
    _show_findings(story, done.result)
    _say_what_a_laptop_cannot_do(story)
    return done.sentence


def _show_findings(story: Story, result: AuditResult) -> None:
    """Show the checks that failed or are not known, each once, the worst first."""
    by_check: dict[str, list[Finding]] = {}
    for finding in result.of(State.FAIL, State.UNKNOWN):
        by_check.setdefault(finding.check, []).append(finding)
    groups = sorted(
        by_check.values(),
        key=lambda group: (group[0].state is not State.FAIL, -group[0].severity_in_context.rank),
    )
    for group in groups[:MAX_FINDINGS]:
        first, times = group[0], f" ({len(group)} times)" if len(group) > 1 else ""
        story.screen.finding(
            f"{first.check}  {first.state} ({first.severity_in_context})",
            first.title + times,
            " ".join(first.remediation.split()),
        )
    if len(groups) > MAX_FINDINGS:
        story.screen.warn(
            f"{len(groups) - MAX_FINDINGS} more: securetrain audit --node"
            f" --policy {story.policy_name}"
        )


def _say_what_a_laptop_cannot_do(story: Story) -> None:
    assert story.policy is not None
    allowed = story.policy.policy.node.allow_self_asserted
    if story.options.tpm:
        story.screen.warn(
            f"a software TPM speaks for this machine: its evidence is {TEST_ONLY}. It shows the"
            " exchange, and proves nothing: whoever reads this disk can read the TPM's keys too"
        )
    elif allowed is not None:
        story.screen.warn(
            f"this machine cannot prove what it is; its evidence is {UNATTESTED}. Policy"
            f" '{story.policy_name}' admits {allowed.max_nodes} such node and warns where"
            f" 'baseline' refuses: {allowed.reason}"
        )


def verify_last(story: Story, purpose: str) -> report.Report:
    """Verify the last checkpoint as ``securetrain verify`` does, and record the result.

    Raises:
        IntegrityError: the most telling problem, when there is one.
    """
    assert story.policy is not None
    assert story.checkpoint is not None
    started = time.monotonic()
    with story.screen.bar() as bar:
        result = verify_path(
            story.checkpoint,
            trust=story.trust(),
            policy=story.policy.policy,
            now=story.clock(),
            progress=lambda done, total: bar.update(done, total, "hashing every byte"),
        )
    view = VerificationView(
        kind=result.kind.value,
        path=story.checkpoint.name,
        ok=result.ok,
        digest=result.digest,
        num_files=result.num_files,
        num_bytes=result.num_bytes,
        problems=tuple(f"{p.code} {p.file}: {p.what}" for p in result.problems),
        seconds=round(time.monotonic() - started, 3),
        purpose=purpose,
    )
    _append(story.run, VERIFY_FILE, "results", msgspec.to_builtins(view))
    if not result.ok:
        raise result.problems[0].error(str(story.checkpoint))
    story.digest = result.digest
    story.screen.result(
        f"{story.checkpoint.name}: signature, {result.num_files} files and"
        f" {result.num_bytes / 1e6:.1f} MB are what was signed ({view.seconds:.1f} s)"
    )
    return result


def drills(story: Story) -> str:
    """Step 7.

    Raises:
        AuditError: ST-DRIL-001 to 003 when a drill does not come out as it must.
    """
    rows: list[tuple[str, str, str, str]] = []
    failures = []
    work = story.options.run_dir / "drills"
    with story.screen.bar() as bar:
        chosen = [drill for drill in DRILLS.values() if drill.in_quickstart]
        for number, drill in enumerate(chosen):
            bar.update(number, len(chosen), drill.title)
            result = run_drill(drill.id, work / drill.id)
            _append(story.run, DRILLS_FILE, "drills", msgspec.to_builtins(result))
            rows.append(
                (
                    drill.id,
                    drill.title,
                    "succeeded" if result.plain.succeeded else "did not succeed",
                    f"refused {result.hardened.code}" if result.hardened.refused else "not refused",
                )
            )
            if result.ok:
                story.drills[drill.id] = result.hardened.code
            if error := result.error():
                where = f"{drill.id}: the logs below {work / drill.id}"
                failures.append(type(error)(error.code, error.what, where, error.fix))
    story.screen.table(("drill", "attack", "plain stack", "securetrain"), rows)
    if failures:
        raise failures[0]
    return ", ".join(f"{name} refused with {code}" for name, code in story.drills.items())


def _append(run: RunDir, file: str, field: str, value: Any) -> None:
    """Add one entry to a list in a JSON document of the run directory."""
    path = run.root / file
    entries = canonical.loads(path.read_bytes(), where=str(path))[field] if path.exists() else []
    write_atomic(path, canonical.dumps({field: [*entries, value]}))

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The whole story in eight steps, from nothing to a proven checkpoint that was attacked.

Rules: every step uses the code of the command that it stands for; a step that fails ends the story
with its error, and what was made so far is kept; this process never imports torch, so that nothing
which it shows depends on what the training did to itself.
"""

import shlex
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from securetrain.core import install_hint
from securetrain.core.errors import UsageError, os_error
from securetrain.quickstart import steps, training
from securetrain.quickstart.story_state import StepOutcome, Story, StoryResult
from securetrain.quickstart.tpm import software_tpm
from securetrain.report import write_report

NEEDED: Final = {"train": ("torch", "numpy", "tensorboardX"), "report": ("jinja2", "matplotlib")}
DISK_BYTES: Final = 400 << 20
PLACE: Final = 4096
"""Offset of the byte that a person is asked to change."""


def tell(story: Story) -> StoryResult:
    """Run every step.

    Raises:
        SecureTrainError: what ended the story.
    """
    check_machine(story.options.run_dir)
    with software_tpm(story) if story.options.tpm else nullcontext():
        return _tell(story)


def _tell(story: Story) -> StoryResult:
    story.screen.opening(shown(story.options.run_dir, story.here))
    outcomes: list[StepOutcome] = []

    def run(title: str, sentence: str, body: Callable[[], str]) -> None:
        number = len(outcomes) + 1
        story.screen.step(number, count, title, sentence)
        started = time.monotonic()
        summary = body()
        outcomes.append(
            StepOutcome(
                number=number,
                title=title,
                summary=summary,
                seconds=round(time.monotonic() - started, 2),
            )
        )

    count = 8 if story.options.drills else 7
    run(
        "Keys and policy",
        "A job CA, keys and a signed trust root for this run, and the policy"
        f" '{Path(story.policy_name).stem if story.options.tpm else story.policy_name}'.",
        lambda: steps.keys_and_policy(story),
    )
    run(
        "A signed dataset",
        "The text is this Python's own documentation, split by document and signed.",
        lambda: steps.signed_corpus(story),
    )
    run(
        "Preflight audit",
        "This machine is checked against the policy before anything runs on it.",
        lambda: steps.preflight(story),
    )
    training.write_job(story)
    with training.job(story) as job:
        run(
            "Start the job",
            "The node is challenged and admitted over TLS 1.3; workers start behind the shim, with"
            " a pinned environment.",
            lambda: _start(story, job),
        )
        run(
            "Train",
            "A byte-level language model; each rank's gradients are sketched and judged at every"
            " step.",
            lambda: _train(story, job),
        )
    run(
        "Verify and resume",
        "The checkpoint is proven byte by byte, and one more step is trained from it.",
        lambda: _verify_and_resume(story),
    )
    if story.options.drills:
        run(
            "Drills",
            "Four real attacks: each must work on the plain stack and be refused by ours.",
            lambda: steps.drills(story),
        )
    run("Report", "Everything above on one page.", lambda: _report(story))
    commands = try_next(story)
    story.screen.closing(shown(story.run.report, story.here), commands)
    return StoryResult(
        ok=True,
        run_dir=str(story.options.run_dir),
        report=str(story.run.report),
        steps=tuple(outcomes),
        validation_bits_per_byte=story.validation_bits,
        bigram_bits=story.bigram_bits,
        checkpoint=str(story.checkpoint),
        checkpoint_digest=story.digest,
        drills=story.drills,
        node=story.node,
        next=tuple(command for command, _ in commands),
    )


def check_machine(run_dir: Path) -> None:
    """Check what can be known before anything is made.

    Raises:
        UsageError: ST-USAG-004 a missing extra, ST-USAG-005 the run directory is used, ST-USAG-006
            too little space, ST-USAG-002 it cannot be looked at.
    """
    for extra, modules in NEEDED.items():
        missing = [name for name in modules if find_spec(name) is None]
        if missing:
            raise UsageError(
                "ST-USAG-004",
                f"{' and '.join(missing)} not installed",
                f"securetrain[{extra}]",
                install_hint(extra),
            )
    try:
        if run_dir.exists() and any(run_dir.iterdir()):
            raise UsageError(
                "ST-USAG-005",
                "the run directory is not empty",
                str(run_dir),
                "name a new one with --run-dir, or leave it out",
            )
        existing = next(path for path in (run_dir, *run_dir.parents) if path.exists())
        free = shutil.disk_usage(existing).free
    except OSError as error:
        raise os_error(error, str(run_dir)) from error
    if free < DISK_BYTES:
        raise UsageError(
            "ST-USAG-006",
            f"{free >> 20} MiB free, {DISK_BYTES >> 20} MiB are needed",
            str(existing),
            "free some space or choose another place with --run-dir",
        )


def _start(story: Story, job: training.Job) -> str:
    with story.screen.bar() as bar:
        job.start(bar)
    story.screen.result(f"the node is {story.node or 'not admitted yet'}")
    story.screen.result(f"{job.num_events} signed decisions in the ledger before the first step")
    if job.sandbox_lacks:
        story.screen.warn(f"the workers' sandbox is DEGRADED here: without {job.sandbox_lacks}")
    return f"{job.num_events} ledger entries"


def _train(story: Story, job: training.Job) -> str:
    with story.screen.bar() as bar:
        job.finish(bar)
    story.checkpoint = training.last_checkpoint(story, story.options.steps)
    bits, bigram = story.validation_bits, story.bigram_bits
    if bits is None or bigram is None:
        return f"{story.options.steps} steps"
    text = f"{bits:.2f} bits/byte on held-out text; the byte before alone gives {bigram:.2f}"
    if bits < bigram:
        story.screen.result(text)
    else:
        story.screen.warn(f"{text}: too few steps to have learned more than that")
    return text


def _verify_and_resume(story: Story) -> str:
    steps.verify_last(story, "before it was resumed from")
    step = story.options.steps + 1
    with training.job(story, "--steps", str(step)) as job, story.screen.bar() as bar:
        job.start(bar)
        job.running.wait(lambda: bar.update(0, None, f"resumed: step {step}"))
    story.checkpoint = training.last_checkpoint(story, step)
    result = steps.verify_last(story, "made by the resumed run")
    return f"{story.checkpoint.name} verified, digest {result.digest}"


def _report(story: Story) -> str:
    with story.screen.bar() as bar:
        bar.update(0, None, "drawing")
        path = write_report(story.options.run_dir, story.clock())
    return str(path)


def try_next(story: Story) -> list[tuple[str, str]]:
    """Three commands and why one would type them."""
    assert story.checkpoint is not None, "the story has been told"
    data = story.checkpoint / "rank-00000.bin"
    checkpoint, trust, place = (
        shown(path, story.here) for path in (story.checkpoint, story.run.trust, data)
    )
    prove = f"{story.program} verify {checkpoint} --trust {trust}"
    return [
        (prove, "Prove the checkpoint again: nothing but the files and the trust root is needed."),
        (
            f"printf {_other_byte(data)} | dd of={place} bs=1 seek={PLACE} conv=notrunc; {prove}",
            "Break it: change one byte and see which file and which tensor no longer hold.",
        ),
        (
            f"{story.program} audit --node --policy baseline",
            "See what this machine would need for a policy that people share a cluster under.",
        ),
    ]


def shown(path: Path, here: Path) -> str:
    """A path as a person at `here` would type it."""
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def _other_byte(data: Path) -> str:
    """A letter that is not the one at `PLACE` already."""
    with data.open("rb") as file:
        file.seek(PLACE)
        return "y" if file.read(1) == b"x" else "x"

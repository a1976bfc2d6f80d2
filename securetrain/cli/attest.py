# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain attest``: one bundle of evidence, from the node that collects it to the verdict.

What a fleet needs (`enroll`, `cache`, revocations) is in `attest_fleet`. Never imports torch.
"""

import os
from contextlib import closing, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from securetrain.cli.attest_explain import explain
from securetrain.cli.attest_fleet import cache, enroll, restore, revocations, revoke
from securetrain.cli.attest_google import google
from securetrain.cli.attest_ima import ima_list, ima_set
from securetrain.cli.attest_images import images
from securetrain.cli.attest_values import values
from securetrain.cli.fleet_memory import fleet_memory
from securetrain.cli.options import StoryGroup, file_argument, file_option, json_option
from securetrain.report import emit

_POLICY = click.option("--policy", "policy_name", required=True, help="A policy by name or file.")

EPILOG: Final = """\
\b
From a new machine to a node that must prove itself:
  securetrain attest keygen operator.pem
  securetrain attest collect --node node-17 --out node-17.json
  securetrain attest show node-17.json
  securetrain attest challenge node-17.json --to-enroll \\
      --out question.json --secret question.secret
  securetrain attest collect --node node-17 --question question.json \\
      --out answer.json
  securetrain attest enroll answer.json --secret question.secret \\
      --reference-values fleet.json --key operator.pem --root maker.pem \\
      --learn-boot
  securetrain attest challenge node-17.json --policy fleet.yaml \\
      --out question.json --secret question.secret
  securetrain attest collect --node node-17 --question question.json \\
      --out answer.json
  securetrain attest verify answer.json --policy fleet.yaml \\
      --secret question.secret

'collect' runs on the node, all else where the operator's key is.
"""


@click.group(name="attest", cls=StoryGroup, epilog=EPILOG)
def command() -> None:
    """Collect, look at, verify and enroll the evidence of nodes.

    A bundle is what a node's hardware says, in a file. 'run' asks the same of every node that
    joins; here it is done by hand, to enroll nodes and to find out why one is refused.
    """


# --- keys ----------------------------------------------------------------------------------------


@command.command(name="keygen", epilog="\b\nExample:\n  securetrain attest keygen operator.pem\n")
@file_argument("out")
@click.option(
    "--kind",
    type=click.Choice(["ed25519", "ecdsa-p256"]),
    default="ed25519",
    show_default=True,
    help="ecdsa-p256 is for signed results (verify --ear).",
)
@json_option
def keygen(out: Path, kind: str, output: str) -> int:
    """Make a private key in the new file OUT (mode 0600).

    An operator signs reference values and the cache with it. Prints the public key as policies
    name it.
    """
    from securetrain.attest.fleet import key_text
    from securetrain.identity.keys import KeyKind, PrivateKey
    from securetrain.report import evidence

    key = PrivateKey.create(out, KeyKind(kind))
    return emit(evidence.new_key(out, key.key_id, key_text(key.public)), output)


# --- bundles -------------------------------------------------------------------------------------

COLLECT_EPILOG: Final = """\
\b
Examples:
  securetrain attest collect --node node-17
  securetrain attest collect --node node-17 --question question.json \\
      --out answer.json
  securetrain attest collect --node node-17 --attester attester.json --json

The TPM and its logs are root's: without root, most of the evidence is missing, and the
output says so. The keys are kept in --state, so that an answer comes from the keys that were asked.

Exit codes: 0 collected (also when only the node itself speaks: look for UNATTESTED); 1 what
--attester requires cannot be had; 2 bad command line, settings or question.
"""


@command.command(name="collect", epilog=COLLECT_EPILOG)
@click.option("--node", required=True, help="The node's name, as in its certificate.")
@file_option("--out", help="The bundle. Default: NODE.bundle.json here.")
@click.option(
    "--attester",
    default="auto",
    show_default=True,
    help="Sources of evidence: 'auto' (what this machine has) or a settings file.",
)
@file_option("--key", "key_file", help="The node's key. Default: one in --state.")
@file_option("--question", "question_file", help="A verifier's question to answer.")
@file_option(
    "--state",
    help="Private folder of the keys. Default: ~/.local/state/securetrain, for root"
    " /var/lib/securetrain.",
)
@json_option
def collect(  # noqa: PLR0917 - click passes every option
    node: str,
    out: Path | None,
    attester: str,
    key_file: Path | None,
    question_file: Path | None,
    state: Path | None,
    output: str,
) -> int:
    """Collect this machine's evidence into a bundle."""
    from securetrain.attest.fleet import collect_here, default_state, read_question, write_bundle
    from securetrain.report import evidence

    collected = collect_here(
        node,
        state=state or default_state(Path.home(), os.geteuid()),
        now=datetime.now(UTC),
        attester=attester,
        key_file=key_file,
        question=read_question(question_file) if question_file else None,
        environ=os.environ,
    )
    path = out or Path(f"{node}.bundle.json")
    write_bundle(path, collected.bundle)
    return emit(evidence.collected(collected, path), output)


SHOW_EPILOG: Final = """\
\b
Examples:
  securetrain attest show node-17.json
  securetrain attest show node-17.json --section boot
  securetrain attest show node-17.json --json

Sections: node, self-report, tpm, pcrs, boot, ima, tee, tee-boot, devices, tokens; those that the
bundle has. A section by name comes in full, one row a line.
"""


@command.command(name="show", epilog=SHOW_EPILOG)
@file_argument("file")
@click.option("--section", help="One section, in full.")
@json_option
def show(file: Path, section: str | None, output: str) -> int:
    """Show what the bundle FILE says. Nothing of it is verified."""
    from securetrain.attest.fleet import describe, read_bundle
    from securetrain.report import evidence

    sections = describe(read_bundle(file))
    if section is not None:
        names = ", ".join(one.name for one in sections)
        sections = tuple(one for one in sections if one.name == section)
        if not sections:
            raise click.UsageError(f"no section {section!r}; this bundle has {names}")
    return emit(evidence.bundle_page(file, sections, full=section is not None), output)


CHALLENGE_EPILOG: Final = """\
\b
Examples:
  securetrain attest challenge node-17.json --to-enroll \\
      --out question.json --secret question.secret
  securetrain attest challenge node-17.json --policy fleet.yaml \\
      --out question.json --secret question.secret

The question holds a credential that only the TPM with both keys of BUNDLE can open. The secret
stays here and is needed to enroll or verify the answer, within 24 hours. With --policy the node
must be enrolled; --to-enroll asks one that is not yet.
"""


@command.command(
    name="challenge", epilog=CHALLENGE_EPILOG, short_help="Make a question for a node."
)
@file_argument("bundle")
@click.option("--policy", "policy_name", help="The policy under which the answer is verified.")
@click.option("--to-enroll", is_flag=True, help="Ask a machine that is not enrolled yet.")
@file_option("--out", "question_file", required=True, help="The question, for the node.")
@file_option("--secret", "secret_file", required=True, help="The secret, which stays here (0600).")
@json_option
def challenge(  # noqa: PLR0917 - click passes every option
    bundle: Path,
    policy_name: str | None,
    to_enroll: bool,
    question_file: Path,
    secret_file: Path,
    output: str,
) -> int:
    """Ask the node that BUNDLE is of: its answer cannot be a recording."""
    from securetrain.attest.fleet import (
        ANSWER_WITHIN,
        ask,
        question_to_enroll,
        read_bundle,
        write_question,
    )
    from securetrain.policy import load_policy
    from securetrain.report import evidence

    if to_enroll is bool(policy_name):
        raise click.UsageError("name --policy, or --to-enroll for a machine that is not enrolled")
    if policy_name:
        with closing(fleet_memory()) as state:
            secret = ask(read_bundle(bundle), load_policy(policy_name), datetime.now(UTC), state)
    else:
        secret = question_to_enroll(read_bundle(bundle), datetime.now(UTC))
    write_question(question_file, secret_file, secret)
    until = (secret.asked + ANSWER_WITHIN).isoformat(timespec="minutes")
    page = evidence.question(secret.question.node, question_file, secret_file, until)
    return emit(page, output)


VERIFY_EPILOG: Final = """\
\b
Examples:
  securetrain attest verify answer.json --policy fleet.yaml \\
      --secret question.secret
  securetrain attest verify node-17.json --policy fleet.yaml
  securetrain attest verify answer.json --policy fleet.yaml \\
      --secret question.secret --ear answer.jwt --sign-key verifier.pem

Exit codes: 0 everything that the policy asks for was proven; 1 refused, naming the rule, and the
register or log entry; 2 bad command line, policy or file; 3 nothing is wrong, but something stays
open: freshness without --secret, or a node with nothing but its own word or a software TPM.
"""


@command.command(name="verify", epilog=VERIFY_EPILOG, short_help="Judge a bundle under a policy.")
@file_argument("bundle")
@_POLICY
@file_option("--secret", "secret_file", help="The secret of the question that this answers.")
@click.option("--at", help="Judge as of a past time (RFC 3339). Default: now.")
@file_option("--ear", help="Write the result as a signed EAR (JWT), if proven.")
@file_option("--sign-key", help="The verifier's P-256 key, for --ear.")
@json_option
def verify(  # noqa: PLR0917 - click passes every option
    bundle: Path,
    policy_name: str,
    secret_file: Path | None,
    at: str | None,
    ear: Path | None,
    sign_key: Path | None,
    output: str,
) -> int:
    """Judge BUNDLE under a policy, as 'run' judges a node that joins."""
    from securetrain.attest.fleet import judge, read_bundle, read_secret, write_ear
    from securetrain.attest.session import MemoryState
    from securetrain.identity.keys import PrivateKey
    from securetrain.policy import load_policy
    from securetrain.report import evidence

    if (ear is None) != (sign_key is None):
        raise click.UsageError("--ear and --sign-key go together")
    if ear is not None and at is not None:
        raise click.UsageError("an EAR is signed for now: leave out --at")
    with nullcontext(MemoryState()) if at else closing(fleet_memory()) as state:
        judgement = judge(
            read_bundle(bundle),
            load_policy(policy_name),
            secret=read_secret(secret_file) if secret_file else None,
            now=_moment(at) if at else datetime.now(UTC),
            state=state,
        )
    written = ""
    if ear is not None and sign_key is not None:
        done = write_ear(ear, judgement, PrivateKey.load(sign_key))
        written = f"{ear}: the signed result" if done else f"{ear}: not written, not proven"
    return emit(evidence.judgement(judgement, written), output)


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"--at {text}: {error}") from error
    if moment.tzinfo is None:
        raise click.UsageError(f"--at {text}: say which time zone, as in 2026-01-31T12:00:00Z")
    return moment


for _command in (
    explain,
    enroll,
    values,
    images,
    google,
    ima_list,
    ima_set,
    cache,
    revocations,
    revoke,
    restore,
):
    command.add_command(_command)

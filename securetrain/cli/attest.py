# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain attest``: one bundle of evidence, from the node that collects it to the verdict.

What a fleet needs (`enroll`, `cache`, revocations) is in `attest_fleet`, what people see in
`attest_view`. Never imports torch.
"""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from securetrain.cli.attest_fleet import cache, enroll, restore, revocations
from securetrain.cli.attest_options import (
    FILE,
    StoryGroup,
    json_option,
    policy_option,
    print_json,
)

if TYPE_CHECKING:
    from securetrain.attest.fleet.offline import Judgement

EPILOG: Final = """\
\b
From a new machine to a node that must prove itself:
  securetrain attest keygen operator.pem
  securetrain attest collect --node node-17 --out node-17.json
  securetrain attest show node-17.json
  securetrain attest enroll node-17.json --reference-values fleet.json \\
      --key operator.pem --root maker.pem --learn-boot
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
    """Collect, look at, verify and enrol the evidence of nodes.

    A bundle is what a node's hardware says, in a file. 'run' asks the same of every node that
    joins; here it is done by hand, to enrol nodes and to find out why one is refused.
    """


# --- keys ----------------------------------------------------------------------------------------


@command.command(name="keygen", epilog="\b\nExample:\n  securetrain attest keygen operator.pem\n")
@click.argument("out", type=FILE)
@click.option(
    "--kind",
    type=click.Choice(["ed25519", "ecdsa-p256"]),
    default="ed25519",
    show_default=True,
    help="ecdsa-p256 is for signed results (verify --ear).",
)
@json_option
def keygen(out: Path, kind: str, as_json: bool) -> None:
    """Make a private key in the new file OUT (mode 0600).

    An operator signs reference values and the cache with it. Prints the public key as policies
    name it.
    """
    from securetrain.attest.fleet.bundle import key_text
    from securetrain.cli import attest_view
    from securetrain.identity.keys import KeyKind, PrivateKey

    key = PrivateKey.create(out, KeyKind(kind))
    signed_by = key_text(key.public)
    if as_json:
        print_json({"file": str(out), "key_id": key.key_id, "signed_by": signed_by})
    else:
        attest_view.show_key(out, key.key_id, signed_by)


# --- bundles -------------------------------------------------------------------------------------

COLLECT_EPILOG: Final = """\
\b
Examples:
  securetrain attest collect --node node-17
  securetrain attest collect --node node-17 --question question.json \\
      --out answer.json
  securetrain attest collect --node node-17 --attester attester.json --json

The TPM and its logs are root's: without root, most of the evidence is missing, and this says so.
The keys are kept in --state, so that an answer comes from the keys that were asked.

Exit codes: 0 collected (also when only the node itself speaks: look for UNATTESTED); 1 what
--attester requires cannot be had; 2 bad command line, settings or question.
"""


@command.command(name="collect", epilog=COLLECT_EPILOG)
@click.option("--node", required=True, help="The node's name, as in its certificate.")
@click.option("--out", type=FILE, help="The bundle. Default: NODE.bundle.json here.")
@click.option(
    "--attester",
    default="auto",
    show_default=True,
    help="What may speak: 'auto' takes what this machine has, or a settings file.",
)
@click.option("--key", "key_file", type=FILE, help="The node's key. Default: one in --state.")
@click.option("--question", "question_file", type=FILE, help="A verifier's question to answer.")
@click.option(
    "--state",
    type=FILE,
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
    as_json: bool,
) -> None:
    """Collect this machine's evidence into a bundle."""
    from securetrain.attest.fleet.bundle import read_question, write_bundle
    from securetrain.attest.fleet.local import collect_here, default_state
    from securetrain.cli import attest_view

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
    if as_json:
        print_json(
            {
                "file": str(path),
                "node": node,
                "media_type": collected.bundle.media_type,
                "speaks": collected.speakers,
                "unattested": collected.unattested,
                "asked_itself": collected.bundle.asked_itself,
                "key": str(collected.key_file),
                "missing": list(collected.notes),
            }
        )
    else:
        attest_view.show_collected(collected, path)


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
@click.argument("file", type=FILE)
@click.option("--section", help="One section, in full.")
@json_option
def show(file: Path, section: str | None, as_json: bool) -> None:
    """Show what the bundle FILE says. Nothing of it is verified."""
    from securetrain.attest.fleet.bundle import read_bundle
    from securetrain.attest.fleet.describe import describe
    from securetrain.cli import attest_view

    sections = describe(read_bundle(file))
    if section is not None:
        names = ", ".join(one.name for one in sections)
        sections = tuple(one for one in sections if one.name == section)
        if not sections:
            raise click.UsageError(f"no section {section!r}; this bundle has {names}")
    if as_json:
        print_json({"file": str(file), "sections": [one.to_dict() for one in sections]})
    else:
        attest_view.show_bundle(sections, full=section is not None)


CHALLENGE_EPILOG: Final = """\
\b
Example:
  securetrain attest challenge node-17.json --policy fleet.yaml \\
      --out question.json --secret question.secret

The question holds a credential that only the TPM with both keys of BUNDLE can open. The secret
stays here and is needed to verify the answer, within 24 hours.
"""


@command.command(name="challenge", epilog=CHALLENGE_EPILOG, short_help="Make a question to a node.")
@click.argument("bundle", type=FILE)
@policy_option
@click.option("--out", "question_file", required=True, type=FILE, help="What the node is given.")
@click.option("--secret", "secret_file", required=True, type=FILE, help="What stays here (0600).")
@json_option
def challenge(
    bundle: Path, policy_name: str, question_file: Path, secret_file: Path, as_json: bool
) -> None:
    """Ask the node that BUNDLE is of: its answer cannot be a recording."""
    from securetrain.attest.fleet.bundle import ANSWER_WITHIN, read_bundle, write_question
    from securetrain.attest.fleet.offline import ask
    from securetrain.cli import attest_view
    from securetrain.policy import load_policy

    secret = ask(read_bundle(bundle), load_policy(policy_name), datetime.now(UTC))
    write_question(question_file, secret_file, secret)
    until = (secret.asked + ANSWER_WITHIN).isoformat(timespec="minutes")
    node = secret.question.node
    if as_json:
        names = {"question": str(question_file), "secret": str(secret_file)}
        print_json({**names, "node": node, "answer_by": until})
    else:
        attest_view.show_question(node, question_file, secret_file, until)


VERIFY_EPILOG: Final = """\
\b
Examples:
  securetrain attest verify answer.json --policy fleet.yaml \\
      --secret question.secret
  securetrain attest verify node-17.json --policy fleet.yaml
  securetrain attest verify answer.json --policy fleet.yaml \\
      --secret question.secret --ear answer.jwt --sign-key verifier.pem

Exit codes: 0 everything that the policy asks for was proven; 1 refused, naming the rule, and the
register or log entry; 2 bad command line, policy or file; 3 nothing is wrong, and something stays
open: freshness without --secret, or a node that only its own word or a software TPM speaks for.
"""


@command.command(name="verify", epilog=VERIFY_EPILOG, short_help="Judge a bundle under a policy.")
@click.argument("bundle", type=FILE)
@policy_option
@click.option("--secret", "secret_file", type=FILE, help="Of the question that this answers.")
@click.option("--at", help="Judge as of a past time (RFC 3339). Default: now.")
@click.option("--ear", type=FILE, help="Write the result as a signed EAR (JWT), if proven.")
@click.option("--sign-key", type=FILE, help="The verifier's P-256 key, for --ear.")
@json_option
def verify(  # noqa: PLR0917 - click passes every option
    bundle: Path,
    policy_name: str,
    secret_file: Path | None,
    at: str | None,
    ear: Path | None,
    sign_key: Path | None,
    as_json: bool,
) -> int:
    """Judge BUNDLE under a policy, as 'run' judges a node that joins."""
    from securetrain.attest.fleet.bundle import read_bundle, read_secret
    from securetrain.attest.fleet.offline import judge, write_ear
    from securetrain.identity.keys import PrivateKey
    from securetrain.policy import load_policy

    if (ear is None) != (sign_key is None):
        raise click.UsageError("--ear and --sign-key go together")
    if ear is not None and at is not None:
        raise click.UsageError("an EAR is signed for now: leave out --at")
    judgement = judge(
        read_bundle(bundle),
        load_policy(policy_name),
        secret=read_secret(secret_file) if secret_file else None,
        now=_moment(at) if at else datetime.now(UTC),
    )
    written = ""
    if ear is not None and sign_key is not None:
        done = write_ear(ear, judgement, PrivateKey.load(sign_key))
        written = f"{ear}: the signed result" if done else f"{ear}: not written, not proven"
    _show_judgement(judgement, written, as_json=as_json)
    return int(judgement.exit_code)


def _show_judgement(judgement: "Judgement", ear: str, *, as_json: bool) -> None:
    import msgspec

    from securetrain.attest.fleet.describe import describe_verdict
    from securetrain.cli import attest_view

    verdict, refusal = judgement.verdict, judgement.refusal
    if not as_json:
        sections = describe_verdict(verdict) if verdict is not None else ()
        attest_view.show_judgement(judgement, sections, ear)
        return
    print_json(
        {
            "node": judgement.bundle.node,
            "ok": judgement.proven,
            "exit": int(judgement.exit_code),
            "result": msgspec.to_builtins(verdict.result) if verdict is not None else None,
            "open": list(verdict.open) if verdict is not None else [],
            "exception": judgement.exception,
            "error": refusal.to_dict() if refusal is not None else None,
        }
    )


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"--at {text}: {error}") from error
    if moment.tzinfo is None:
        raise click.UsageError(f"--at {text}: say which time zone, as in 2026-01-31T12:00:00Z")
    return moment


for _command in (enroll, cache, revocations, restore):
    command.add_command(_command)

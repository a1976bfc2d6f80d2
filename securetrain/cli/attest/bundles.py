# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain attest keygen``, ``collect``, ``show`` and ``challenge``: bundles of evidence."""

import os
from contextlib import closing
from pathlib import Path
from typing import Annotated, Literal

import click

from securetrain.cli.clock import now
from securetrain.cli.command import Option, verb
from securetrain.cli.fleet.memory import fleet_memory
from securetrain.cli.options import ATTESTER, KEY, OUT, POLICY, STATE
from securetrain.report import Document


@verb()
def keygen(
    *,
    out: Path,
    kind: Annotated[
        Literal["ed25519", "ecdsa-p256"],
        Option("--kind", "ecdsa-p256 is for signed results (verify --ear)."),
    ] = "ed25519",
) -> Document:
    """Make a private key in the new file OUT (mode 0600).

    An operator signs reference values and the cache with it. Prints the public key as policies
    name it.

    Example:
      securetrain attest keygen operator.pem
    """
    from securetrain.attest.fleet import key_text
    from securetrain.identity.keys import KeyKind, PrivateKey
    from securetrain.report import evidence

    key = PrivateKey.create(out, KeyKind(kind))
    return evidence.new_key(out, key.key_id, key_text(key.public))


@verb()
def collect(
    *,
    node: Annotated[str, Option("--node", "The node's name, as in its certificate.")],
    out: Annotated[Path | None, OUT.told("The bundle. Default: NODE.bundle.json here.")],
    attester: Annotated[str, ATTESTER] = "auto",
    key: Annotated[Path | None, KEY.told("The node's key. Default: one in --state.")],
    question: Annotated[Path | None, Option("--question", "A verifier's question to answer.")],
    state: Annotated[Path | None, STATE],
) -> Document:
    r"""Collect this machine's evidence into a bundle.

    Examples:
      securetrain attest collect --node node-17
      securetrain attest collect --node node-17 --question question.json \
          --out answer.json
      securetrain attest collect --node node-17 --attester attester.json --json

    The TPM and its logs are root's: without root, most of the evidence is missing, and the output
    says so. The keys are kept in --state, so that an answer comes from the keys that were asked.

    Exit codes: 0 collected (also when only the node itself speaks: look for UNATTESTED); 1 what
    --attester requires cannot be had; 2 bad command line, settings or question.
    """
    from securetrain.attest.fleet import collect_here, read_question, write_bundle
    from securetrain.core import default_state
    from securetrain.report import evidence

    collected = collect_here(
        node,
        state=state or default_state(Path.home(), os.geteuid()),
        now=now(),
        attester=attester,
        key_file=key,
        question=read_question(question) if question else None,
        environ=os.environ,
    )
    path = out or Path(f"{node}.bundle.json")
    write_bundle(path, collected.bundle)
    return evidence.collected(collected, path)


@verb()
def show(
    *, file: Path, section: Annotated[str | None, Option("--section", "One section, in full.")]
) -> Document:
    """Show what the bundle FILE says. Nothing of it is verified.

    Examples:
      securetrain attest show node-17.json
      securetrain attest show node-17.json --section boot
      securetrain attest show node-17.json --json

    Sections: node, self-report, tpm, pcrs, boot, ima, tee, tee-boot, devices, tokens; those that
    the bundle has. A section by name comes in full, one row a line.
    """
    from securetrain.attest.fleet import describe, read_bundle
    from securetrain.report import evidence

    sections = describe(read_bundle(file))
    if section is not None:
        names = ", ".join(one.name for one in sections)
        sections = tuple(one for one in sections if one.name == section)
        if not sections:
            raise click.UsageError(f"no section {section!r}; this bundle has {names}")
    return evidence.bundle_page(file, sections, full=section is not None)


@verb()
def challenge(
    *,
    bundle: Path,
    policy: Annotated[str | None, POLICY.told("The policy under which the answer is verified.")],
    to_enroll: Annotated[bool, Option("--to-enroll", "Ask a machine that is not enrolled yet.")],
    out: Annotated[Path, OUT.told("The question, for the node.")],
    secret: Annotated[Path, Option("--secret", "The secret, which stays here (0600).")],
) -> Document:
    r"""Make a question for the node that BUNDLE is of.

    Its answer cannot be a recording.

    Examples:
      securetrain attest challenge node-17.json --to-enroll \
          --out question.json --secret question.secret
      securetrain attest challenge node-17.json --policy fleet.yaml \
          --out question.json --secret question.secret

    The question holds a credential that only the TPM with both keys of BUNDLE can open. The secret
    stays here and is needed to enroll or verify the answer, within 24 hours. With --policy the node
    must be enrolled; --to-enroll asks one that is not yet.
    """
    from securetrain.attest.fleet import (
        ANSWER_WITHIN,
        ask,
        question_to_enroll,
        read_bundle,
        write_question,
    )
    from securetrain.policy import load_policy
    from securetrain.report import evidence

    if to_enroll is bool(policy):
        raise click.UsageError("name --policy, or --to-enroll for a machine that is not enrolled")
    if policy:
        with closing(fleet_memory()) as state:
            asked = ask(read_bundle(bundle), load_policy(policy), now(), state)
    else:
        asked = question_to_enroll(read_bundle(bundle), now())
    write_question(out, secret, asked)
    until = (asked.asked + ANSWER_WITHIN).isoformat(timespec="minutes")
    return evidence.question(asked.question.node, out, secret, until)

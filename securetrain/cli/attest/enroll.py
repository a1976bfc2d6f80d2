# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""``securetrain attest enroll``: nodes into the signed reference values."""

from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from securetrain.cli.attest.signing import FileSigning
from securetrain.cli.clock import now
from securetrain.cli.command import Option, verb
from securetrain.cli.fleet.memory import fleet_memory
from securetrain.cli.options import DAYS, GROUP, REPLACE, VALUES, TpmAuthorities
from securetrain.report import Document

if TYPE_CHECKING:
    from securetrain.attest.fleet import Enrollment


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolled:
    """The state that is taken as known good."""

    learn_boot: Annotated[bool, Option("--learn-boot")]
    """Take boot, guest and firmware as known good."""
    secrets: Annotated[tuple[Path, ...], Option("--secret")]
    """Of the question that a bundle answers."""
    unproven: Annotated[bool, Option("--unproven")]
    """Learn a boot that nothing proves; it is labelled."""
    group: Annotated[str | None, GROUP]
    """Image group of the nodes. Default: the one they have, or none."""
    uncertified: Annotated[bool, Option("--uncertified")]
    """Accept a TPM without a certificate, as virtual."""
    replace: Annotated[bool, REPLACE]
    """Accept new hardware or group of a node."""

    def of(self, paths: tuple[Path, ...]) -> "list[Enrollment]":
        """The enrollments of bundles."""
        from securetrain.attest.fleet import Enrollment, read_bundle, read_secret

        asked = {secret.question.node: secret for secret in map(read_secret, self.secrets)}
        bundles = [read_bundle(path) for path in paths]
        known = asked.keys() <= {bundle.node for bundle in bundles}
        if len(asked) < len(self.secrets) or not known:
            raise click.UsageError("--secret: name one for each node whose answer is among BUNDLES")
        return [
            Enrollment(
                bundle=bundle,
                learn_boot=self.learn_boot,
                uncertified=self.uncertified,
                replace=self.replace,
                secret=asked.get(bundle.node),
                unproven=self.unproven,
                group=self.group,
            )
            for bundle in bundles
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """A policy for files, and certificates of makers."""

    ima_policy: Annotated[Path | None, Option("--ima-policy")]
    """A Keylime runtime policy to put in."""
    ima_policy_sha256: Annotated[str | None, Option("--ima-policy-sha256", metavar="SHA256")]
    """One that is in the cache, by its SHA-256."""
    cache: Annotated[Path | None, Option("--cache")]
    """Cache with AMD's certificates."""


@verb()
def enroll(
    *,
    bundles: tuple[Path, ...],
    values: Annotated[Path, VALUES.told("The file; created when missing.")],
    signing: FileSigning,
    makers: TpmAuthorities,
    learned: Enrolled,
    documents: Documents,
    days: Annotated[int, DAYS] = 90,
) -> Document:
    r"""Enroll the nodes of BUNDLES into the signed reference values.

    Examples:
      securetrain attest enroll answer-17.json --secret question-17.secret \
          --reference-values fleet.json --key operator.pem --root infineon.pem \
          --learn-boot --group gpu-h100-2026.11
      securetrain attest enroll node-*.json --reference-values fleet.json \
          --key operator.pem --group gpu-h100-2026.11
      securetrain attest enroll --reference-values fleet.json --key operator.pem \
          --days 90

    You vouch for what is enrolled: that the machine is yours and, with --learn-boot, that it is in
    a good state. Look at the bundle first: securetrain attest show. A boot is learned from the
    answer to a question only (attest challenge --to-enroll), and is good for the nodes of its image
    group. Without a bundle the file is signed anew, with a later end.

    Exit codes: 0 enrolled; 1 a bundle does not hold together; 2 bad command line or file, or
    hardware that is enrolled as another node; 3 enrolled, and something was left out: read the
    lines with '!'.
    """
    from securetrain.attest.fleet import enroll_into, ima_reference, key_text
    from securetrain.report import evidence

    if learned.unproven and not learned.learn_boot:
        raise click.UsageError("--unproven says how --learn-boot learns: name both, or neither")
    at, key = now(), signing.signer()
    given = learned.of(bundles)
    with closing(fleet_memory()) as state:
        edition = enroll_into(
            values,
            given,
            key=key,
            signed_by=signing.by(key),
            roots=makers.read(),
            now=at,
            lifetime=timedelta(days=days),
            ima=ima_reference(documents.ima_policy, documents.ima_policy_sha256 or ""),
            cache=documents.cache,
            state=state,
        )
    return evidence.edition(edition, values, key_text(key.public))

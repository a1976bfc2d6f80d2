# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The coordinator's named secrets: where each lies, and which member of the job gets it.

Rules:

1. the policy names a secret and who gets it (`policy.schema.Secret`); the operator says where it
   lies. Both name the same secrets, or the coordinator does not start. They live in its memory: in
   no file, ledger, argument or core dump (`core.undumped`);
2. a member of the current epoch is given them, once in each epoch on a connection, and nobody else:
   not a node that waits, is spare, asks for another epoch or asks again (ST-ADMN-046);
3. its latest result decides: a tier below the secret's, or another image group than its, is
   withheld (ST-ADMN-043). The rest of the answer is given;
4. what is given is sealed to the key that the node's evidence covers, for this question and
   connection (`wire.sealing`);
5. a file is read anew whenever somebody asks, so that a secret that was changed is released at the
   next epoch, as its next edition. A file that cannot be read is withheld (ST-ADMN-044): nobody is
   given what an operator may have taken away.
"""

import os
import shlex
import subprocess
import threading
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from securetrain.core.errors import AdmissionError, SecureTrainError, UsageError
from securetrain.core.files import open_regular
from securetrain.evidence import AttestationResult
from securetrain.ledger import LedgerEvent, events
from securetrain.policy.schema import Policy, Secret
from securetrain.rendezvous.wire.protocol import (
    SECRET_LIMIT,
    AskSecrets,
    SealedSecret,
    Secrets,
    WithheldSecret,
)
from securetrain.rendezvous.wire.sealing import info_of, seal

COMMAND_SECONDS: Final = 60.0
WHERE: Final = "--secret"
_TPM: Final = "tpm"
_TRY: Final = "try the program itself"
_KINDS: Final = "file:PATH, env:VARIABLE or command:PROGRAM ARGUMENTS"


@dataclass(slots=True, repr=False)
class Source:
    """One secret, and where it lies. Without a `repr`: no log shows it."""

    name: str
    path: Path | None
    """A file is read again; what a variable or a program gave at the start stays."""
    edition: int = 1
    held: bytes = b""

    def read(self) -> bytes:
        """The secret as it is now.

        Raises:
            UsageError: ST-USAG-001 or 002.
        """
        if self.path is not None:
            found = read_secret(self.path)
            if found != self.held:
                self.edition += bool(self.held)
                self.held = found
        return self.held


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """The member that asks, as the coordinator knows it."""

    job: str
    node: str
    subject: str
    sealing: str
    """Its key, from the Hello that its evidence covers."""
    result: AttestationResult
    epoch: int | None
    """The current epoch, if it is a member of it."""
    asked: int
    """The last epoch in which it has asked on this connection; -1 for none."""
    exporter: bytes
    """Of its connection, for the nonce of its question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vault:
    """All secrets of one job. The coordinator calls it with its lock held."""

    rules: Mapping[str, Secret] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict, repr=False)

    @classmethod
    def open(
        cls, policy: Policy, given: Iterable[str], environ: MutableMapping[str, str]
    ) -> "Vault":
        """Take what the operator gives.

        Args:
            policy: of the job.
            given: ``NAME=file:PATH`` and the like.
            environ: of this process; variables that hold a secret are taken out of it.

        Raises:
            UsageError: ST-USAG-001 when they are not the policy's secrets, one is named twice or
                is none; ST-USAG-002 when one cannot be read.
        """
        sources: dict[str, Source] = {}
        for text in given:
            made = parse_source(text, environ)
            if made.name in sources:
                raise _bad(f"{made.name} is given twice", "give each secret once")
            sources[made.name] = made
        rules = policy.node.secrets
        if missing := sorted(rules.keys() - sources.keys()):
            raise _bad(
                f"the policy names the secret {missing[0]}, and nobody says where it lies",
                f"--secret {missing[0]}=file:PATH",
            )
        if unknown := sorted(sources.keys() - rules.keys()):
            raise _bad(
                f"the policy does not name the secret {unknown[0]}",
                f"name it and who gets it in the policy: node: {{secrets: {{{unknown[0]}: {{}}}}}}",
            )
        return cls(rules=rules, sources=sources)

    def answer(self, ask: AskSecrets, asker: Asker) -> tuple[Secrets, list[LedgerEvent]]:
        """Decide about every secret; and what the ledger says of it."""
        given: list[SealedSecret] = []
        withheld: list[WithheldSecret] = []
        said: list[LedgerEvent] = []
        turn = _turn(ask, asker)
        for name, rule in sorted(self.rules.items()):
            try:
                if turn is not None:
                    raise turn
                found = self._release(name, rule, asker)
            except SecureTrainError as error:
                withheld.append(WithheldSecret(name=name, code=error.code, what=error.what[:500]))
                said.append(_withheld(name, error, asker, ask.epoch))
                continue
            given.append(found)
            said.append(
                events.SecretReleased(
                    subject=asker.subject,
                    secret=name,
                    edition=found.edition,
                    epoch=ask.epoch,
                    tier=asker.result.tier,
                    group=group_of(asker.result),
                )
            )
        answer = Secrets(
            epoch=ask.epoch, nonce=ask.nonce, given=tuple(given), withheld=tuple(withheld)
        )
        return answer, said

    def _release(self, name: str, rule: Secret, asker: Asker) -> SealedSecret:
        tier, group = asker.result.tier, group_of(asker.result)
        if tier < rule.min_tier:
            raise AdmissionError(
                "ST-ADMN-043", f"{name} is for {rule.min_tier}, the node is {tier}", asker.subject
            )
        if rule.groups and group not in rule.groups:
            of = f"of the image group {group}" if group else "of no image group"
            raise AdmissionError(
                "ST-ADMN-043", f"{name} is for {', '.join(rule.groups)}; it is {of}", asker.subject
            )
        source = self.sources[name]
        try:
            secret = source.read()
        except SecureTrainError as error:
            # The node and the ledger learn that it is not there; where it lies is the operator's.
            raise AdmissionError("ST-ADMN-044", f"{name}: {error.code}", asker.subject) from error
        info = info_of(
            job=asker.job,
            node=asker.node,
            epoch=asker.epoch if asker.epoch is not None else -1,
            name=name,
            edition=source.edition,
            exporter=asker.exporter,
        )
        sealed = seal(asker.sealing, secret, info)
        return SealedSecret(name=name, edition=source.edition, sealed=sealed)


def _turn(ask: AskSecrets, asker: Asker) -> AdmissionError | None:
    """Rule 2: the objection to the question itself."""
    if asker.epoch is None or ask.epoch != asker.epoch:
        what = f"{asker.node} is no member of epoch {ask.epoch}, or that is over"
    elif asker.asked >= ask.epoch:
        what = f"{asker.node} has asked in epoch {ask.epoch} already"
    elif not asker.sealing:
        what = f"{asker.node} has named no key in its Hello"
    else:
        return None
    return AdmissionError("ST-ADMN-046", what, asker.subject)


def group_of(result: AttestationResult) -> str:
    """The image group that a TPM's evidence was judged by; empty for none."""
    part = result.submods.get(_TPM)
    return str(part.claims.get("group", "")) if part is not None else ""


def parse_source(text: str, environ: MutableMapping[str, str]) -> Source:
    """Read ``NAME=KIND:PLACE``, and the secret itself.

    Raises:
        UsageError: ST-USAG-001, ST-USAG-002.
    """
    name, equals, rest = text.partition("=")
    kind, colon, place = rest.partition(":")
    if not (name and equals and colon and place):
        # What was written may be the secret itself: it is not repeated.
        raise _bad("it does not say where a secret lies", f"NAME={_KINDS}")
    match kind:
        case "file":
            source = Source(name=name, path=Path(place))
            source.read()
            return source
        case "env":
            if place not in environ:
                raise _bad(f"{name}: the variable {place} is not set", "set it, or use file:PATH")
            secret = os.fsencode(environ.pop(place))
        case "command":
            secret = _run(name, place)
        case _:
            raise _bad(f"{name}: it lies in no {kind[:16]!r}", f"NAME={_KINDS}")
    return Source(name=name, path=None, held=_checked(secret, name))


def read_secret(path: Path) -> bytes:
    """A file that only this user may read.

    Raises:
        UsageError: ST-USAG-001 when others may read it, or it is empty or too large; ST-USAG-002.
    """
    try:
        fd = open_regular(path)
        with os.fdopen(fd, "rb") as file:
            about = os.fstat(file.fileno())  # of what is read, whatever the name leads to by now
            data = file.read(SECRET_LIMIT + 1)
    except OSError as error:
        raise UsageError(
            "ST-USAG-002", error.strerror or "it cannot be read", str(path), "look at the path"
        ) from error
    if about.st_mode & 0o077 or about.st_uid not in {0, os.geteuid()}:
        raise UsageError(
            "ST-USAG-001",
            "other users may read this secret, or change it",
            str(path),
            f"chmod 600 {shlex.quote(str(path))}",
        )
    return _checked(data, str(path))


def _run(name: str, words: str) -> bytes:
    """The output of a program, which no shell starts."""
    try:
        command = shlex.split(words)
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            timer = threading.Timer(COMMAND_SECONDS, process.kill)
            timer.start()
            try:
                assert process.stdout is not None
                out = process.stdout.read(SECRET_LIMIT + 1)
                if len(out) > SECRET_LIMIT:
                    process.kill()
            finally:
                timer.cancel()
    except (OSError, ValueError, IndexError) as error:
        raise _bad(f"{name}: its program did not start: {type(error).__name__}", _TRY) from error
    if len(out) <= SECRET_LIMIT and process.returncode:
        raise _bad(f"{name}: its program ended with {process.returncode}", _TRY)
    return out


def _checked(secret: bytes, where: str) -> bytes:
    if not secret:
        raise _bad(f"{where}: the secret is empty", "write it there first")
    if len(secret) > SECRET_LIMIT:
        raise _bad(f"{where}: larger than {SECRET_LIMIT} bytes", "give a key, not what it opens")
    return secret


def _withheld(
    name: str, error: SecureTrainError, asker: Asker, epoch: int
) -> events.SecretWithheld:
    return events.SecretWithheld(
        subject=asker.subject,
        secret=name,
        epoch=epoch,
        tier=asker.result.tier,
        code=error.code,
        what=error.what[:500],
    )


def _bad(what: str, fix: str) -> UsageError:
    return UsageError("ST-USAG-001", what, WHERE, fix)

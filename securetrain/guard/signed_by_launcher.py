# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""Words of disputes as a worker of `securetrain run` has them signed and kept.

Its launcher signs them. The first rank of each node leaves the transcript in the run's directory,
under its digest, and says so in the ledger; all nodes leave the same file where they hold the same.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from securetrain.core import RunDir, canonical
from securetrain.core.errors import SecureTrainError
from securetrain.core.files import make_missing_dir, write_atomic
from securetrain.identity import words
from securetrain.identity.signing import Ask, LauncherKey, shared_socket
from securetrain.ledger import events

_LISTED = 64
"""Pairs or ranks that an event names."""
_REASON = 200


@dataclass(slots=True, kw_only=True)
class LauncherWords:
    """A `WordSigner` whose key is the launcher's."""

    run: RunDir
    run_id: str
    world_size: int
    certificate: str
    key: LauncherKey | None
    keeps: bool
    """Whether this rank leaves transcripts: the first of each node does."""
    record: Callable[[events.ReductionDisputed], None]

    def sign(self, message: bytes) -> bytes:
        """See `WordSigner`."""
        assert self.key is not None, "there is a certificate"
        return self.key.sign(message)

    def keep(self, transcript: words.Transcript, step: int) -> None:
        """See `WordSigner`. Where the file cannot be written the ledger says what it would say."""
        if not self.keeps:
            return
        data = canonical.encode(transcript)
        digest = hashlib.sha256(data).hexdigest()
        path = self.run.disputes / f"{digest}.json"
        lost = ""
        try:
            make_missing_dir(path.parent)
            write_atomic(path, data)
        except SecureTrainError as error:
            lost = f"{error.code}: {error.what}"[:_REASON]
        with suppress(SecureTrainError):  # what writes it says so
            self.record(event_of(transcript, step, digest, lost))


def launcher_words(
    socket: Path, run: RunDir, *, keeps: bool, record: Callable[[events.ReductionDisputed], None]
) -> LauncherWords | None:
    """The launcher's way; None where it cannot be asked."""
    found = None
    with suppress(SecureTrainError):
        shared = shared_socket(socket)
        said = shared.welcome()
        key = LauncherKey.of(shared, Ask.WORD, said.rank_key) if said.rank_key else None
        found = LauncherWords(
            run=run,
            run_id=said.run_id,
            world_size=said.world_size,
            certificate=said.rank_certificate if key is not None else "",
            key=key,
            keeps=keeps,
            record=record,
        )
    return found


def event_of(
    transcript: words.Transcript, step: int, digest: str, lost: str = ""
) -> events.ReductionDisputed:
    """The ledger's entry. Whose keys these are is for `securetrain verify` to say."""
    keys = [words.key_in(text) for text in transcript.certificates]
    ruling = words.rule(transcript, keys)
    return events.ReductionDisputed(
        subject=f"step {step}",
        digest=digest,
        pairs=" ".join(f"{a}-{b}" for a, b in ruling.disputes[:_LISTED]),
        named=" ".join(map(str, sorted(ruling.named)[:_LISTED])),
        unsigned=" ".join(map(str, ruling.unsigned[:_LISTED])),
        lost=lost,
    )

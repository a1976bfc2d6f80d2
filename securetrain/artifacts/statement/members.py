# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The writers of the files: signatures by the ranks themselves, with admitted keys.

The coordinator of a save signs the whole; without more, it could put its own words into the mouth
of every rank. So each rank signs its own part, with a key that whoever admits nodes to the run has
certified (trust role ``node``). A verifier then asks, in order:

1. every rank of the world has signed, once: a rank that wrote no file signs that it wrote none, so
   that no file can be dropped. A launcher holds the key of its node and signs once for all its
   ranks, over a tree of their messages (`checkpoint_predicate`); a rank with a key of its own signs
   its message;
2. every key has a certificate: signed for the role ``node``, for this run, valid when the
   checkpoint was saved, one certificate a key;
3. the certified node is one that the statement names, and the one that it names for each rank;
4. each signature is over exactly this file of this rank, of this step, in this save of this run:
   a file of another step, save or rank does not fit (no mix and match). Where the steps were
   recorded, each has signed the records, too (version 2 of the message).
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from securetrain.artifacts.statement import checkpoint_predicate
from securetrain.artifacts.statement.statements import (
    MAX_WORLD,
    CheckpointPredicate,
    Count,
    Hex32,
    RankFile,
    Text,
    Time,
    TreeInfo,
)
from securetrain.artifacts.tree.layout import STATEMENT, Problem
from securetrain.core import canonical
from securetrain.core.errors import IdentityError, SecureTrainError, UsageError, reason
from securetrain.core.files import PRIVATE_FILE, read_file, write_atomic
from securetrain.identity import dsse
from securetrain.identity.keys import KeyKind, PrivateKey, PublicKey, Signer
from securetrain.identity.trust import TrustRole, TrustRoot

PAYLOAD_TYPE: Final = "application/vnd.securetrain.rank-key+json"
LIMIT: Final = 8 << 10
CLOCK_SKEW: Final = timedelta(minutes=10)
MESSAGE_LIMIT: Final = 16 << 10
_PREFIX: Final = b"securetrain/rank-file/1\n"
_PREFIX_RECORDED: Final = b"securetrain/rank-file/2\n"
MAX_NAMED: Final = 8
"""Ranks that one refusal names."""
MAX_KEPT: Final = 4096
"""Certificates that are not verified again."""


class RankKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The certificate of a key with which the ranks of one node sign in one run."""

    run_id: Text
    node: Text
    key: Text
    """SPKI DER in base64."""
    issued: Time
    expires: Time


@dataclass(frozen=True, slots=True)
class RankSigner:
    """The means of a rank to sign its part: a key and its certificate."""

    key: Signer
    certificate: str

    @classmethod
    def load(cls, key: Path, certificate: Path) -> "RankSigner":
        """Read what `store` has written.

        Raises:
            IdentityError: ST-IDEN-001 or ST-IDEN-010.
            UsageError: ST-USAG-002.
        """
        return cls(PrivateKey.load(key), read_file(certificate, LIMIT).decode("ascii", "replace"))

    def store(self, key: Path, certificate: Path) -> None:
        """Leave both where the workers of this node find them; an older pair is replaced.

        Raises:
            UsageError: ST-USAG-002.
        """
        assert isinstance(self.key, PrivateKey)
        self.key.save(key)
        write_atomic(certificate, self.certificate.encode(), mode=PRIVATE_FILE)

    def sign(self, message: bytes) -> str:
        """A signature in base64."""
        return base64.b64encode(self.key.sign(message)).decode()


FileSigner: TypeAlias = RankSigner | checkpoint_predicate.NodeSigner
"""The means of a rank to have its part signed: by itself, or by its launcher for the whole node."""


def certify(member: RankKey, by: Signer) -> str:
    """Certify a rank's key, as one who admits nodes."""
    # One for each rank: companions would fill the statement.
    return dsse.sign(canonical.encode(member), PAYLOAD_TYPE, [by], classical=True).decode()


def issue(run_id: str, node: str, term: tuple[datetime, datetime], by: Signer) -> RankSigner:
    """A new key for the ranks of one node, certified from the first to the second time of `term`.

    The key is ECDSA P-256: whoever loads a checkpoint verifies as many signatures as there are
    ranks, and those are the quickest.
    """
    key = PrivateKey.generate(KeyKind.P256)
    spki = base64.b64encode(key.public.spki).decode()
    member = RankKey(run_id=run_id, node=node, key=spki, issued=term[0], expires=term[1])
    return RankSigner(key, certify(member, by))


def rank_message(
    *,
    run_id: str,
    step: int,
    save_id: str,
    world_size: int,
    rank: int,
    tree: TreeInfo,
    file: RankFile | None,
    step_records: str | None = None,
) -> bytes:
    """The bytes that a rank signs; `file` is None when it wrote none, `step_records` when the steps
    were not recorded: then the message is of version 1.
    """
    said = {
        "runId": run_id,
        "step": step,
        "saveId": save_id,
        "worldSize": world_size,
        "rank": rank,
        "tree": msgspec.to_builtins(tree),
        "file": None if file is None else msgspec.to_builtins(file),
    }
    if step_records is None:
        return _PREFIX + canonical.dumps(said)
    return _PREFIX_RECORDED + canonical.dumps(said | {"stepRecords": step_records})


class RankMessage(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"
):
    """The content of a rank's message."""

    run_id: Text
    step: Count
    save_id: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    world_size: Annotated[int, Meta(ge=1, le=MAX_WORLD)]
    rank: Count
    tree: TreeInfo
    file: RankFile | None
    step_records: Hex32 | None = None


def read_message(message: bytes) -> RankMessage:
    """Read a rank's message before it is signed.

    Raises:
        UsageError: ST-USAG-008 when it is not exactly what `rank_message` makes.
    """
    body = message.removeprefix(_PREFIX).removeprefix(_PREFIX_RECORDED)
    said = canonical.decode(body, RankMessage, limit=MESSAGE_LIMIT, canonical=True)
    if message != rank_message(**{name: getattr(said, name) for name in said.__struct_fields__}):
        raise UsageError("ST-USAG-008", "not the message of a rank about its file")
    return said


def messages_of(predicate: CheckpointPredicate) -> list[bytes]:
    """The messages that the ranks must have signed, by rank.

    What they share is spelled once: in canonical form the file and the rank come before it.
    """
    shared = rank_message(
        run_id=predicate.run_id,
        step=predicate.step,
        save_id=predicate.save_id,
        world_size=predicate.world_size,
        rank=0,
        tree=predicate.tree,
        file=None,
        step_records=predicate.bound.step_records,
    )
    head, rest = shared.split(b'{"file":null,"rank":0,', 1)
    spelled = canonical.encode_each(predicate.files)
    files = {file.rank: text for file, text in zip(predicate.files, spelled, strict=True)}
    return [
        b'%b{"file":%b,"rank":%d,%b' % (head, files.get(rank, b"null"), rank, rest)
        for rank in range(predicate.world_size)
    ]


def check(predicate: CheckpointPredicate, trust: TrustRoot, *, required: bool) -> list[Problem]:
    """Check the ranks' signatures; see the module.

    Args:
        predicate: A statement whose own signature has verified.
        trust: Who admits nodes.
        required: Whether a checkpoint without any is refused. Those that there are must verify,
            unless they are not required and the trust root names nobody who could say so.
    """
    admitters = trust.keys_for(TrustRole.NODE)
    signed = predicate.signed_ranks
    if not required and (not signed or not admitters):
        return []
    if not signed:
        return [_unsigned("the ranks did not sign their files, and the policy asks for it")]
    return unsigned(predicate) or list(_latest.problems(predicate, trust))


def unsigned(predicate: CheckpointPredicate) -> list[Problem]:
    """Rule 1."""
    missing = sorted(set(range(predicate.world_size)) - set(predicate.signed_ranks))
    return [_unsigned(f"{_ranks(missing)} did not sign")] if missing else []


class _Latest:
    """The answers that are asked for again: a policy's rules ask about the ranks of a statement,
    and so does each link of a chain that rests on them; and all checkpoints of a run carry the same
    certificates. The very objects are compared: they are kept, and they are frozen.
    """

    def __init__(self) -> None:
        self._statement: tuple[CheckpointPredicate, TrustRoot, list[Problem]] | None = None
        self._keys: tuple[TrustRoot, dict[str, tuple[PublicKey, RankKey]]] | None = None

    def problems(self, predicate: CheckpointPredicate, trust: TrustRoot) -> list[Problem]:
        """Rules 2 to 4."""
        known = self._statement
        if known is None or known[0] is not predicate or known[1] is not trust:
            known = self._statement = predicate, trust, _check_keys(predicate, trust)
        return known[2]

    def key(self, text: str, trust: TrustRoot, where: str) -> tuple[PublicKey, RankKey]:
        """The key in a certificate; see `certified_key`."""
        known = self._keys
        if known is None or known[0] is not trust:
            known = self._keys = trust, {}
        found = known[1].get(text)
        if found is None:
            found = known[1][text] = certified_key(text, trust, where)
            while len(known[1]) > MAX_KEPT:
                known[1].pop(next(iter(known[1])), None)
        return found


_latest: Final = _Latest()


def _check_keys(predicate: CheckpointPredicate, trust: TrustRoot) -> list[Problem]:
    try:
        keys = _certified(predicate, trust)
    except _Refused as refused:
        return [_unsigned(str(refused))]
    return _check_nodes(predicate, keys) or check_signatures(
        predicate, {key_id: key for key_id, (key, _) in keys.items()}
    )


def check_signatures(
    predicate: CheckpointPredicate, keys: Mapping[str, PublicKey]
) -> list[Problem]:
    """Check every signature under its key; whose keys they are is another question."""
    messages = messages_of(predicate)
    unknown: list[int] = []
    wrong: list[int] = []
    together: list[int] = []
    for signature in predicate.signatures:
        key = keys.get(signature.key)
        if key is None:
            unknown.append(signature.rank)
            continue
        try:
            key.verify(base64.b64decode(signature.sig, validate=True), messages[signature.rank])
        except (IdentityError, binascii.Error, ValueError):
            wrong.append(signature.rank)
    for node in predicate.by_nodes:
        key = keys.get(node.key)
        if key is None:
            unknown += node.ranks
            continue
        wrong += checkpoint_predicate.others(node, messages)
        if not checkpoint_predicate.verifies(node, predicate, key):
            together += node.ranks
    problems = []
    if unknown:
        problems.append(_unsigned(f"{_ranks(unknown)} signed with a key that nobody certified"))
    if wrong:
        problems.append(
            Problem(
                "ST-CKPT-111",
                f"{_ranks(wrong)} signed something else than this file in this save",
                STATEMENT,
            )
        )
    if together:
        problems.append(
            Problem(
                "ST-CKPT-111",
                f"the node of {_ranks(together)} did not sign these leaves for this save",
                STATEMENT,
            )
        )
    return problems


def keys_named(certificates: list[str]) -> dict[str, PublicKey]:
    """The keys in certificates that are not verified: for a saver, who only wants to know early
    that what it was sent fits together.

    Raises:
        SecureTrainError: a certificate is malformed.
    """
    keys = {}
    for certificate in certificates:
        envelope = canonical.decode(certificate.encode(), dsse.Envelope, limit=LIMIT)
        document = canonical.decode(_bytes(envelope.payload), RankKey, limit=LIMIT)
        key = PublicKey.from_spki(_bytes(document.key))
        keys[key.key_id] = key
    return keys


class _Refused(Exception):  # noqa: N818 - why nothing further is asked
    """A certificate does not count."""


def certified_key(text: str, trust: TrustRoot, where: str) -> tuple[PublicKey, RankKey]:
    """The key in a certificate that somebody has signed who may.

    Raises:
        SecureTrainError: it does not verify, or is malformed.
    """
    payload = trust.verify(text.encode(), PAYLOAD_TYPE, TrustRole.NODE, where)
    said = canonical.decode(payload.data, RankKey, limit=LIMIT, canonical=True)
    return PublicKey.from_spki(_bytes(said.key)), said


def _certified(
    predicate: CheckpointPredicate, trust: TrustRoot
) -> dict[str, tuple[PublicKey, str]]:
    """Key id to key and node, from certificates that count."""
    found: dict[str, tuple[PublicKey, str]] = {}
    for number, text in enumerate(predicate.members):
        where = f"the certificate {number}"
        try:
            key, said = _latest.key(text, trust, where)
        except SecureTrainError as error:
            raise _Refused(f"{where}: {reason(error)}") from error
        if said.run_id != predicate.run_id:
            raise _Refused(f"{where} is for run {said.run_id}, not {predicate.run_id}")
        if not said.issued - CLOCK_SKEW <= predicate.created <= said.expires:
            raise _Refused(
                f"{where} counts from {said.issued.isoformat()} to {said.expires.isoformat()}, and"
                f" the checkpoint is of {predicate.created.isoformat()}"
            )
        if key.key_id in found:
            raise _Refused(f"{where} is the second one for its key")
        found[key.key_id] = key, said.node
    return found


def _check_nodes(
    predicate: CheckpointPredicate, keys: Mapping[str, tuple[PublicKey, str]]
) -> list[Problem]:
    """Rule 3."""
    if not predicate.nodes:
        return []
    names = {node.node for node in predicate.nodes}
    home = {rank: node.node for node in predicate.nodes for rank in node.ranks}
    for rank, key in checkpoint_predicate.signers_of(predicate).items():
        if key not in keys:
            continue
        node = keys[key][1]
        if node not in names or home.get(rank, node) != node:
            return [_unsigned(f"rank {rank} signed as {node}, which was not its node")]
    return []


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise IdentityError("ST-IDEN-004", f"bad base64: {error}") from error


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:MAX_NAMED])
    more = f" and {len(ranks) - MAX_NAMED} more" if len(ranks) > MAX_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


def _unsigned(what: str) -> Problem:
    return Problem("ST-CKPT-122", what, STATEMENT)

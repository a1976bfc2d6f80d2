# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The verdict on an artifact: the one answer that users, pages, summaries and exports see.

Rules:

1. each line that repeats a claim says whose word it is. A claim that evidence binds has the state
   of its link; any other is ``the signer's word``, whoever repeats it;
2. a link that is missing and that somebody requires is ``missing``, else the claim stays the
   signer's word;
3. it ends with 0 when nothing that was asked is wrong: without a policy, a link of which there is
   no evidence refuses nothing, and the answer names it;
4. what nobody asked, or a form cannot answer, is said with the reason.

A verification summary: what one verifier found, for those who trust it and do not verify again.

It is an in-toto statement of SLSA's Verification Summary Attestation
(https://slsa.dev/spec/v1.1/verification_summary) about the artifact's digest. Rules, in order:

1. the result is PASSED only when verifying ended with exit code 0;
2. the levels are computed from what was verified, in a directory as in a pack, and from nothing
   that a statement says; a failed summary has none. ``SECURETRAIN_L1`` every byte is as a trusted
   key signed it; ``SECURETRAIN_L2`` also a policy was given and held, and of a checkpoint the links
   ``policy`` and ``dataset`` are verified; ``SECURETRAIN_L3`` also ``nodes``, with hardware behind
   every node. Each link of the checkpoint that is verified has its own, ``SECURETRAIN_LINK_NODES``
   and so on; what its ancestors had to show is the policy's, which the summary names;
3. a pack has L1 to L3 only with the weights, all of which were compared with what was signed;
4. it always names a policy, as SLSA asks: without one of the user's, the policy is the one that
   every artifact is held to (`INTEGRITY`, of a pack `CHAIN`), whose digest is that of its words;
5. without a statement that verifies there is no digest, so there is nothing to make a summary of.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec

from securetrain import __version__
from securetrain.artifacts import Expectation, report, rules
from securetrain.artifacts import findings as scan_findings
from securetrain.artifacts.lineage import walk
from securetrain.artifacts.statement.statements import (
    DIGEST_NAME,
    CheckpointPredicate,
    DatasetPredicate,
    Opened,
)
from securetrain.chain.judging import Judged, Judgement
from securetrain.chain.unpacking import Holding
from securetrain.core import CODES, ExitCode, canonical
from securetrain.core.errors import UsageError
from securetrain.core.files import write_atomic
from securetrain.core.vocabulary import ChainLink, LinkState, NodeTier
from securetrain.identity import STATEMENT_TYPE, dsse
from securetrain.identity.keys import Signer
from securetrain.policy.load import LoadedPolicy

NOBODY: Final = "nobody that this trust root names"
_NOT_OF_BYTES: Final = frozenset(
    {ExitCode.POLICY, ExitCode.STALE, ExitCode.REVOKED, ExitCode.LINEAGE, ExitCode.LOG_PROOF}
)
"""Refusals of an artifact whose bytes may be as signed all the same."""


class Form(StrEnum):
    """The form in which an artifact lies there."""

    DIRECTORY = "a directory"
    URL = "a store"
    PACK = "a pack"
    SAVED = "what a script saved"
    BUNDLE = "a Model Signing bundle"
    TRANSCRIPT = "a dispute's transcript"


class LineState(StrEnum):
    """The standing of a line."""

    VERIFIED = "verified"
    WORD = "the signer's word"
    BROKEN = "broken"
    MISSING = "missing"
    NOT_ASKED = "not asked"


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that is said of an artifact, and whose word that is."""

    name: str
    text: str
    state: LineState
    source: str
    """What it rests on: a signature, bytes, a link of the chain, or the statement alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The part of a verdict that only a pack has."""

    ancestors: tuple[Opened, ...] = ()
    """What the checkpoint was made from, as far as the pack holds that and it verified."""
    held: tuple[Holding, ...] = ()
    """The weights and rows that are in it, and were verified."""
    num_documents: int = 0


EMPTY: Final = Contents()


@dataclass(slots=True, kw_only=True)
class Verdict(report.Report):
    """Everything that ``verify`` has found; filled while it is judged, and only read afterwards.

    >>> found = verify("step-12", trust="trust.json")
    >>> [str(one.state) for one in found.lines() if one.name in {"signed by", "run"}]
    ['verified', "the signer's word"]
    """

    form: Form
    at: datetime
    """The time that was judged by."""
    policy: LoadedPolicy | None = None
    asked: tuple[Expectation, ...] = ()
    """What was expected, by the caller and by the policy."""
    not_asked: dict[str, str] = field(default_factory=dict)
    """What was not asked, and why."""
    judged: tuple[Judged, ...] = ()
    """The checkpoint's links, and those of the ancestors that were asked."""
    required: frozenset[ChainLink] = frozenset()
    scanned: scan_findings.ScanResult | None = None
    chain: walk.Link | None = None
    """The walk back, where it was asked for."""
    dataset: Opened | None = None
    """The dataset's statement, as far as it is at hand and verified."""
    pack: Contents = EMPTY
    words: rules.CheckedWords | None = None
    """Of a dispute's transcript."""

    def take(self, chain: Judgement) -> None:
        """Take the verdicts on its links, and what refuses it by them."""
        self.judged, first = tuple(chain.judged), chain.first
        if first is not None:
            self.dataset, self.logged = first.dataset, first.logged
        self.add(*chain.problems)
        self.excused += chain.excused

    @property
    def findings(self) -> list[scan_findings.Finding]:
        """The findings of a scan that count: that there was nothing to scan is no problem here,
        as every byte was verified.
        """
        found = () if self.scanned is None else self.scanned.findings
        return [one for one in found if one.code != scan_findings.NOTHING]

    @property
    def refusal(self) -> ExitCode:
        """The exit code of the most telling problem, or that of a scan that found something."""
        if self.problems or self.scanned is None or not self.findings:
            return report.refusal_of(self.problems)
        return self.scanned.exit_code

    @property
    def ok(self) -> bool:
        """Rule 3."""
        read = self.num_files > 0 or self.form in {Form.PACK, Form.TRANSCRIPT}
        return read and self.refusal is ExitCode.OK

    @property
    def whole(self) -> bool:
        """Tell whether all its bytes were read and are as they were signed: what refuses it, if
        anything does, is no matter of bytes.
        """
        exits = {CODES[one.code].exit for one in self.problems}
        return self.num_files > 0 and not self.truncated and exits <= _NOT_OF_BYTES

    @property
    def seen(self) -> datetime | None:
        """The time at which witnesses had seen its statement; None without a proof."""
        return None if self.logged is None else self.logged.seen

    @property
    def missing(self) -> tuple[ChainLink, ...]:
        """Links of the checkpoint itself of which there is no evidence that counts."""
        links = self.judged[0].verdicts.items() if self.judged else ()
        unshown = {LinkState.MISSING, LinkState.CLAIMED}
        return tuple(link for link, one in links if one.state in unshown)

    @property
    def answer(self) -> str:
        """A checkpoint that held, in a sentence: what evidence shows, and what it does not."""
        said = self.statement
        if not self.ok or not self.judged or not isinstance(said, CheckpointPredicate):
            return ""
        nodes = sorted(self.judged[0].verdicts[ChainLink.NODES].tiers.values())
        by = f"{len(nodes)} {nodes[0]} node{'s' * (len(nodes) != 1)}" if nodes else ""
        parts = {
            ChainLink.DATASET: f", trained on {said.dataset.name}",
            ChainLink.NODES: f" by {by}" if by else "",
            ChainLink.POLICY: f" under {said.policy.id}",
        }
        shown = "".join(part for link, part in parts.items() if self.judged[0].shows(link))
        unshown = f"; not shown: {', '.join(self.missing)}" if self.missing else ""
        run = f"Step {said.step} of run {said.run_id or '(not named)'}"
        return f"{run}{shown}: verified{unshown}."

    def state_of(self, link: ChainLink) -> LineState:
        """Rules 1 and 2."""
        state = self.judged[0].verdicts[link].state if self.judged else LinkState.NOT_ASKED
        if state is LinkState.MISSING and link in self.required:
            return LineState.MISSING
        if state in {LinkState.VERIFIED, LinkState.BROKEN}:
            return LineState(state.value)
        return LineState.WORD

    def lines(self) -> Iterator[Line]:
        """Everything that is said of it, each with its state and its source."""
        yield from self._signed()
        match self.statement:
            case CheckpointPredicate() as checkpoint:
                yield from self._checkpoint(checkpoint)
            case DatasetPredicate() as dataset:
                yield from _dataset(dataset)
        for one in self.saves:
            said = one.said
            step = f"step {said.step}" if said.step is not None else "no step named"
            what = said.place if len(said.files) > 1 else f"{said.place}/{said.files[0].name}"
            text = f"{what}: {said.way}, rank {said.rank}, save {said.number}, {step}"
            yield _word("saved", f"{text}, run {said.run_id}, {said.created.isoformat()}")
        for let in self.excused:
            yield Line("excused", f"{let.code}: {let.what}", LineState.VERIFIED, "waivers, floors")
        for held in self.pack.held:
            first, last = held.steps or (0, 0)
            rows = f", rows of the steps {first} to {last}" if held.steps else ""
            name = f"{held.opened.kind.value} {held.opened.digest[:16]}"
            text = f"{name}{rows}: {held.num_bytes:,} bytes, as signed"
            yield Line("holds", text, LineState.VERIFIED, "bytes")
        if self.form not in {Form.PACK, Form.TRANSCRIPT}:
            state = LineState.VERIFIED if self.whole else LineState.BROKEN
            text = f"{self.num_files} files, {self.num_bytes:,} bytes"
            text += ", every one of them" if self.whole else ""
            yield Line("checked", text, state, "bytes")

    def _signed(self) -> Iterator[Line]:
        """The signers, and what they stand for."""
        keys = {key for one in (self.opened, *self.saves) if one for key in one.key_ids}
        who = f"key {', '.join(sorted(key[:16] for key in keys))}, which the trust root names"
        if self.form is Form.BUNDLE:
            keys, who = {self.bundled.signer} - {""}, self.bundled.signer
        if self.form is not Form.TRANSCRIPT:
            state = LineState.VERIFIED if keys else LineState.MISSING
            yield Line("signed by", who if keys else NOBODY, state, "keys")
        if self.opened is None and self.form in {Form.DIRECTORY, Form.URL, Form.PACK}:
            text = "unknown: there is no statement that verifies"
            state = LineState.MISSING
            yield Line("lineage", text, state, "the statement")
        if self.digest:
            state = LineState.VERIFIED if self.whole else LineState.WORD
            yield Line("digest", self.digest, state, "bytes")
        if self.logged is not None:
            seen = "" if self.seen is None else f", seen by {self.seen.isoformat()}"
            text = f"entry {self.logged.index} of {self.logged.signed.checkpoint.origin}{seen}"
            yield Line("logged", text, LineState.VERIFIED, "the log's proof")

    def _checkpoint(self, said: CheckpointPredicate) -> Iterator[Line]:
        def claim(name: str, text: str, link: ChainLink) -> Line:
            return Line(name, text, self.state_of(link), f"link {link}")

        yield _word("name", said.name or "none was signed")
        run = f"{said.run_id or 'not named'}, step {said.step}, checkpoint {said.seq} of the run"
        yield _word("run", run)
        yield _word("saved", f"{said.created.isoformat()} by {said.world_size} ranks")
        data = said.dataset
        named = f"{data.name} ({data.digest[:16]})" if data.digest else "not named"
        yield claim("dataset", named, ChainLink.DATASET)
        if data.digest and data.cursor:
            cursor = ", ".join(f"{key} {value}" for key, value in sorted(data.cursor.items()))
            yield _word("cursor", cursor)
        policy = said.policy
        under = f"{policy.id} ({policy.digest[:16]})" if policy.digest else "not named"
        if self.policy is not None and policy.digest:
            same = self.policy.digest == policy.digest
            under += ", the one given here" if same else ", another than the one given here"
        yield claim("made under", under, ChainLink.POLICY)
        judged = said.gradients
        counts = f"{judged.verdict}: {judged.judged} steps judged, {judged.refused} refused"
        yield claim("gradients", counts, ChainLink.GRADIENTS)
        tiers = self.judged[0].verdicts[ChainLink.NODES].tiers if self.judged else {}
        for node in said.nodes:
            # Of one that is verified, what evidence shows; nobody claims less for itself.
            tier = tiers.get(node.node, node.tier)
            label = f" - {node.label}" if node.label else ""
            text = f"{node.node}: {tier}{label}"
            bare = tier is NodeTier.SELF_ASSERTED
            yield _word("node", text) if bare else claim("node", text, ChainLink.NODES)
        for parent in said.parents:
            yield claim("parent", f"{parent.role} {parent.digest[:16]}", ChainLink.PARENTS)


def asked_of(
    opened: Opened | None, form: Form, asked: Sequence[Expectation], *, whole: bool
) -> dict[str, str]:
    """The questions that nobody asked of an artifact, and why (rule 4).

    Args:
        opened: Its statement.
        form: The form in which it lies there.
        asked: What was expected.
        whole: Whether all of its bytes were read.
    """
    fields = {
        Form.TRANSCRIPT: "",
        Form.BUNDLE: "name digest",
        Form.SAVED: "run step name digest signer",
    }.get(form, "run step dataset policy name digest signer")
    if opened is not None and isinstance(opened.predicate, DatasetPredicate):
        fields = "name digest signer"
    given = {
        name.removeprefix("min_")
        for one in asked
        for name, value in msgspec.structs.asdict(one).items()
        if value is not None
    }
    found = {name: "--expect-... asks" for name in fields.split() if name not in given}
    if form in {Form.SAVED, Form.BUNDLE}:
        found["links"] = f"{form} binds no evidence of the training"
    if not whole:
        found["bytes"] = "the pack does not hold the weights"
    return found


def _dataset(said: DatasetPredicate) -> Iterator[Line]:
    yield _word("dataset", f"{said.name}, version {said.seq}, {len(said.files)} files")
    yield _word("signed", said.created.isoformat())
    removed = sum(one.length for one in said.removed)
    for name, text in (
        ("splits", ", ".join(f"{s.name} ({len(s.files)} files)" for s in said.splits)),
        ("licence", ", ".join(said.licenses)),
        ("removed", f"{removed:,} bytes are not to be read" if said.removed else ""),
        *sorted(said.metadata.items()),
    ):
        if text:
            yield _word(name, text)


def _word(name: str, text: str) -> Line:
    return Line(name, text, LineState.WORD, "the statement")


PREDICATE_TYPE: Final = "https://slsa.dev/verification_summary/v1"
VERIFIER_ID: Final = "https://securetrain.dev/verify"
INTEGRITY: Final = (
    f"{VERIFIER_ID}/integrity/v1",
    (
        "Every byte is as a key signed it that the trust root names for this kind of artifact. "
        "Nothing else was asked."
    ),
)
"""The policy of an artifact that was verified without one, and its words."""
CHAIN: Final = (
    f"{VERIFIER_ID}/chain/v2",
    (
        "The checkpoint's statement is signed by a key that the trust root names for checkpoints,"
        " and no evidence at hand contradicts it. Nothing else was asked."
    ),
)
"""Likewise, of a pack."""
LEVELS: Final = ("SECURETRAIN_L1", "SECURETRAIN_L2", "SECURETRAIN_L3")
LINK: Final = "SECURETRAIN_LINK_"


def levels(found: Verdict) -> Iterator[str]:
    """Rules 2 and 3."""
    if not found.ok:
        return
    shown = {link for link in ChainLink if found.judged and found.judged[0].shows(link)}
    if found.num_files:
        yield from LEVELS[: _reached(found, shown)]
    yield from (f"{LINK}{link.upper()}" for link in ChainLink if link in shown)


def _reached(found: Verdict, shown: set[ChainLink]) -> int:
    said = found.statement
    if found.policy is None:
        return 1
    if not isinstance(said, CheckpointPredicate):
        return 2
    if not said.run_id or not {ChainLink.POLICY, ChainLink.DATASET} <= shown:
        return 1
    tiers = found.judged[0].verdicts[ChainLink.NODES].tiers if ChainLink.NODES in shown else {}
    proven = [tiers.get(node.node, NodeTier.SELF_ASSERTED) for node in said.nodes]
    return 3 if proven and min(proven) >= NodeTier.VTPM else 2


def summarize(found: Verdict) -> bytes:
    """The summary as an in-toto statement, not signed.

    Raises:
        UsageError: ST-USAG-001, rule 5.
    """
    if not found.digest:
        raise UsageError(
            "ST-USAG-001",
            "no statement of it verifies, so there is no digest to write a summary about",
            str(found.path),
            "leave out --vsa; the exit code and --format json say what was found",
        )
    uri, words = CHAIN if found.form is Form.PACK else INTEGRITY
    digest = hashlib.sha256(words.encode()).hexdigest()
    if found.policy is not None:
        uri, digest = found.policy.policy.metadata.id, found.policy.digest
    predicate: dict[str, Any] = {
        "verifier": {"id": VERIFIER_ID, "version": {"securetrain": __version__}},
        "timeVerified": found.at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "resourceUri": f"urn:securetrain:{found.kind}:{found.digest}",
        "verificationResult": "PASSED" if found.ok else "FAILED",
        "verifiedLevels": list(levels(found)),
        "policy": {"uri": uri, "digest": {"sha256": digest}},
    }
    name = PurePosixPath(str(found.path)).name
    return canonical.dumps(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": name, "digest": {DIGEST_NAME: found.digest}}],
            "predicateType": PREDICATE_TYPE,
            "predicate": predicate,
        }
    )


def write_summary(target: Path, found: Verdict, key: Signer | None = None) -> None:
    """Write the summary of a verdict to a new file, signed when there is a key.

    Raises:
        UsageError: ST-USAG-005 when the file exists; see `summarize`.
    """
    data = summarize(found)
    if key is not None:
        data = dsse.sign(data, dsse.IN_TOTO, [key], keyless=True)
    write_atomic(target, data, replace=False)

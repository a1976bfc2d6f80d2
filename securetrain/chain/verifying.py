# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The one judge: what an artifact is, and whether evidence shows it, in whatever form it lies.

A reader turns each form into the same things: statements, bytes by digest, and the evidence at
hand. Rules, in order:

1. `artifacts.guess` tells a pack, what a script saved, and the transcript of a dispute; a bundle is
   given, a URL has its scheme; anything else is the directory of a checkpoint or dataset. An
   option that a form cannot answer is refused (`UNANSWERED`), never passed over;
2. the artifact itself is asked everything: who signed, which one it is, age and policy, what lies
   beside it, and every byte (`artifacts.verify`, `artifacts.saved`, `artifacts.model`, `packed`);
3. its links are judged by the evidence of its run (`judging`), with or without a policy, and a
   broken one refuses. Evidence lies in the run directory around it, on this machine or in a store,
   in the folders that are given, and in a pack; it counts by its digest and signatures, wherever it
   lies. Unless a policy asks of all ancestors, or counts steps, parents and dataset are looked for
   right beside the checkpoint and its run only, and what is not found there is missing;
4. of each ancestor is asked, too, whether it was set aside, and for the proof where the policy asks
   for a log;
5. what binds no evidence, a script's saves and a bundle, has every link missing: a policy that
   requires one refuses;
6. what was found when it held is remembered in the floors, so that nothing older counts from now
   on; a scan, where it is asked for, counts besides;
7. at its witnesses' time, a pack is judged as of the moment at which they had seen it, by the trust
   root of that time.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from securetrain.artifacts import (
    Expectation,
    Kind,
    Problem,
    given,
    kinds,
    storage,
)
from securetrain.artifacts import rules as statement_rules
from securetrain.artifacts import verify as beside
from securetrain.artifacts.lineage import LogProof, judging, waivers, walk
from securetrain.artifacts.statement.statements import CheckpointPredicate, DatasetPredicate, Opened
from securetrain.chain.container import Pack
from securetrain.chain.judging import Demand, counted_steps, judge, judge_chain
from securetrain.chain.links import Given, Subject, code_of
from securetrain.chain.records import read_replay
from securetrain.chain.store import Places
from securetrain.chain.verdict import Form, Verdict, asked_of
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError
from securetrain.core.files import read_file
from securetrain.core.vocabulary import ChainLink
from securetrain.identity.log import LIMIT as PROOF_LIMIT
from securetrain.identity.log import Logged
from securetrain.identity.trust import TrustRoot
from securetrain.policy.load import LoadedPolicy
from securetrain.policy.schema import Policy

if TYPE_CHECKING:
    from securetrain.artifacts.model import oms, signers

LEDGER: Final = "ledger.jsonl"
LEDGER_LIMIT: Final = 1 << 30
Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes hashed so far and the bytes in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The knowledge of a verifier besides an artifact."""

    log_proof: Path | None = None
    """The proof that its statement was logged, which must hold."""
    waiver: Sequence[Path] = ()
    """Operators' waivers."""
    floors: Path | None = None
    """The file that remembers the newest checkpoint of every run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """The bundle of OpenSSF Model Signing that a model was signed with."""

    bundle: Path | None = None
    roots: "signers.ModelRoots | None" = None
    scope: "oms.Scope | None" = None


NOTHING_KNOWN: Final = Known()
NO_BUNDLE: Final = Signing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Further questions, each called as on the command line."""

    trust_data: given.Trust | None = None
    """Of whoever made its dataset, where the trust root does not name them."""
    trust_replay: given.Trust | None = None
    """Of whoever did steps again, likewise."""
    evidence: Sequence[Path] = ()
    """Further run directories with evidence."""
    appraise: bool = False
    """Whether the evidence behind results is judged again."""
    at: Literal["now", "witness"] = "now"
    """Rule 7."""
    replayed: Sequence[Path] = ()
    """Signed results of steps that were done again."""
    known: Known = NOTHING_KNOWN
    scan: bool = False
    walk: bool = False
    """Whether the chain is followed to its end, and shown."""
    walk_in: Sequence[Path] = ()
    """Where its other artifacts are; by default, the two folders above the artifact."""
    vsa: bool = False
    """Whether a verification summary will be made of the verdict."""
    signing: Signing = NO_BUNDLE

    @property
    def given(self) -> set[str]:
        """The names of the options that are not as they are by default."""
        return {
            one.name
            for part in (self, self.known, self.signing)
            for one in fields(part)
            if getattr(part, one.name) != one.default
        }


NOTHING_MORE: Final = Options()
_OF_RUNS: Final = ("log_proof", "waiver", "floors", "walk", "walk_in", "evidence", "appraise")
UNANSWERED: Final[Mapping[Form, Collection[str]]] = {
    Form.DIRECTORY: {"at"},
    Form.URL: {"at", "scan", "bundle", "roots", "offline"},
    Form.PACK: {"scan", *_OF_RUNS} - {"appraise", "waiver", "floors"},
    Form.SAVED: {*_OF_RUNS, "vsa", "scan", "at", "replayed", "trust_replay", "trust_data"},
    Form.BUNDLE: {*_OF_RUNS, "vsa", "at", "replayed", "trust", "trust_replay", "trust_data"},
    Form.TRANSCRIPT: {
        *(one.name for part in (Options, Known, Signing) for one in fields(part)),
        *("expect", "policy"),
    },
}
"""The options that a form cannot answer."""


def refuse(form: Form, given: Collection[str], place: object) -> None:
    """Refuse options that a form cannot answer.

    Raises:
        UsageError: ST-USAG-001.
    """
    unanswered, what = set(UNANSWERED[form]), str(form)
    if {"at", "vsa"} <= {*given}:
        # A summary has one time, and cannot say of which time it is true.
        unanswered, what = {"vsa"}, f"{form} at its witnesses' time"
    flags = sorted(f"--{one.replace('_', '-')}" for one in given if one in unanswered)
    if flags:
        raise UsageError(
            "ST-USAG-001",
            f"{', '.join(flags)} does not apply to {what}",
            str(place),
            "leave it out, or copy what lies in a store here first; 'securetrain verify --help'"
            " says what applies",
        )


def form_of(target: Path | str | Pack, options: Options = NOTHING_MORE) -> Form:
    """The form of what is at a place (rule 1)."""
    if isinstance(target, Pack):
        return Form.PACK
    path = target if isinstance(target, Path) else storage.local_path(target)
    if path is None:
        return Form.URL
    if options.signing != NO_BUNDLE:
        return Form.BUNDLE
    kind, known = kinds.guess(path).kind.name, (Form.PACK, Form.SAVED, Form.TRANSCRIPT)
    return next((one for one in known if one.name == kind), Form.DIRECTORY)


@given.checked
def verify(
    path: given.Folder | Pack,
    expect: Expectation | None = None,
    *,
    trust: given.Trust | None = None,
    policy: given.PolicyName | None = None,
    now: given.Moment | None = None,
    options: Options = NOTHING_MORE,
    progress: Progress | None = None,
) -> Verdict:
    """Verify an artifact: a directory, file, pack, model with its bundle, or URL.

    Args:
        path: Where it is, or a URL; a pack may be open.
        expect: Which artifact is wanted; None takes any that a trusted key has signed.
        trust: The trust root or its file; a bundle has roots of its own (`Options`).
        policy: What is asked besides: a policy, the name of a shipped one, or a file.
        now: The time to judge by; None for this moment.
        options: What else is asked.
        progress: Called from the calling thread while bytes are hashed.

    Raises:
        UsageError: ST-USAG-001 for an option that does not apply; 002 when nothing is there.
        IdentityError: The trust root does not count.
        IntegrityError: ST-PACK-101 to 141, it is no whole pack; ST-CHAN-021, nobody has witnessed
            it.

    >>> verify("step-12", Expectation(run="toy", step=12), trust="trust.json").ok
    True
    >>> found = verify("step-12", Expectation(run="toy", step=13), trust="trust.json")
    >>> [problem.code for problem in found.problems]
    ['ST-CKPT-127']
    """
    form = form_of(path, options)
    refuse(form, options.given | ({"expect"} if expect is not None else set()), path)
    rules, at = given.open_policy(policy), given.moment(now)
    if form is Form.PACK and not isinstance(path, Pack):
        with Pack.open(Path(path)) as pack:
            return verify(pack, expect, trust=trust, policy=rules, now=at, options=options)
    return _Judgement(path, expect, trust, rules, at, form, options, progress).verdict()


def counted(
    policy: given.PolicyName,
    *,
    trust: given.Trust,
    now: given.Moment | None = None,
    evidence: Sequence[Path] = (),
    replayed: Sequence[Path] = (),
) -> given.JudgedPolicy:
    """Have a policy count the steps before what is loaded, by the evidence of its run.

    Args:
        policy: Counts steps (``min_clean_steps``, ``max_audit_age_steps``).
        trust: The trust root or its file, which names who may sign the run and replays of it.
        now: The time to judge by; None for this moment.
        evidence: Further run directories with evidence than the one that it lies in.
        replayed: Signed results of steps that were done again.
    """
    at = given.moment(now)
    root, asked = given.open_trust(trust, at), given.open_policy(policy)
    assert asked is not None

    def count(opened: Opened, there: storage.Storage) -> Sequence[Problem]:
        if not asked.policy.checkpoint.counts_steps:
            return ()
        have = Given(
            trust=root,
            pieces=Places.around(there, evidence),
            now=at,
            policy=asked.policy,
            replays=[read_replay(one, root) for one in replayed],
        )
        place = there.path if isinstance(there, storage.LocalStorage) else there.name
        chain = walk.walk_back(place, opened, root, None)
        subject = next(_Directories(chain=chain, logged=None).subjects())
        return counted_steps(subject, have, asked.policy)

    return given.JudgedPolicy(policy=asked.policy, digest=asked.digest, counts=count)


@dataclass(slots=True)
class _Judgement:
    """One verification."""

    target: Path | str | Pack
    expect: Expectation | None
    trust: given.Trust | None
    policy: LoadedPolicy | None
    now: datetime
    form: Form
    options: Options
    progress: Progress | None

    @property
    def rules(self) -> Policy | None:
        """The policy itself."""
        return None if self.policy is None else self.policy.policy

    def root(self, trust: given.Trust | None = None) -> TrustRoot:
        """A trust root, as it counts at the time that is judged by."""
        trust = trust if trust is not None else self.trust
        if trust is None:
            what = "no trust root was given"
            raise UsageError("ST-USAG-001", what, str(self.target), "give trust=")
        return given.open_trust(trust, self.now)

    def verdict(self) -> Verdict:
        """Ask everything that its form can be asked."""
        place = self.target.path if isinstance(self.target, Pack) else self.target
        if isinstance(self.target, Pack) and self.options.at == "witness":
            self.now = self._seen(self.target)
        found = Verdict.of(place, form=self.form, at=self.now, policy=self.policy)
        found.required = self.demand().required
        self._ask(found)
        for link in found.required if self.form in {Form.SAVED, Form.BUNDLE} else ():
            found.refuse(code_of(link), f"{link} missing: {self.form} binds no evidence of it")
        if self.options.scan:
            from securetrain import scan  # noqa: PLC0415 - only as asked

            scanned = scan(Path(found.path))
            found.scanned = scanned.among_data() if not found.problems else scanned
        self._remember(found)
        rules = self.rules if found.kind is Kind.CHECKPOINT else None
        wanted = (self.expect, None if rules is None else statement_rules.expected_by(rules))
        found.asked = tuple(one for one in wanted if one is not None)
        whole = self.form is not Form.PACK or bool(found.num_files)
        found.not_asked = asked_of(found.opened, self.form, found.asked, whole=whole)
        return found

    def _ask(self, found: Verdict) -> None:
        """Rule 2, as its form has it."""
        match self.form:
            case Form.PACK:
                from securetrain.chain.packed import check_pack  # noqa: PLC0415 - of these alone

                assert isinstance(self.target, Pack)
                data = self.root(self.options.trust_data)
                check_pack(found, self.target, self.evidence(), self.demand(), data)
            case Form.DIRECTORY | Form.URL:
                self._directory(found)
            case Form.SAVED:
                from securetrain.artifacts import judging as saved_judging  # noqa: PLC0415 - of these alone

                saved_judging.check_saved(
                    found, Path(found.path), trust=self.root(), policy=self.rules, now=self.now,
                    expect=self.expect,
                )  # fmt: skip
            case Form.BUNDLE:
                self._model(found)
            case Form.TRANSCRIPT:
                from securetrain.artifacts import rules as statement_rules  # noqa: PLC0415 - of these alone

                found.words = statement_rules.check_words(Path(found.path), self.root())
                for rank in found.words.ruling.unsigned:
                    missing = "its signature is missing or does not verify"
                    why = found.words.uncertified.get(rank, missing)
                    found.refuse("ST-IDEN-002", f"rank {rank}: {why}")

    def evidence(self, pieces: Places | None = None) -> Given:
        """Everything that a judge of links has."""
        given_, auditors = self.options.replayed, self.options.trust_replay
        known = self._known()
        return Given(
            trust=self.root(),
            pieces=pieces or Places.of([]),
            now=self.now,
            waivers=() if known is None else known.waivers,
            again=self.options.appraise,
            policy=self.rules,
            expect=self.expect,
            replays=[read_replay(one, self.root(auditors)) for one in given_],
        )

    def demand(self, *, statement: bool = True) -> Demand:
        """The demands on the chain."""
        replay = {ChainLink.REPLAY} if self.options.replayed else set()
        return Demand(
            policy=self.rules,
            expect=self.expect,
            known=self._known(),
            again=self.options.appraise,
            at_hand=frozenset(replay),
            statement=statement,
        )

    def _directory(self, found: Verdict) -> None:
        """Rules 2 to 4, for a directory and the run around it."""
        options = self.options
        given = self.evidence(Places.around(found.root, options.evidence))
        # Its own statement is asked with its bytes.
        demand = self.demand(statement=False)

        def shows(opened: Opened) -> statement_rules.Shown:
            verdict = judge(ChainLink.NODES, Subject(opened=opened), given)
            return statement_rules.Shown(tiers=verdict.tiers, problem=verdict.problem(), steps=True)

        proof = None
        if options.known.log_proof is not None:
            proof = LogProof(read_file(options.known.log_proof, PROOF_LIMIT))
        asked = judging.Asked(
            trust=given.trust,
            policy=self.rules,
            now=self.now,
            known=self._known(),
            expect=self.expect,
        )
        beside.check_directory(found, asked, progress=self.progress, log_proof=proof, shows=shows)
        if found.opened is None:
            return
        data = None if options.trust_data is None else self.root(options.trust_data)
        shown = options.walk or bool(options.walk_in)
        if shown or demand.walks:
            chain = walk.walk_back(
                found.path, found.opened, given.trust, options.walk_in or None, data
            )
            if shown:
                found.chain = chain
                found.add(*walk.problems(chain))
        else:
            chain = walk.look_beside(found.path, found.opened, given.trust, data)
        if isinstance(found.opened.predicate, CheckpointPredicate):
            source = _Directories(chain=chain, logged=found.logged)
            found.take(judge_chain(source, given, demand))

    def _model(self, found: Verdict) -> None:
        """Rule 2, for a model with its bundle."""
        from securetrain.artifacts import judging as saved_judging  # noqa: PLC0415 - as asked
        from securetrain.artifacts.model import oms, signers  # noqa: PLC0415

        path, options = Path(found.path), self.options.signing
        trust = (options.roots or signers.ModelRoots()).read(str(path))
        path, bundle = (path, options.bundle) if options.bundle else kinds.bundle_of(path)
        oms.check_model(
            found,
            path,
            bundle,
            trust,
            self.now,
            scope=options.scope or oms.Scope(),
            expect=self.expect,
            progress=self.progress,
        )
        taken = f"taken for {kinds.guess(path)}"
        found.bundled = replace(found.bundled, notes=(*found.bundled.notes, taken))
        if self.rules is not None:
            found.add(*saved_judging.lacking(self.rules, "a bundle lacks"))

    def _known(self) -> judging.Freshness | None:
        """The knowledge of this machine besides the artifact; None when nothing was given."""
        options = self.options.known
        if not options.waiver and options.floors is None:
            return None
        return judging.Freshness(
            floors=None if options.floors is None else judging.Floors(options.floors),
            waivers=tuple(read_file(path, waivers.LIMIT) for path in options.waiver),
        )

    def _remember(self, found: Verdict) -> None:
        """Rule 6."""
        if found.ok and self.options.known.floors is not None:
            beside.remember(found, judging.Floors(self.options.known.floors), self.root())

    def _seen(self, pack: Pack) -> datetime:
        """The time at which the witnesses had seen it, by the trust root of that time."""
        from securetrain.chain.packed import claimed_time, witnessed  # noqa: PLC0415 - packs only

        now, claimed = self.now, claimed_time(pack)
        self.now = now if claimed is None or claimed > now else claimed
        seen = witnessed(pack, self.root(), now)
        if seen is not None and seen <= now:
            # What counted when they saw it decides; the claim only said where to look first.
            self.now = seen
            seen = witnessed(pack, self.root(), seen)
        if seen is None or seen > now:
            raise IntegrityError(
                "ST-CHAN-021",
                "no witness says when it was signed, so it cannot be judged at that time",
                str(pack.path),
                "verify it without --at witness, or have checkpoints logged with witnesses",
            )
        return seen


@dataclass(slots=True, kw_only=True)
class _Directories:
    """Signed directories that lead to a checkpoint; a source of evidence (`judging.Source`)."""

    chain: walk.Link
    logged: Logged | None
    """The place of the checkpoint itself in the log."""
    ledgers: dict[str, bytes | None] = field(default_factory=dict)
    refused: str = ""

    def subjects(self) -> Iterator[Subject]:
        """See `judging.Source`."""
        known = {
            one.digest: one.opened
            for one in self.chain.every()
            if one.opened is not None and isinstance(one.opened.predicate, CheckpointPredicate)
        }
        for link in self.chain.every():
            opened, first = link.opened, link is self.chain
            if opened is None or not isinstance(opened.predicate, CheckpointPredicate):
                continue
            if not first and opened.checkpoint.parents and not link.links:
                continue  # its own links stand elsewhere: it was judged there
            yield Subject(
                opened=opened,
                parents=_opened(link, CheckpointPredicate),
                known=known,
                dataset=next(iter(_opened(link, DatasetPredicate).values()), None),
                beside=link.beside,
                logged=self.logged if first else None,
                ledger=self._ledger(link),
            )

    def _ledger(self, link: walk.Link) -> bytes | None:
        """The ledger of the run whose directory holds a checkpoint; read once."""
        if link.path is None:
            return None
        run = storage.storage_of(link.path).above().above()
        if run.name not in self.ledgers:
            try:
                there = run.has(LEDGER)
                self.ledgers[run.name] = run.read(LEDGER, LEDGER_LIMIT) if there else None
            except (SecureTrainError, OSError):
                self.ledgers[run.name] = None
        return self.ledgers[run.name]


def _opened(
    link: walk.Link, kind: type[CheckpointPredicate] | type[DatasetPredicate]
) -> dict[str, Opened]:
    return {
        one.digest: one.opened
        for one in link.links
        if one.opened is not None and isinstance(one.opened.predicate, kind)
    }

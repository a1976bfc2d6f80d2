# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The segments of a pack's main line, and everything that has to hold before they are done again.

Rules:

1. a segment leads from one checkpoint of the run to the next, by the bond to the previous one;
2. it is done again by its own evidence alone: the links `job`, `rows`, `gradients` and `code` of
   the checkpoint that it ends with are verified, else nothing is done, with that link's code;
3. directories count when they hold the very statement of the pack; their bytes are verified when
   they are read;
4. its code is that at hand: the same distributions, and of every file that was imported the same
   bytes. What the run had imported and this package is not, is refused;
5. the document of its environment counts when the link `environment` is verified. The variables
   that it names are set for the steps by name and by value (`variables_of`): the document is
   another party's, and a variable such as OMP_TOOL_LIBRARIES makes a process load code.

When not all are done again:

6. so many are drawn that, if the forged part is as large as was said or larger, one of them is
   among the drawn with the confidence that was asked for (without replacement: hypergeometric);
7. whoever forged must not know which. They are drawn by a checkpoint of the transparency log that
   the quorum of witnesses cosigned **after** they had seen the run's last checkpoint: the draw
   hashes the witnesses' own signatures, which nobody can work out without their keys;
8. the same log checkpoint draws the same segments for everybody.

The holder of the log can ask the witnesses for one checkpoint after the other and show the one that
suits it: each costs one cosignature of the quorum, and who asks for the sample should name the
checkpoint, or take the newest.
"""

import base64
import hashlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from securetrain.artifacts import STATEMENT
from securetrain.artifacts.statement.statements import Opened, ParentRole
from securetrain.chain import documents
from securetrain.chain.documents import Code, Environment
from securetrain.chain.judging import judge
from securetrain.chain.links import Given, Subject, code_of
from securetrain.chain.records import Sample, StepRecord, StepRecords, number, records_of
from securetrain.chain.replay.outcome import rate_at
from securetrain.chain.store import Pieces, document
from securetrain.core.errors import IntegrityError, SecureTrainError, UsageError
from securetrain.core.files import read_file
from securetrain.core.vocabulary import ChainLink, LinkState
from securetrain.identity import envelope_unverified
from securetrain.identity.log import LogPolicy, note, open_checkpoint
from securetrain.identity.trust import TrustRoot

PROGRAM: Final = "securetrain.train"
OWN: Final = "securetrain"
MAX_LOOKED: Final = 1 << 16
"""Directories that are looked into."""
STATEMENT_LIMIT: Final = 64 << 20
NEEDED: Final = (ChainLink.JOB, ChainLink.CODE, ChainLink.ROWS, ChainLink.GRADIENTS)
SETTABLE: Final = frozenset(
    {
        *("ATEN_CPU_CAPABILITY", "CUBLAS_WORKSPACE_CONFIG", "DNNL_DEFAULT_FPMATH_MODE"),
        *("DNNL_MAX_CPU_ISA", "KMP_AFFINITY", "KMP_BLOCKTIME", "KMP_DETERMINISTIC_REDUCTION"),
        *("MKL_CBWR", "MKL_DOMAIN_NUM_THREADS", "MKL_DYNAMIC", "MKL_ENABLE_INSTRUCTIONS"),
        *(
            "MKL_NUM_THREADS",
            "MKL_THREADING_LAYER",
            "NCCL_ALGO",
            "NCCL_PROTO",
            "NVIDIA_TF32_OVERRIDE",
        ),
        *("OMP_DYNAMIC", "OMP_MAX_ACTIVE_LEVELS", "OMP_NESTED", "OMP_NUM_THREADS", "OMP_PLACES"),
        *("OMP_PROC_BIND", "OMP_SCHEDULE", "OMP_THREAD_LIMIT", "ONEDNN_DEFAULT_FPMATH_MODE"),
        *("ONEDNN_MAX_CPU_ISA", "PYTHONHASHSEED", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
        "TORCH_BLAS_PREFER_CUBLASLT",
    }
)
"""Variables that decide about arithmetic and about nothing else: they name no file and no host."""
_VALUE: Final = re.compile(r"[A-Za-z0-9_,.:;=+*^(){}-]{1,256}")
_THREADS: Final = re.compile(r"[0-9]{1,4}(,[0-9]{1,4}){0,7}")
_MAINS: Final = {"__main__": "train/__main__.py", "__mp_main__": "train/__main__.py"}


REFUSED: Final = "ST-CHAN-024"
CHECKPOINT_LIMIT: Final = 1 << 20


def needed(segments: int, forged: float, confidence: float) -> int:
    """The number of some segments that have to be drawn (rule 6).

    Args:
        segments: How many there are.
        forged: The part that is forged at least, above 0 and up to 1.
        confidence: With which one of them is drawn, from 0 and below 1; at 1 all are.

    Raises:
        UsageError: ST-USAG-001 for other numbers.
    """
    if not (0 < forged <= 1 and 0 <= confidence <= 1) or segments < 1:
        raise UsageError(
            "ST-USAG-001",
            f"a part of {forged} with confidence {confidence} of {segments} segments",
            "--sample, --forged",
            "give a confidence such as 0.99 and a part such as 0.1",
        )
    bad = max(1, math.ceil(forged * segments - 1e-9))
    missed, drawn = 1.0, 0
    while missed > 1 - confidence + 1e-12 and drawn < segments:
        missed *= max(0, segments - bad - drawn) / (segments - drawn)
        drawn += 1
    return drawn


def draw(segments: Sequence[str], count: int, seed: bytes) -> list[int]:
    """The places of the drawn segments, in order: those whose names hash lowest under the seed."""

    def place(number: int) -> bytes:
        said = b"securetrain/replay/1\n" + seed + segments[number].encode()
        return hashlib.sha256(said).digest()

    return sorted(sorted(range(len(segments)), key=place)[:count])


def seed_of(
    path: Path, trust: TrustRoot, *, after: datetime, subject: str, now: datetime
) -> tuple[bytes, datetime]:
    """The seed that a log checkpoint gives for a run, and when its quorum had cosigned it (rule 7).

    Args:
        path: The signed checkpoint of the log, with its cosignatures.
        trust: Names the log and its witnesses.
        after: When the run's last checkpoint had been seen, or was made.
        subject: The statement of that checkpoint.
        now: The time.

    Raises:
        IdentityError: ST-IDEN-040, ST-IDEN-044, it is no checkpoint of that log that counts.
        IntegrityError: ST-CHAN-024, it was cosigned before the run had ended.
    """
    data = read_file(path, CHECKPOINT_LIMIT)
    policy = LogPolicy.from_trust_root(trust)
    signed = open_checkpoint(data, policy, now, str(path))
    first = min(signed.cosigned.values(), default=None)
    if first is None or first <= after:
        raise IntegrityError(
            REFUSED,
            f"a witness cosigned this log checkpoint at {first}, and the run's last checkpoint was"
            f" there at {after}: its maker could have known which steps are asked for",
            str(path),
        )
    # Each of them verified above: `open_checkpoint` refuses one that does not.
    lines = sorted(
        str(line).encode()
        for line in note.parse(data, str(path)).lines
        if any(line.id == note.cosigner_id(line.name, key) for key in policy.witnesses.values())
    )
    digest = hashlib.sha256(b"securetrain/replay/seed/1\n" + subject.encode() + b"\n")
    digest.update(signed.checkpoint.text.encode())
    for line in lines:
        digest.update(line + b"\n")
    return digest.digest(), max(signed.cosigned.values())


def sample_of(
    path: Path, numbers: tuple[float, float], counts: tuple[int, int], seen: datetime
) -> Sample:
    """The draw of segments by the log checkpoint in a file."""
    (confidence, forged), (drawn, of) = numbers, counts
    return Sample(
        confidence=number(confidence),
        forged=number(forged),
        drawn=drawn,
        of=of,
        log_checkpoint=hashlib.sha256(read_file(path, CHECKPOINT_LIMIT)).hexdigest(),
        cosigned=seen,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The steps that lead from one checkpoint to the next."""

    begin: Opened | None
    """None for the beginning of the run."""
    end: Opened
    kept: StepRecords
    records: tuple[StepRecord, ...]
    settings: Mapping[str, Any]
    """What the job declared."""
    code: Code
    environment: Environment | None

    @property
    def after(self) -> int:
        """The step before the first."""
        return self.kept.after

    @property
    def last(self) -> int:
        """The last step."""
        return self.kept.last


def segments_of(
    subject: Opened, ancestors: Iterable[Opened], dataset: Opened | None, given: Given
) -> list[Segment]:
    """The segments of a checkpoint's main line, oldest first.

    Raises:
        IntegrityError: The code of a link by rule 2.
    """
    known = {one.digest: one for one in ancestors}
    line = [subject]
    while (parent := _previous(line[-1], known)) is not None and parent not in line:
        if parent.checkpoint.run_id != subject.checkpoint.run_id:
            break
        line.append(parent)
    line.reverse()
    found = []
    for at, end in enumerate(line):
        begin = line[at - 1] if at else _previous(end, known)
        if end.checkpoint.step == 0 or (begin is None and _names_previous(end)):
            continue
        found.append(_segment(begin, end, known, dataset, given))
    return found


def _names_previous(opened: Opened) -> bool:
    return any(one.role is ParentRole.PREVIOUS for one in opened.checkpoint.parents)


def _previous(opened: Opened, known: Mapping[str, Opened]) -> Opened | None:
    for one in opened.checkpoint.parents:
        if one.role is ParentRole.PREVIOUS:
            return known.get(one.digest)
    return None


def _segment(
    begin: Opened | None,
    end: Opened,
    known: Mapping[str, Opened],
    dataset: Opened | None,
    given: Given,
) -> Segment:
    said = end.checkpoint
    parents = {one.digest: known[one.digest] for one in said.parents if one.digest in known}
    same = dataset is not None and dataset.digest == said.dataset.digest
    subject = Subject(opened=end, parents=parents, dataset=dataset if same else None)
    for link in NEEDED:
        verdict = judge(link, subject, given)
        if verdict.state is not LinkState.VERIFIED:
            problem = verdict.problem()
            assert problem is not None
            raise IntegrityError(
                problem.code,
                f"step {said.step} cannot be done again: {problem.what}",
                f"step {said.step} ({end.digest[:16]})",
            )
        if link is ChainLink.JOB:
            # Of another program nothing else is asked: it has no records of its steps.
            _settings(given.pieces, said.bound.job)
    pieces = given.pieces
    assert said.bound.step_records is not None
    found = records_of(pieces, said.bound.step_records)
    settings = _settings(pieces, said.bound.job)
    code = _document(pieces, said.bound.code, Code)
    if found is None or settings is None or code is None:
        raise IntegrityError(
            code_of(ChainLink.JOB), f"step {said.step}: its evidence is gone", end.digest[:16]
        )
    kept, records = found
    shown = judge(ChainLink.ENVIRONMENT, subject, given).state is LinkState.VERIFIED
    made = Segment(
        begin=begin,
        end=end,
        kept=kept,
        records=tuple(records),
        settings=settings,
        code=code,
        environment=_document(pieces, said.bound.environment, Environment) if shown else None,
    )
    _check_rates(made)
    return made


def check_program(end: Opened, pieces: Pieces) -> None:
    """Refuse a checkpoint of another program, of which nothing else has to be asked.

    Raises:
        IntegrityError: ST-CHAN-022; ST-CHAN-001.
    """
    _settings(pieces, end.checkpoint.bound.job)


def _settings(pieces: Pieces, bound: str | None) -> Mapping[str, Any] | None:
    job = _document(pieces, bound, documents.Job)
    if job is None:
        return None
    if job.module != PROGRAM:
        raise IntegrityError(
            code_of(ChainLink.JOB),
            f"the job ran {job.module or 'a script'}: its seed, its learning rates and the order of"
            f" its rows are not recorded ({PROGRAM} records them; for a script, or one that calls"
            " `fit`, no option of `run` does)",
            "job",
            "train with `securetrain train`",
        )
    if job.declared is None:
        return None
    declared = document(pieces, job.declared, documents.Declared)
    return None if declared is None else declared.settings


def _document(pieces: Pieces, digest: str | None, kind: type[documents.D]) -> documents.D | None:
    return None if digest is None else document(pieces, digest, kind)


def _check_rates(segment: Segment) -> None:
    """The recorded learning rates are those of the declared schedule."""
    code = code_of(ChainLink.GRADIENTS)
    for record in segment.records:
        try:
            wanted = rate_at(record.step, segment.settings)
        except ValueError as error:
            raise IntegrityError(code_of(ChainLink.JOB), str(error), "job") from error
        if wanted != float.fromhex(record.lr):
            raise IntegrityError(
                code,
                f"step {record.step}: its learning rate was recorded as"
                f" {float.fromhex(record.lr):.17g}, and the declared schedule says {wanted:.17g}",
                f"step {segment.last} ({segment.end.digest[:16]})",
            )


def find_directories(places: Sequence[Path], wanted: Mapping[str, str]) -> dict[str, Path]:
    """The directories that hold some signed statements (rule 3).

    Args:
        places: Directories: each is looked at, and what is in it, and in that.
        wanted: By statement (SHA-256 of what was signed), what it is, for the refusal.

    Raises:
        UsageError: ST-USAG-001, one of them is in none of the places.
    """
    found: dict[str, Path] = {}
    for folder in _folders(places):
        file = folder / STATEMENT
        if not file.is_file() or file.is_symlink():
            continue
        try:
            payload = base64.b64decode(
                envelope_unverified(read_file(file, STATEMENT_LIMIT)).payload, validate=True
            )
        except (SecureTrainError, ValueError):
            continue
        digest = hashlib.sha256(payload).hexdigest()
        if digest in wanted:
            found.setdefault(digest, folder.absolute())
    if lost := [what for digest, what in wanted.items() if digest not in found]:
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise UsageError(
            "ST-USAG-001",
            f"no directory of {lost[0]} was found{more}",
            ", ".join(map(str, places)) or "--in",
            "give the run directory with its checkpoints, and the dataset's: --in DIR",
        )
    return found


def _folders(places: Sequence[Path]) -> Iterator[Path]:
    looked = 0
    for place in places:
        waiting = [(place, 0)]
        while waiting:
            folder, depth = waiting.pop()
            looked += 1
            if looked > MAX_LOOKED:
                return
            yield folder
            if depth < 2:
                try:
                    inner = sorted(one.path for one in os.scandir(folder) if one.is_dir())
                except OSError:
                    continue
                waiting += [(Path(one), depth + 1) for one in inner]


def check_own_files(code: Code, root: Path) -> None:
    """Refuse other files of this package than those at hand (rule 4), before any step is done.

    Raises:
        IntegrityError: ST-CHAN-013.
    """
    for one in code.files:
        if one.module.split(".")[0] == OWN and _hash(root.parent / one.path) != one.sha256:
            raise _other_code(f"another {one.module} ({one.path}, SHA-256 {one.sha256[:16]})")


def check_files(code: Code, again: Code, root: Path) -> None:
    """Refuse other distributions and files of code than those that did the steps again (rule 4).

    Args:
        code: The run's.
        again: That of the steps that were done again, by its launcher.
        root: The folder of this package.

    Raises:
        IntegrityError: ST-CHAN-013.
    """
    _check_installed(code, again)
    here = {one.module: one for one in again.files}
    for one in code.files:
        if one.module in _MAINS:
            same = _hash(root / _MAINS[one.module]) == one.sha256
        elif one.module in here:
            same = here[one.module].sha256 == one.sha256
        else:
            if one.module.split(".")[0] != OWN:
                raise _other_code(f"{one.module} ({one.path}), which is no part of {PROGRAM}")
            same = _hash(root.parent / one.path) == one.sha256
        if not same:
            raise _other_code(f"another {one.module} ({one.path}, SHA-256 {one.sha256[:16]})")


def _check_installed(code: Code, again: Code) -> None:
    here = {(one.name, one.version): one.record for one in again.distributions}
    if code.python != again.python:
        raise _other_code(f"Python {code.python}, here is {again.python}")
    for one in code.distributions:
        if (one.name, one.version) not in here:
            versions = [version for name, version in here if name == one.name]
            raise _other_code(
                f"{one.name} {one.version}, here is {', '.join(versions) or 'none of it'}"
            )
        if one.record != here[one.name, one.version]:
            raise _other_code(f"{one.name} {one.version} with other files than those here")


def _hash(path: Path) -> str:
    try:
        return hashlib.sha256(read_file(path, STATEMENT_LIMIT)).hexdigest()
    except SecureTrainError:
        return ""


def _other_code(what: str) -> IntegrityError:
    return IntegrityError(
        code_of(ChainLink.CODE),
        f"the run had {what}",
        "code",
        "install what the run had: its code manifest and lock file name it",
    )


def variables_of(run: Environment | None, here: Mapping[str, str]) -> dict[str, str]:
    """The environment for steps of a run that are done again: this process's own, with the run's
    variables of `SETTABLE` in place of its own ones.

    What the document names besides is not set: `environment_differs` names it.

    Args:
        run: The run's environment, of a verified link; None leaves this process's own as it is.
        here: This process's.
    """
    if run is None:
        return dict(here)
    made = {name: value for name, value in here.items() if name not in SETTABLE}
    for name, value in run.variables.items():
        grammar = _THREADS if name.endswith(("_NUM_THREADS", "_LIMIT")) else _VALUE
        if name in SETTABLE and grammar.fullmatch(value):
            made[name] = value
    return made


def environment_differs(run: Environment | None, here: Environment) -> str:
    """Say in what an environment differs from a run's, of what decides about bits and could not be
    set; empty when it does not.
    """
    if run is None:
        return "the run's environment was not kept, or its link is not verified"
    found = []
    for name in ("processor", "devices", "python", "torch", "variables", "declared"):
        wanted, has = getattr(run, name), getattr(here, name)
        if wanted != has:
            found.append(
                f"{name}: the run had {_brief(wanted, has)}, here is {_brief(has, wanted)}"
            )
    return "; ".join(found)


def _brief(value: object, other: object) -> str:
    if isinstance(value, dict) and isinstance(other, dict):
        value = {name: one for name, one in value.items() if other.get(name) != one}
    return str(value)[:200]

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The beginning of an offence, and the ranks that are reported to the rendezvous. Pure.

A rank is named when evidence of many steps has added up: what it did before is in the weights. Its
offence began about the last step in which nothing spoke against it (`CALM`, `MARGIN`), because bets
that lose are taken back to nothing (evidence.py). A gross gradient is named in its first step:
nothing of it was applied, and there is nothing to go back for.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from securetrain.guard.response import Findings
from securetrain.guard.verdict import RankScore, Verdict
from securetrain.policy.schema import GuardResponse

CALM: Final = 1.0
"""ln E up to which nothing speaks against a rank."""
MARGIN: Final = 4
"""Steps before the last calm one that are doubted too: a lie's first steps may look honest."""
_SILENT: Final = "ST-GRAD-010"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """One rank, and what it was caught at."""

    rank: int
    code: str
    what: str


OnSuspicion: TypeAlias = Callable[[Suspicion], None]


@dataclass(slots=True)
class Beginnings:
    """The last calm step of each rank of the job, as far as this rank compares them."""

    calm: dict[int, int] = field(default_factory=dict)

    def look(self, step: int, findings: Findings) -> None:
        """Take a step's evidence, and say when what newly excluded ranks did began."""
        since = [self.calm.get(rank, 0) for rank in findings.newly_excluded if rank in self.calm]
        if since:
            findings.since = max(0, min(since) - MARGIN)
            findings.reaches_back = min(since) < step - 1
        self._learn(step, findings.table)

    def _learn(self, step: int, table: Iterable[RankScore]) -> None:
        for score in table:
            if score.evidence is None or score.evidence <= CALM or score.rank not in self.calm:
                self.calm[score.rank] = step

    def restart(self, calm: Mapping[str, int]) -> None:
        """Go on from a checkpoint."""
        self.calm = {int(rank): step for rank, step in calm.items() if rank.isdigit()}

    def state(self) -> dict[str, int]:
        """The record that `restart` takes."""
        return {str(rank): step for rank, step in sorted(self.calm.items())}


def is_statistical(code: str) -> bool:
    """Tell whether a finding rests on numbers that an honest rank may have by chance."""
    match code:
        case "ST-GRAD-001" | "ST-GRAD-002":
            return True
        case _:
            return False


def suspicions(verdict: Verdict, response: GuardResponse) -> Iterable[Suspicion]:
    """The ranks of a verdict that go to the rendezvous: those that were excluded in this step."""
    if response is not GuardResponse.EVICT_NODE:
        return
    statistics = [code for code in verdict.codes if is_statistical(code)]
    # The most telling last: a rank's own words, then what most say of it.
    proofs = [code for code in verdict.codes if not is_statistical(code)]
    for rank in verdict.newly_excluded:
        if rank in verdict.proven:
            code = proofs[-1] if proofs else "ST-GRAD-003"
        else:
            code = statistics[0] if statistics else "ST-GRAD-002"
        what = f"step {verdict.step}: {verdict.reason}"
        yield Suspicion(rank=rank, code=code, what=what[:1000])


def silent_ones(missing: Iterable[int], seconds: float) -> Iterable[Suspicion]:
    """The ranks that did not speak before the deadline."""
    for rank in missing:
        yield Suspicion(
            rank=rank, code=_SILENT, what=f"it did not speak to the guard within {seconds:g} s"
        )

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The page of ``replay``: one line a segment."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from securetrain.chain import Replay, Word
from securetrain.core import CODES, ExitCode
from securetrain.report.document import Document, moment, plural
from securetrain.report.pieces import safe

MAX_SHOWN: Final = 40
BROKEN: Final = "ST-CHAN-023"


def planned(run: str, segments: int, drawn: int, confidence: float, forged: float) -> Document:
    """The cost of a sample, before anything is done again."""
    text = (
        f"{drawn} of {plural(segments, 'segment')} of {safe(run)} are done again: if {forged:g} of"
        f" them is forged, one is drawn with confidence {confidence:g}"
    )
    return Document(text=[text], data={"run": run, "segments": segments, "drawn": drawn})


def replayed(said: Replay, out: Path | None) -> Document:
    """The outcome of ``replay``."""
    words = [one.word for one in said.segments]
    code = ExitCode.OK
    if Word.BROKEN in words:
        code = CODES[BROKEN].exit
    elif Word.OPEN in words:
        code = ExitCode.INCOMPLETE
    data: dict[str, Any] = msgspec.to_builtins(said)
    for one in data["segments"]:
        for name in ("difference", "largest", "numbers", "reach"):
            one[name] = float.fromhex(one.get(name, "0x0.0p+0"))
    data |= {"exit_code": int(code), "code": BROKEN if Word.BROKEN in words else ""}
    data["out"] = None if out is None else str(out)
    return Document(data=data, text=list(_lines(said, out)), exit_code=int(code))


def _lines(said: Replay, out: Path | None) -> Iterator[str]:
    yield f"run      {safe(said.run)}, {said.mesh}, {moment(said.at)}"
    yield f"compared {'bit by bit' if not said.why else f'within bounds: {safe(said.why)}'}"
    if said.sample is not None:
        drawn = said.sample
        yield (
            f"drawn    {drawn.drawn} of {drawn.of} segments, by a log checkpoint that was cosigned"
            f" {moment(drawn.cosigned)}: confidence {float.fromhex(drawn.confidence):g} that less"
            f" than {float.fromhex(drawn.forged):g} of them is forged"
        )
    shown = [one for one in said.segments if one.word in {Word.BROKEN, Word.OPEN}]
    others = [one for one in said.segments if one not in shown]
    for one in [*shown, *others][:MAX_SHOWN]:
        steps = f"steps {one.after + 1} to {one.last} ({one.end[:16]})"
        yield f"{one.word:9} {steps}{_figures(said, one)}"
        for problem in one.problems:
            yield f"          {safe(problem)}"
    if len(said.segments) > MAX_SHOWN:
        yield f"and {len(said.segments) - MAX_SHOWN} more (--json lists them)"
    if shown and any(one.word is Word.BROKEN for one in shown):
        yield f"error    {BROKEN}: {CODES[BROKEN].title}"
    if out is not None:
        yield f"signed   {out}"


def _figures(said: Replay, one: Any) -> str:
    reach = f"weights went {float.fromhex(one.reach):.3f} of what AdamW can"
    if one.word is Word.PLAUSIBLE or not said.why:
        return f": {reach}"
    apart = f"{float.fromhex(one.difference):.2g} of the movement apart"
    return f": {apart}, {reach}"

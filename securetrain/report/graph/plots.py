# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The report's curves, drawn by matplotlib as SVG that can stand inside a page.

Rules: a plot is data, and one painter draws them all; the figure carries a title and a description
for people who cannot see it; text stays text, in the page's font; colours are the page's own
variables, so that light and dark need one drawing; no ids, styles, metadata or addresses leak into
the page around it. Long runs are thinned to what a screen can show.
"""

import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from securetrain.report.graph.templating import not_installed
from securetrain.report.run.model import GuardView, StepPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS: Final = 1200
MAX_MARKS: Final = 20
MAX_NAMED: Final = 8
"""Curves that a legend has room for."""
WIDTH_INCHES: Final = 5.4
HEIGHT_INCHES: Final = 2.9
_WIDE_RANGE: Final = 50
"""A range from which on an axis is logarithmic, where it may be."""

# Colours that no drawing uses by accident; each is replaced by a variable of the page's style.
_INK, _MUTED, _LINE = "#010203", "#040506", "#070809"
_SERIES: Final = ("#a00001", "#a00002", "#a00003", "#a00004", "#a00005", "#a00006")
_VARIABLES: Final = {
    _INK: "var(--ink)",
    _MUTED: "var(--muted)",
    _LINE: "var(--line)",
    **{colour: f"var(--series-{n})" for n, colour in enumerate(_SERIES, start=1)},
}
_DASHED: Final = (0, (4, 3))
_DOTTED: Final = (0, (1, 2))
_STYLES: Final = ("-", "--", ":")
_SETTINGS: Final[dict[str, Any]] = {
    "svg.fonttype": "none",
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
    "font.family": "sans-serif",
    "font.size": 9,
    **dict.fromkeys(("axes.edgecolor", "grid.color", "xtick.color", "ytick.color"), _LINE),
    **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), _MUTED),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.labelcolor": _INK,
    "legend.loc": "lower right",
    "legend.borderaxespad": 0.2,
    "path.simplify": True,
}
_REMOVED: Final = re.compile(
    r"<metadata>.*?</metadata>|<style\b.*?</style>|<!--.*?-->"
    r"|\s+xmlns(:\w+)?=\"[^\"]*\"|font-family: [^;\"]*;? ?",
    re.DOTALL,
)
_REFERRING: Final = re.compile(r"\b(id=\"|url\(#|(?:xlink:)?href=\"#)")
"""Where an id stands: two drawings share one page, so each gets the drawing's name in front."""

Series: TypeAlias = Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Plot:
    """One drawing: what it shows, and what stands under it."""

    name: str
    title: str
    unit: str
    curves: Mapping[str, Series]
    """Each by its name, in the order of the colours."""
    caption: str
    _: KW_ONLY
    first: int = 0
    """The colour of the first."""
    points: str | None = None
    """The curve whose points were measured one by one."""
    limits: tuple[tuple[str, float], ...] = ()
    """Values that the curves are to be compared with, in words."""
    marks: tuple[int, ...] = ()
    """Steps in which a rank was excluded, as the ledger says."""
    scale: str = "from zero"
    """``from zero``, ``any``, or ``wide`` for one that may be logarithmic."""

    @property
    def svg(self) -> str:
        """The drawing, as an element of a page.

        Raises:
            UsageError: ST-USAG-004 when matplotlib is not installed.
        """
        try:
            import matplotlib as mpl  # noqa: PLC0415 - an optional extra
            from matplotlib.figure import Figure  # noqa: PLC0415
        except ImportError as error:
            raise not_installed("the plots of the HTML report need matplotlib") from error
        settings: Any = _SETTINGS | {"svg.hashsalt": self.name}
        with mpl.rc_context(settings):
            figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), layout="constrained")
            self._paint(figure.subplots())
            out = io.StringIO()
            figure.savefig(out, format="svg", metadata={"Date": None})
        return inline(out.getvalue(), self.name, self.title, self.caption)

    def _paint(self, axes: "Axes") -> None:
        for number, (label, series) in enumerate(self.curves.items(), self.first):
            style = "o" if label == self.points else _STYLES[number // len(_SERIES) % len(_STYLES)]
            colour = _SERIES[number % len(_SERIES)]
            xs, ys = zip(*thin(series), strict=True)
            axes.plot(xs, ys, style, color=colour, linewidth=1.3, markersize=4, label=label)
        steps = [step for series in self.curves.values() for step, _ in series]
        beside: Any = {"xytext": (0, 3), "textcoords": "offset points", "fontsize": 8}
        for words, value in self.limits:
            axes.axhline(value, color=_MUTED, linewidth=1, linestyle=_DASHED)
            axes.annotate(f"{words} {value:.3g}", (min(steps), value), color=_MUTED, **beside)
        for step in self.marks[:MAX_MARKS]:
            axes.axvline(step, color=_MUTED, linewidth=0.8, linestyle=_DOTTED)
        axes.set_xlabel("step")
        axes.set_ylabel(self.unit)
        values = [value for series in self.curves.values() for _, value in series]
        if self.scale == "wide" and 0 < min(values) < max(values) / _WIDE_RANGE:
            axes.set_yscale("log")
        elif self.scale != "any":
            axes.set_ylim(bottom=0)
        if any(self.curves) and len(self.curves) <= MAX_NAMED:  # above, where no curve is
            axes.legend(ncols=min(len(self.curves), 4), bbox_to_anchor=(1.0, 1.0))


def draw(metrics: Sequence[StepPoint], guard: GuardView | None) -> tuple[Plot, ...]:
    """Every plot for which something was recorded."""
    found = [*_training(metrics), *(_guard(guard) if guard is not None else ())]
    return tuple(plot for plot in found if any(plot.curves.values()))


def _training(metrics: Sequence[StepPoint]) -> Iterator[Plot]:
    bits, held_out = _series(metrics, "bits_per_byte"), _series(metrics, "val_bits_per_byte")
    if bits:
        baselines = {
            words: series[-1][1]
            for words in ("unigram", "bigram")
            if (series := _series(metrics, f"{words}_bits"))
        }
        caption = (
            f"From {bits[0][1]:.2f} to {bits[-1][1]:.2f} bits per byte in {bits[-1][0]} steps."
        )
        if held_out and "bigram" in baselines:
            last, bigram = held_out[-1][1], baselines["bigram"]
            caption += (
                f" On held-out text {last:.2f}, {'below' if last < bigram else 'not below'} the"
                f" {bigram:.2f} that the byte before alone achieves."
            )
        yield Plot(
            *("loss", "Loss in bits per byte", "bits per byte"),
            _recorded(training=bits, validation=held_out),
            caption,
            points="validation",
            limits=tuple(baselines.items()),
        )
    if norms := _series(metrics, "grad_norm"):
        caption = f"Median {_median(norms):.3g}, largest {_largest(norms):.3g}."
        named = ("norm", "Gradient norm", "gradient norm")
        yield Plot(*named, {"": norms}, caption, first=2, scale="wide")
    if seconds := _series(metrics, "seconds"):
        caption = f"Median step {_median(seconds):.3g} s."
        if speeds := _series(metrics, "tokens_per_second"):
            caption += f" Median {_median(speeds):,.0f} tokens a second."
        if memory := [size for _, size in _series(metrics, "memory_bytes") if size]:
            caption += f" Rank 0 used at most {max(memory) / (1 << 30):.2f} GiB."
        curves = _recorded(step=seconds, data=_series(metrics, "data_seconds"))
        yield Plot("time", "Time of a step", "seconds", curves, caption, first=3)


def _guard(guard: GuardView) -> Iterator[Plot]:
    """One drawing for each thing that the guard compares."""
    marks = sorted({one.since for one in guard.exclusions if one.since is not None})
    limit = guard.limit
    for name, of, title, unit in (
        ("sketch", "norm", "Norm of each rank's gradient, from its sketch", "norm"),
        ("cosine", "cosine", "Agreement of each rank with the others", "cosine"),
        ("evidence", "evidence", "Evidence against each rank, of all steps so far", "ln E"),
    ):
        ranks = {
            f"rank {rank}": series
            for rank in sorted({point.rank for point in guard.points})
            if (series := _series([p for p in guard.points if p.rank == rank], of))
        }
        if not ranks:
            continue
        judged = of == "evidence" and limit is not None
        yield Plot(
            *(name, title, unit),
            ranks,
            f"{len(ranks)} ranks, {guard.num_steps} steps judged,"
            f" {len(guard.refused_steps)} refused; the largest value is"
            f" {max(map(_largest, ranks.values())):.3g}.",
            limits=(("excluded from", limit),) if judged and limit is not None else (),
            marks=tuple(marks) if judged else (),
            scale="any",
        )
    yield from _layers(guard, marks)
    integrity = [(step, value) for step, value in guard.integrity if math.isfinite(value)]
    if integrity:
        yield Plot(
            *("integrity", "Was the reduction what the ranks sent?", "difference / limit"),
            {"": integrity},
            "The reduced gradient's sketch against the ranks' own: at most"
            f" {_largest(integrity):.2f} of what rounding explains.",
            first=3,
            limits=(("refused above", 1.0),),
        )


def _layers(guard: GuardView, marks: Sequence[int]) -> Iterator[Plot]:
    """The groups that spoke loudest; where a group says nothing its line is at zero."""
    told: dict[str, dict[int, float]] = {}
    for point in guard.layers:
        told.setdefault(point.group, {})[point.step] = point.evidence
    loudest = sorted(told, key=lambda group: (-max(*told[group].values(), 0.0), group))
    if not loudest:
        return
    first, shown = loudest[0], loudest[: len(_SERIES)]
    ranks = {point.rank for point in guard.layers if point.group == first}
    who = f"rank {min(ranks)}" if len(ranks) == 1 else f"{len(ranks)} ranks in turn"
    yield Plot(
        *("layers", "Evidence by group of parameters", "ln E of the group"),
        {one: [(step, told[one].get(step, 0.0)) for step in guard.steps] for one in shown},
        f"Against the rank that each group speaks against loudest; the {len(shown)} loudest"
        f" of {len(told)} groups. {first} reached {max(told[first].values()):.3g}, against {who}.",
        limits=() if guard.limit is None else (("of all groups:", guard.limit),),
        marks=tuple(marks),
    )


def thin(series: Series) -> list[tuple[int, float]]:
    """At most `MAX_POINTS` points; of every bucket its smallest and its largest stay."""
    if len(series) <= MAX_POINTS:
        return list(series)
    size = math.ceil(len(series) / (MAX_POINTS // 2))
    buckets = (series[start : start + size] for start in range(0, len(series), size))
    return sorted({end(one, key=_value) for one in buckets for end in (min, max)})


def _series(points: Iterable[Any], of: str) -> list[tuple[int, float]]:
    """Step and value, where it was measured and is a number."""
    found = ((point.step, getattr(point, of)) for point in points)
    return [(step, value) for step, value in found if value is not None and math.isfinite(value)]


def _recorded(**curves: Series) -> dict[str, Series]:
    return {name: series for name, series in curves.items() if series}


def _value(point: tuple[int, float]) -> float:
    return point[1]


def _largest(series: Series) -> float:
    return max(value for _, value in series)


def _median(series: Series) -> float:
    return sorted(value for _, value in series)[len(series) // 2]


def inline(svg: str, name: str, title: str, description: str) -> str:
    """Make a stand-alone SVG file into an element of a page."""
    body = _REMOVED.sub("", svg[svg.index("<svg") :])
    body = _REFERRING.sub(lambda found: f"{found[1].removeprefix('xlink:')}{name}-", body)
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, variable)
    viewbox = re.search(r'viewBox="[^"]*"', body)
    assert viewbox is not None, "matplotlib always writes a viewBox"
    opening = (
        f'<svg class="plot" {viewbox.group()} role="img"'
        f' aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(description)}</desc>'
    )
    return opening + body[body.index(">") + 1 :].strip()

# SPDX-FileCopyrightText: 2026 The securetrain developers
# SPDX-License-Identifier: Apache-2.0
"""The report's curves, drawn by matplotlib as SVG that can stand inside a page.

Rules: the figure carries a title and a description for people who cannot see it; text stays text,
in the page's font; colours are the page's own variables, so that light and dark need one drawing;
no ids, styles, metadata or addresses leak into the page around it. Long runs are thinned to what a
screen can show.
"""

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

from securetrain.core import install_hint
from securetrain.core.errors import UsageError
from securetrain.report.run.model import GuardView, RankPoint, StepPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS: Final = 1200
WIDTH_INCHES: Final = 5.4
HEIGHT_INCHES: Final = 2.9

# Colours that no drawing uses by accident; each is replaced by a variable of the page's style.
_INK, _MUTED, _LINE = "#010203", "#040506", "#070809"
_SERIES: Final = ("#a00001", "#a00002", "#a00003", "#a00004", "#a00005", "#a00006")
_VARIABLES: Final[Mapping[str, str]] = {
    _INK: "var(--ink)",
    _MUTED: "var(--muted)",
    _LINE: "var(--line)",
    **{colour: f"var(--series-{n})" for n, colour in enumerate(_SERIES, start=1)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One drawing: inline SVG, and what stands under it."""

    title: str
    svg: str
    caption: str


def draw(metrics: Sequence[StepPoint], guard: GuardView | None) -> tuple[Plot, ...]:
    """Every plot for which something was recorded.

    Raises:
        UsageError: ST-USAG-004 when matplotlib is not installed.
    """
    plots = [_bits(metrics), _norm(metrics), _time(metrics), *_guard(guard)]
    return tuple(plot for plot in plots if plot is not None)


def _bits(metrics: Sequence[StepPoint]) -> Plot | None:
    series = _series(metrics, lambda point: point.bits_per_byte)
    validation = _series(metrics, lambda point: point.val_bits_per_byte)
    baselines = _baselines(metrics)
    if not series:
        return None

    def paint(axes: "Axes") -> None:
        xs, ys = zip(*series, strict=True)
        axes.plot(xs, ys, color=_SERIES[0], linewidth=1.6, label="training")
        if validation:
            vx, vy = zip(*validation, strict=True)
            axes.plot(vx, vy, "o", color=_SERIES[1], markersize=4, label="validation")
        for label, value in baselines.items():
            axes.axhline(value, color=_MUTED, linewidth=1, linestyle=(0, (4, 3)))
            _note(axes, f"{label} {value:.2f}", (max(xs), value))
        if validation:
            _legend(axes, 2)
        axes.set_xlabel("step")
        axes.set_ylabel("bits per byte")
        axes.set_ylim(bottom=0)

    caption = (
        f"From {series[0][1]:.2f} to {series[-1][1]:.2f} bits per byte in {series[-1][0]} steps."
    )
    if validation and "bigram" in baselines:
        last, bigram = validation[-1][1], baselines["bigram"]
        caption += (
            f" On held-out text {last:.2f}, {'below' if last < bigram else 'not below'} the"
            f" {bigram:.2f} that the byte before alone achieves."
        )
    return _plot("loss", "Loss in bits per byte", caption, paint)


def _baselines(metrics: Sequence[StepPoint]) -> dict[str, float]:
    """The losses of counting on the held-out text, as the run measured them last."""
    return {
        label: value
        for point in metrics
        for label, value in (("unigram", point.unigram_bits), ("bigram", point.bigram_bits))
        if value is not None and math.isfinite(value)
    }


def _legend(axes: "Axes", columns: int) -> None:
    """Draw the legend above the drawing, where no curve is."""
    axes.legend(
        frameon=False,
        fontsize=8,
        labelcolor=_INK,
        ncols=min(columns, 4),
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        borderaxespad=0.2,
    )


def _limit(axes: "Axes", value: float, words: str, at: float, *, side: str = "right") -> None:
    """A dashed line at a limit, named at one end."""
    axes.axhline(value, color=_MUTED, linewidth=1, linestyle=(0, (4, 3)))
    _note(axes, f"{words} {value:.3g}", (at, value), side=side)


def _note(axes: "Axes", text: str, point: tuple[float, float], *, side: str = "right") -> None:
    """Small words just above the end of a line."""
    axes.annotate(
        text, point, xytext=(0, 3), textcoords="offset points", ha=side, color=_MUTED, fontsize=8
    )


def _mark_exclusions(axes: "Axes", guard: GuardView) -> None:
    """A thin line at each step in which a rank was excluded, as the ledger says."""
    for step in sorted({one.since for one in guard.exclusions if one.since is not None})[:20]:
        axes.axvline(step, color=_MUTED, linewidth=0.8, linestyle=(0, (1, 2)))


def _norm(metrics: Sequence[StepPoint]) -> Plot | None:
    series = _series(metrics, lambda point: point.grad_norm)
    if not series:
        return None

    def paint(axes: "Axes") -> None:
        xs, ys = zip(*series, strict=True)
        axes.plot(xs, ys, color=_SERIES[2], linewidth=1.3)
        axes.set_xlabel("step")
        axes.set_ylabel("gradient norm")
        if min(ys) > 0 and max(ys) / min(ys) > 50:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)

    values = [value for _, value in series]
    return _plot(
        "norm",
        "Gradient norm",
        f"Median {_median(values):.3g}, largest {max(values):.3g}.",
        paint,
    )


def _time(metrics: Sequence[StepPoint]) -> Plot | None:
    """The duration of steps, and the part of it in which rank 0 waited for data."""
    seconds = _series(metrics, lambda point: point.seconds)
    waiting = _series(metrics, lambda point: point.data_seconds)
    if not seconds:
        return None

    def paint(axes: "Axes") -> None:
        axes.plot(*zip(*seconds, strict=True), color=_SERIES[3], linewidth=1.3, label="step")
        if waiting:
            axes.plot(*zip(*waiting, strict=True), color=_SERIES[4], linewidth=1.3, label="data")
            _legend(axes, 2)
        axes.set_xlabel("step")
        axes.set_ylabel("seconds")
        axes.set_ylim(bottom=0)

    caption = f"Median step {_median([value for _, value in seconds]):.3g} s."
    speeds = [value for _, value in _series(metrics, lambda point: point.tokens_per_second)]
    if speeds:
        caption += f" Median {_median(speeds):,.0f} tokens a second."
    memory = [point.memory_bytes for point in metrics if point.memory_bytes]
    if memory:
        caption += f" Rank 0 used at most {max(memory) / (1 << 30):.2f} GiB."
    return _plot("time", "Time of a step", caption, paint)


def _guard(guard: GuardView | None) -> list[Plot | None]:
    """One drawing for each thing that the guard compares; those without numbers are left out."""
    if guard is None:
        return []
    norms = _per_rank(
        guard,
        "sketch",
        "Norm of each rank's gradient, from its sketch",
        "norm",
        lambda point: point.norm,
    )
    return [
        norms,
        _per_rank(
            guard,
            "cosine",
            "Agreement of each rank with the others",
            "cosine",
            lambda point: point.cosine,
        ),
        _per_rank(
            guard,
            "evidence",
            "Evidence against each rank, of all steps so far",
            "ln E",
            lambda point: point.evidence,
            limit=(guard.limit, "excluded from"),
        ),
        _layers(guard),
        _integrity(guard),
    ]


def _layers(guard: GuardView) -> Plot | None:
    """The groups that spoke loudest; where a group says nothing its line is at zero."""
    loudest: dict[str, float] = {}
    for point in guard.layers:
        loudest[point.group] = max(point.evidence, loudest.get(point.group, 0.0))
    shown = sorted(loudest, key=lambda group: (-loudest[group], group))[: len(_SERIES)]
    if not shown:
        return None
    told = {(point.group, point.step): point.evidence for point in guard.layers}

    def paint(axes: "Axes") -> None:
        for colour, group in zip(_SERIES, shown, strict=False):
            series = thin([(step, told.get((group, step), 0.0)) for step in guard.steps])
            axes.plot(*zip(*series, strict=True), color=colour, linewidth=1.1, label=group)
        if guard.limit is not None:
            _limit(axes, guard.limit, "of all groups:", min(guard.steps), side="left")
        _mark_exclusions(axes, guard)
        axes.set_xlabel("step")
        axes.set_ylabel("ln E of the group")
        axes.set_ylim(bottom=0)
        _legend(axes, 3)

    first = shown[0]
    ranks = {point.rank for point in guard.layers if point.group == first}
    who = f"rank {min(ranks)}" if len(ranks) == 1 else f"{len(ranks)} ranks in turn"
    return _plot(
        "layers",
        "Evidence by group of parameters",
        f"Against the rank that each group speaks against loudest; the {len(shown)} loudest of"
        f" {len(loudest)} groups. {first} reached {loudest[first]:.3g}, against {who}.",
        paint,
    )


def _integrity(guard: GuardView) -> Plot | None:
    series = thin([(step, value) for step, value in guard.integrity if math.isfinite(value)])
    if not series:
        return None

    def paint(axes: "Axes") -> None:
        xs, ys = zip(*series, strict=True)
        axes.plot(xs, ys, color=_SERIES[3], linewidth=1.1)
        _limit(axes, 1.0, "refused above", max(xs))
        axes.set_xlabel("step")
        axes.set_ylabel("difference / limit")
        axes.set_ylim(bottom=0)

    return _plot(
        "integrity",
        "Was the reduction what the ranks sent?",
        f"The reduced gradient's sketch against the ranks' own: at most"
        f" {max(value for _, value in series):.2f} of what rounding explains.",
        paint,
    )


def _per_rank(
    guard: GuardView,
    name: str,
    title: str,
    unit: str,
    value: Callable[[RankPoint], float | None],
    *,
    limit: tuple[float | None, str] = (None, ""),
) -> Plot | None:
    ranks: dict[int, list[tuple[int, float]]] = {}
    for point in guard.points:
        number = value(point)
        if number is not None and math.isfinite(number):
            ranks.setdefault(point.rank, []).append((point.step, number))
    if not ranks:
        return None

    def paint(axes: "Axes") -> None:
        for index, (rank, series) in enumerate(sorted(ranks.items())):
            xs, ys = zip(*thin(series), strict=True)
            colour = _SERIES[index % len(_SERIES)]
            style = ("-", "--", ":")[index // len(_SERIES) % 3]
            axes.plot(xs, ys, style, color=colour, linewidth=1.1, label=f"rank {rank}")
        if limit[0] is not None:
            _limit(axes, limit[0], limit[1], min(guard.steps), side="left")
            _mark_exclusions(axes, guard)
        axes.set_xlabel("step")
        axes.set_ylabel(unit)
        if len(ranks) <= 8:
            _legend(axes, len(ranks))

    largest = max(number for series in ranks.values() for _, number in series)
    refused = len(guard.refused_steps)
    return _plot(
        name,
        title,
        f"{len(ranks)} ranks, {guard.num_steps} steps judged, {refused} refused;"
        f" the largest value is {largest:.3g}.",
        paint,
    )


def thin(series: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most `MAX_POINTS` points; of every bucket its smallest and its largest stay."""
    if len(series) <= MAX_POINTS:
        return list(series)
    size = math.ceil(len(series) / (MAX_POINTS // 2))
    kept: set[tuple[int, float]] = set()
    for start in range(0, len(series), size):
        bucket = series[start : start + size]
        kept.add(min(bucket, key=lambda point: point[1]))
        kept.add(max(bucket, key=lambda point: point[1]))
    return sorted(kept)


def _series(
    metrics: Sequence[StepPoint], value: Callable[[StepPoint], float | None]
) -> list[tuple[int, float]]:
    found = [(point.step, number) for point in metrics if (number := value(point)) is not None]
    return thin([(step, number) for step, number in found if math.isfinite(number)])


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _plot(name: str, title: str, caption: str, paint: "Callable[[Axes], None]") -> Plot:
    try:
        import matplotlib as mpl  # noqa: PLC0415 - an optional extra
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            "ST-USAG-004",
            "the plots of the HTML report need matplotlib",
            "securetrain[report]",
            install_hint("report"),
        ) from error
    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.edgecolor": _LINE,
        "axes.labelcolor": _MUTED,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "grid.color": _LINE,
        "grid.linewidth": 0.8,
        "xtick.color": _LINE,
        "ytick.color": _LINE,
        "xtick.labelcolor": _MUTED,
        "ytick.labelcolor": _MUTED,
        "path.simplify": True,
    }
    with mpl.rc_context(settings):
        figure = Figure(figsize=(WIDTH_INCHES, HEIGHT_INCHES), layout="constrained")
        paint(figure.subplots())
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    return Plot(title=title, svg=inline(out.getvalue(), name, title, caption), caption=caption)


def inline(svg: str, name: str, title: str, description: str) -> str:
    """Make a stand-alone SVG file into an element of a page."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<style\b.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", body)
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    # every id of the drawing gets its name in front: two drawings share one page
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r"url\(#", f"url(#{name}-", body)
    body = re.sub(r'xlink:href="#', f'href="#{name}-', body)
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

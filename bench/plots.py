"""Charts of what workloads measured over time, as SVG files that are the same for the same numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

COLOURS = ["#0b6e99", "#d9730d", "#6b7280"]


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes: what is measured, with its unit, and its lines of (seconds, value) by their names."""

    measure: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    levels: Mapping[str, float] = ()  # dashed, by name: a target, a share


@dataclass(frozen=True, slots=True)
class Chart:
    """Panels above each other over the same seconds; `name` is the file's."""

    name: str
    title: str
    panels: Sequence[Panel]


def nowhere(_chart):
    """Draw nothing: what workloads do unless there is a folder."""


def save(chart, folder):
    """Write a chart into a folder, which is made if need be. Needs matplotlib: `pip install 'postrow[bench]'`."""
    import matplotlib as mpl  # noqa: PLC0415  # of an extra, and slow to load
    from matplotlib.figure import Figure  # noqa: PLC0415

    style = {
        "svg.hashsalt": chart.name,  # else ids are random
        "svg.fonttype": "none",  # text stays text
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#e5e7eb",
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(9, 1 + 2.8 * len(chart.panels)), layout="constrained")
        figure.suptitle(chart.title)
        rows = figure.subplots(len(chart.panels), 1, sharex=True, squeeze=False)
        for axes, panel in zip(rows[:, 0], chart.panels, strict=True):
            for (name, points), colour in zip(panel.lines.items(), COLOURS, strict=False):
                axes.plot(*zip(*points, strict=True), label=name, color=colour, linewidth=1.8)
            for name, value in dict(panel.levels).items():
                axes.axhline(value, label=name, color="#9ca3af", linestyle="--", linewidth=1.2)
            axes.set_ylabel(panel.measure)
            axes.yaxis.set_major_formatter("{x:,.10g}")
            axes.set_ylim(bottom=0)
            axes.margins(x=0.01)
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        axes.set_xlabel("seconds since the beginning")
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / f"{chart.name}.svg", metadata={"Date": None, "Creator": None})

"""Charts of what workloads measured over time, as SVG files that are the same for the same numbers."""

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
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
    """Panels above each other over the same seconds, or what else `along` says; `name` is the file's."""

    name: str
    title: str
    panels: Sequence[Panel]
    along: str = "seconds since the beginning"


def nowhere(_chart):
    """Draw nothing: what workloads do unless there is a folder."""


def save(chart, folder):
    """Write a chart into a folder, which is made if need be. Needs matplotlib: `pip install 'postrow[bench]'`."""
    with figure_of(chart.name, chart.title, folder, len(chart.panels), 2.8, sharex=True) as rows:
        for axes, panel in zip(rows, chart.panels, strict=True):
            for (name, points), colour in zip(panel.lines.items(), COLOURS, strict=False):
                axes.plot(*zip(*points, strict=True), label=name, color=colour, linewidth=1.8)
            for name, value in dict(panel.levels).items():
                axes.axhline(value, label=name, color="#9ca3af", linestyle="--", linewidth=1.2)
            axes.set_ylabel(panel.measure)
            axes.yaxis.set_major_formatter("{x:,.10g}")
            axes.set_ylim(bottom=0)
            axes.margins(x=0.01)
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
        axes.set_xlabel(chart.along)


def save_bars(name, title, measures, folder):
    """Write bars in panels, `{measure: {who: value}}`, the first of each in colour, as `save` does a chart."""
    with figure_of(name, title, folder, len(measures), 0.6 + 0.25 * max(map(len, measures.values()))) as rows:
        for axes, (measure, values) in zip(rows, measures.items(), strict=True):
            colours = [COLOURS[0] if at == 0 else COLOURS[2] for at in range(len(values))]
            bars = axes.barh(list(values), list(values.values()), color=colours)
            axes.bar_label(
                bars, [f"{value:,.0f}" if value >= 100 else f"{value:.2f}" for value in values.values()], padding=3
            )
            axes.invert_yaxis()
            axes.grid(axis="y", visible=False)
            axes.xaxis.set_major_formatter("{x:,.10g}")
            axes.margins(x=0.12)
            wide = 0 < 1000 * min(values.values()) < max(values.values())
            if wide:
                axes.set_xscale("log")  # else one bar hides the others
            axes.set_title(f"{measure}{' (logarithmic)' if wide else ''}", loc="left", fontsize="medium")


@contextmanager
def figure_of(name, title, folder, panels, height, **options):
    """Axes below each other in the charts' style, written to a file at the end."""
    import matplotlib as mpl  # noqa: PLC0415  # of an extra, and slow to load
    from matplotlib.figure import Figure  # noqa: PLC0415

    style = {
        "svg.hashsalt": name,  # else ids are random
        "svg.fonttype": "none",  # text stays text
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#e5e7eb",
    }
    with mpl.rc_context(style):
        figure = Figure(figsize=(9, 1 + height * panels), layout="constrained")
        figure.suptitle(title)
        yield figure.subplots(panels, 1, squeeze=False, **options)[:, 0]
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None, "Creator": None})

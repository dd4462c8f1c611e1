# SPDX-License-Identifier: MIT OR Apache-2.0
"""The report's plots: SVG text, with CSS variables of the page as colours."""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

Row = Mapping[str, Any]

# Placeholder colours. The SVG gets var(--name) in place of each.
COLOURS = {
    "fg": "#0a0b01",
    "muted": "#0a0b02",
    "grid": "#0a0b03",
    "ours": "#0a0b04",
    "ours-2": "#0a0b05",
    "ours-3": "#0a0b06",
    "asyncio": "#0a0b07",
    "threads": "#0a0b08",
    "other": "#0a0b09",
    "floor": "#0a0b0a",
    "bad": "#0a0b0b",
    "ours-4": "#0a0b0c",
}
WIDTH_IN = 4.5  # about a phone's width, so that text is legible there
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "spawnfd",
    "font.size": 8,
    "text.color": COLOURS["fg"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.edgecolor": COLOURS["grid"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["fg"],
    "ytick.left": False,
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


def colour_of(row: Row, ours_before: int = 0) -> str:
    """The colour of a backend. Our backends have similar colours."""
    if row["role"] == "ours":
        return COLOURS[("ours", "ours-2", "ours-3", "ours-4")[min(ours_before, 3)]]
    if row["role"] == "floor":
        return COLOURS["floor"]
    return COLOURS.get(row["backend"], COLOURS["other"])


def _colours(groups: Sequence[Mapping[str, Row]]) -> dict[str, str]:
    colours: dict[str, str] = {}
    ours = 0
    for group in groups:
        for name, row in group.items():
            if name not in colours:
                colours[name] = colour_of(row, ours)
                ours += row["role"] == "ours"
    return colours


def _places(groups: Mapping[str, Mapping[str, Row]], backend: str) -> list[tuple[int, Row]]:
    """Returns the rows of a backend, with the numbers of their groups."""
    return [(at, group[backend]) for at, group in enumerate(groups.values()) if backend in group]


def to_svg(figure: Figure, name: str) -> str:
    """The figure as an <svg> that scales with the page. `name` makes its ids unique."""
    buffer = io.StringIO()
    figure.savefig(
        buffer, format="svg", bbox_inches="tight", pad_inches=0.05, metadata={"Date": None}
    )
    plt.close(figure)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'id="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'xlink:href="#([^"]+)"', rf'xlink:href="#{name}-\1"', svg)
    svg = re.sub(r' xmlns(?::xlink)?="[^"]*"', "", svg).replace("xlink:href", "href")
    for variable, stand_in in COLOURS.items():
        svg = svg.replace(stand_in, f"var(--{variable})")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)


def _legend(axes: Axes, handles: Sequence[Any], labels: Sequence[str]) -> None:
    axes.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=min(len(labels), 3),
        borderaxespad=0.2,
        handlelength=1.0,
        columnspacing=1.2,
    )


def split_bars(groups: Mapping[str, Mapping[str, Row]], name: str) -> str:
    """Calls per second for each split: one bar per backend, with intervals."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH_IN, 2.7))
        colours = _colours(list(groups.values()))
        width = 0.8 / len(colours)
        handles, labels = [], []
        for place, (backend, colour) in enumerate(colours.items()):
            rows = _places(groups, backend)
            at = [x - 0.4 + width * (place + 0.5) for x, _ in rows]
            middle = [row["calls_per_s_median"] for _, row in rows]
            below = [row["calls_per_s_median"] - row["calls_per_s_low"] for _, row in rows]
            above = [row["calls_per_s_high"] - row["calls_per_s_median"] for _, row in rows]
            bars = axes.bar(at, middle, width * 0.88, color=colour)
            axes.errorbar(
                at, middle, yerr=[below, above], fmt="none", ecolor=COLOURS["fg"], elinewidth=0.9
            )
            for x, value, up in zip(at, middle, above, strict=True):
                axes.annotate(
                    f"{value:,.0f}",
                    (x, value + up),
                    xytext=(0, 2),
                    textcoords="offset points",
                    ha="center",
                    fontsize=5.5,
                    color=COLOURS["muted"],
                )
            handles.append(bars[0])
            labels.append(rows[0][1]["label"])
        axes.set_xticks(range(len(groups)), list(groups))
        axes.tick_params(axis="x", length=0)
        axes.set_ylabel("calls per second")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.grid(axis="y")
        _legend(axes, handles, labels)
        return to_svg(figure, name)


def tool_dots(groups: Mapping[str, Mapping[str, Row]], name: str) -> str:
    """Milliseconds per call for each tool: one dot per backend, on a logarithmic axis."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH_IN, 0.24 * len(groups) + 0.8))
        colours = _colours(list(groups.values()))
        handles: list[Line2D] = []
        labels: list[str] = []
        for backend, colour in colours.items():
            rows = _places(groups, backend)
            role = rows[0][1]["role"]
            marker = {"ours": "o", "floor": "|"}.get(role, "s")
            size = {"ours": 6.0, "floor": 10.0}.get(role, 4.5)
            axes.hlines(
                [at for at, _ in rows],
                [row["ms_per_call_low"] for _, row in rows],
                [row["ms_per_call_high"] for _, row in rows],
                color=colour,
                linewidth=1.6,
                alpha=0.45,
            )
            (line,) = axes.plot(
                [row["ms_per_call"] for _, row in rows],
                [at for at, _ in rows],
                marker,
                color=colour,
                markersize=size,
                markeredgewidth=1.6 if role == "floor" else 0,
            )
            handles.append(line)
            labels.append(rows[0][1]["label"])
        axes.set_xscale("log")
        _plain_log_ticks(axes)
        axes.set_yticks(range(len(groups)), list(groups))
        axes.invert_yaxis()
        axes.grid(axis="x", which="both")
        axes.set_xlabel("wall milliseconds per call, 16 in flight (logarithmic)")
        _legend(axes, handles, labels)
        return to_svg(figure, name)


def _plain_log_ticks(axes: Axes) -> None:
    low, high = axes.get_xlim()
    ticks = [
        digit * 10.0**power
        for power in range(-3, 5)
        for digit in (1, 2, 5)
        if low <= digit * 10.0**power <= high
    ]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)


def ratio_dots(
    ratios: Sequence[Row], bars: Mapping[str, Row], labels: Sequence[str], name: str
) -> str:
    """Each ratio with its interval, a line at 1, and its bar if it has one."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(WIDTH_IN, 0.25 * len(ratios) + 0.6))
        axes.axvline(1.0, color=COLOURS["muted"], linewidth=1)
        for at, ratio in enumerate(ratios):
            axes.hlines(
                at, ratio["low"], ratio["high"], color=COLOURS["ours"], linewidth=4, alpha=0.35
            )
            axes.plot(ratio["value"], at, "o", color=COLOURS["ours"], markersize=5.5)
            axes.annotate(
                f"{ratio['value']:.3f}",
                (1.0, at),
                xycoords=axes.get_yaxis_transform(),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
                color=COLOURS["muted"],
            )
            if ratio["id"] in bars:
                axes.vlines(
                    bars[ratio["id"]]["bar"],
                    at - 0.38,
                    at + 0.38,
                    color=COLOURS["bad"],
                    linewidth=1.8,
                )
        axes.set_yticks(range(len(ratios)), labels)
        axes.invert_yaxis()
        axes.grid(axis="x")
        axes.margins(x=0.06)
        axes.set_xlabel("ratio; 1 means no difference, a short vertical line is a bar")
        return to_svg(figure, name)

# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hook of MkDocs: draws figures from the tables of a page, at each build.

A comment before a table describes the figure. The comment is TOML after the word "plot":

    <!-- plot
    title = "First instruction"
    unit = "time / time of spawnfd"
    machine = "Intel Xeon and AMD EPYC, 2 cores, Linux 6.18"
    -->

The table is the only source of the figures. Its first column has the names. Every other cell is
empty, or has a value with or without an interval: "1.16 (1.15 .. 1.16)".

- series: "columns" (default) draws a colour for each column and a line for each row, "rows" the
  reverse.
- columns, rows: the headings and the names to draw; by default all. An entry of rows can be a table
  of `row`, `label` (the name in the figure) and `inverse` (true: draw 1 / value).
- scale: "ratio" (default) has a logarithmic axis with a line at 1, "amount" a linear axis from 0.
"""

from __future__ import annotations

import html
import io
import itertools
import math
import re
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from mkdocs.structure.pages import Page

COMMENT = re.compile(r"<!-- plot\n(.*?)-->\n*", re.DOTALL)
CELL = re.compile(r"(\d[\d.]*)(?: \((\d[\d.]*) \.\. (\d[\d.]*)\))?$")
INTERVAL = re.compile(r"\((\d[\d.]*) \.\. (\d[\d.]*)\)")
FOOTNOTE = re.compile(r" \[\d+\]")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
KEYS = {"title", "unit", "machine", "series", "columns", "rows", "scale"}
# Readable on the light and on the dark background; the shape differs, too.
COLORS = ("#1e88c9", "#d9722e", "#5c9f45", "#a05fc4")
MARKERS = ("o", "s", "D", "^")
# The page replaces these colours by its own.
TEXT, GRID = "#010203", "#010204"
# Numbers on the axis of ratios: the first list that leaves enough room between its numbers.
TICKS = (
    (0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2, 2.5, 3),
    (0.5, 0.7, 1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30),
    (0.5, 1, 2, 5, 10, 20, 50),
    (1, 10, 100),
)
# Widths in CSS pixels: the figure of a wide page, and of a narrow one.
WIDTHS = {"wide": 680, "narrow": 350}
# With 72 dots per inch, a point of matplotlib is a CSS pixel.
DPI = 72
# Pixels: between two numbers of the axis, for the value beside the last point, and of one unit of
# height.
GAP, ROOM, UNIT = 34, 56, 46
MARKUP = str.maketrans("", "", "`*")


class PlotError(Exception):
    """A description or a table from which no figure can be drawn."""


@dataclass(frozen=True)
class Point:
    """A value with its interval and its text. Without an interval, low and high are the value."""

    value: float
    low: float
    high: float
    text: str

    def inverse(self) -> Point:
        """Returns the ratio of the other direction."""
        return Point(1 / self.value, 1 / self.high, 1 / self.low, f"{1 / self.value:.2f}")


@dataclass(frozen=True)
class Plot:
    """A figure: its lines from top to bottom, and the points of each series by line."""

    title: str
    unit: str
    machine: str
    is_ratio: bool
    lines: list[str]
    series: dict[str, dict[str, Point]]


def plain(cell: str) -> str:
    """Returns the text of a cell, without footnotes and markup."""
    return LINK.sub(r"\1", FOOTNOTE.sub("", cell)).translate(MARKUP).strip()


def point_of(cell: str) -> Point | None:
    """Returns the value of a cell; None if it is empty."""
    text = plain(cell)
    if not text:
        return None
    found = CELL.match(text)
    if not found:
        raise PlotError(f"not a value: {cell!r}")
    value = float(found[1])
    low, high = (float(found[2]), float(found[3])) if found[2] else (value, value)
    if not 0 < low <= value <= high:
        raise PlotError(f"not an interval around a positive value: {cell!r}")
    return Point(value, low, high, found[1])


def table_of(text: str) -> tuple[list[str], dict[str, list[str]]]:
    """Returns the headings of the table at the beginning of a text, and the cells by row name."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("|"):
            break
        lines.append([cell.strip() for cell in line.strip("|").split("|")])
    if len(lines) < 3:
        raise PlotError("no table follows the description")
    rows = {plain(name): cells for name, *cells in lines[2:]}
    if len(rows) < len(lines) - 2:
        raise PlotError("two rows of the table have the same name")
    return [plain(heading) for heading in lines[0][1:]], rows


def plot_of(description: str, text: str) -> Plot:
    """Returns the figure for a description, from the table at the beginning of a text."""
    wanted: dict[str, Any] = tomllib.loads(description)
    if unknown := set(wanted) - KEYS:
        raise PlotError(f"unknown key: {', '.join(sorted(unknown))}")
    headings, rows = table_of(text)
    columns = wanted.get("columns", headings)
    points: dict[str, dict[str, Point]] = {column: {} for column in columns}
    for row in wanted.get("rows", list(rows)):
        entry: dict[str, Any] = row if isinstance(row, dict) else {"row": row}
        name, label = entry["row"], entry.get("label", entry["row"])
        if name not in rows:
            raise PlotError(f"the table has no row {name!r}")
        for column in columns:
            if column not in headings:
                raise PlotError(f"the table has no column {column!r}")
            point = point_of(rows[name][headings.index(column)])
            if point:
                points[column][label] = point.inverse() if entry.get("inverse") else point
    lines = list(dict.fromkeys(label for each in points.values() for label in each))
    if wanted.get("series", "columns") == "rows":
        points = {
            label: {column: points[column][label] for column in columns if label in points[column]}
            for label in lines
        }
        lines = [column for column in columns if any(column in each for each in points.values())]
    if not lines:
        raise PlotError("the table has no value to draw")
    return Plot(
        title=wanted["title"],
        unit=wanted["unit"],
        machine=wanted["machine"],
        is_ratio=wanted.get("scale", "ratio") == "ratio",
        lines=lines,
        series=points,
    )


def figures_of(plot: Plot) -> Iterator[tuple[str, str, Point]]:
    """Yields line, series and point in the order of reading."""
    for line in plot.lines:
        for name, points in plot.series.items():
            if line in points:
                yield line, name, points[line]


def limits_of(plot: Plot, width: int) -> tuple[float, float]:
    """Returns the ends of the axis, with room for the value beside the last point."""
    points = [point for _, _, point in figures_of(plot)]
    high = max(point.high for point in points)
    share = ROOM / width
    if not plot.is_ratio:
        return 0, high / (1 - share)
    low, high = min(1.0, *(point.low for point in points)), max(1.0, high)
    low /= (high / low) ** 0.04
    return low, high * (high / low) ** (share / (1 - share))


def ticks_of(low: float, high: float, width: int) -> list[float]:
    """Returns the numbers on an axis of ratios."""
    pixels = width / math.log(high / low)
    for ticks in TICKS:
        shown = [tick for tick in ticks if low <= tick <= high]
        gaps = [math.log(right / left) * pixels for left, right in itertools.pairwise(shown)]
        if len(shown) > 1 and ticks[-1] * 1.2 >= high and all(gap >= GAP for gap in gaps):
            return shown
    return [1.0]


def draw(plot: Plot, width: int) -> str:
    """Returns the figure as SVG. Each line has its name above its points."""
    step = 0.32
    names = [textwrap.wrap(line, width // 7) for line in plot.lines]
    tops, places, y = [], [], 0.0
    for line, name in zip(plot.lines, names, strict=True):
        tops.append(y)
        places.append(y + 0.36 * len(name) + 0.14)
        present = sum(line in points for points in plot.series.values())
        y = places[-1] + step * (present - 1) + 0.36
    height = y * UNIT + 34
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    axes = figure.add_axes((12 / width, 30 / height, 1 - 24 / width, 1 - 34 / height))
    low, high = limits_of(plot, width)
    axes.set_xlim(low, high)
    axes.set_ylim(y, -0.1)
    if plot.is_ratio:
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        axes.axvline(1, color=TEXT, linewidth=1, alpha=0.6)
        axes.xaxis.set_major_locator(FixedLocator(ticks_of(low, high, width - 24)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}"))
    axes.yaxis.set_major_locator(NullLocator())
    for line, place in zip(plot.lines, places, strict=True):
        shown = 0
        for number, points in enumerate(plot.series.values()):
            if line in points:
                draw_point(axes, points[line], place + step * shown, number)
                shown += 1
    for name, top in zip(names, tops, strict=True):
        text = "\n".join(name)
        axes.text(
            0, top, text, transform=axes.get_yaxis_transform(), va="top", color=TEXT, fontsize=13
        )
    axes.tick_params(axis="x", color=GRID, labelcolor=TEXT, labelsize=12)
    axes.grid(axis="x", color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    figure.patch.set_alpha(0)
    axes.patch.set_alpha(0)
    return svg_of(figure, f"{plot.title} {width}", width)


def draw_point(axes: Axes, point: Point, place: float, number: int) -> None:
    """Draws a point with its interval, and its value to the right."""
    axes.errorbar(
        point.value,
        place,
        xerr=[[point.value - point.low], [point.high - point.value]],
        fmt=MARKERS[number],
        color=COLORS[number],
        markersize=6,
        elinewidth=2,
        capsize=4,
    )
    axes.annotate(
        point.text,
        (point.high, place),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        color=COLORS[number],
        fontsize=12,
    )


def svg_of(figure: Figure, salt: str, width: int) -> str:
    """Returns a figure as an SVG element that takes the page's font and colours."""
    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    svg = re.sub(r'width="[^"]*pt"', f'width="{width}"', svg[svg.index("<svg") :], count=1)
    svg = re.sub(r' height="[^"]*pt"', "", svg, count=1)
    svg = re.sub(r" font-family: [^;\"]*;", "", svg)
    return svg.replace(TEXT, "var(--md-default-fg-color)").replace(
        GRID, "var(--md-default-fg-color--lighter)"
    )


def alternative(plot: Plot) -> str:
    """Returns the text for readers who do not see the figure."""
    values = "; ".join(f"{line}, {name}: {point.text}" for line, name, point in figures_of(plot))
    return f"{plot.title}. {values}."


def figure_of(plot: Plot) -> str:
    """Returns the HTML of a figure, for wide and for narrow pages."""
    legend = "".join(
        f'<span style="color: {COLORS[number]}">{"●■◆▲"[number]} {html.escape(name)}</span>'
        for number, name in enumerate(plot.series)
    )
    has_intervals = any(point.low < point.high for _, _, point in figures_of(plot))
    about = [plot.unit, plot.machine, *["Bars: 95 % intervals"] * has_intervals]
    drawn = "".join(
        f'<div class="plot-{name}">{draw(plot, width)}</div>' for name, width in WIDTHS.items()
    )
    return (
        '<figure class="plot" data-search-exclude>'
        f'<div class="plot-title">{html.escape(plot.title)}</div>'
        f'<div class="plot-legend">{legend}</div>'
        f'<div role="img" aria-label="{html.escape(alternative(plot))}">{drawn}</div>'
        f"<figcaption>{html.escape('. '.join(about))}.</figcaption></figure>"
    )


def plots_of(markdown: str) -> list[Plot]:
    """Returns the figures of a page."""
    return [plot_of(found[1], markdown[found.end() :]) for found in COMMENT.finditer(markdown)]


def on_page_content(content: str, page: Page, **_: object) -> str:
    """Puts the figures of a page in the places of their descriptions.

    No line of the page ends inside an interval.
    """
    plots = iter(plots_of(page.markdown or ""))
    content = INTERVAL.sub(r"(\1&nbsp;..&nbsp;\2)", content)
    return COMMENT.sub(lambda _: figure_of(next(plots)), content)

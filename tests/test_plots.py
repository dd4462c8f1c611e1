# SPDX-License-Identifier: MIT OR Apache-2.0
"""The documentation site draws figures from the tables of pages."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "docs/site"))

import plots

BENCHMARKS = ROOT / "docs/benchmarks.md"
ABOUT = 'title = "T"\nunit = "U"\nmachine = "M"\n'
TABLE = """| ratio | Intel [1] | AMD |
|---|---|---|
| `a` / b [2] | 2.0 (1.5 .. 2.5) | |
| c | 0.80 | 4.1 (3 .. 5) |

Text with | a line.
"""


def plot(more: str = "", table: str = TABLE) -> plots.Plot:
    """Returns the figure of a table."""
    return plots.plot_of(ABOUT + more, table)


def values(found: plots.Plot) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Returns value, low and high of each point, by series and line."""
    return {
        name: {line: (point.value, point.low, point.high) for line, point in points.items()}
        for name, points in found.series.items()
    }


def written(point: plots.Point, inverse: bool = False) -> str:
    """Returns a point as two decimals, or those of the reverse ratio."""
    found = point.inverse() if inverse else point
    return f"{found.value:.2f} ({found.low:.2f} .. {found.high:.2f})"


def test_columns_are_series() -> None:
    found = plot()
    assert found.lines == ["a / b", "c"]
    assert values(found) == {
        "Intel": {"a / b": (2.0, 1.5, 2.5), "c": (0.8, 0.8, 0.8)},
        "AMD": {"c": (4.1, 3, 5)},
    }


def test_rows_are_series() -> None:
    found = plot('series = "rows"')
    assert found.lines == ["Intel", "AMD"]
    assert values(found) == {
        "a / b": {"Intel": (2.0, 1.5, 2.5)},
        "c": {"Intel": (0.8, 0.8, 0.8), "AMD": (4.1, 3, 5)},
    }


def test_description_selects_labels_and_inverts() -> None:
    found = plot('columns = ["Intel"]\nrows = [{row = "c", label = "d", inverse = true}, "a / b"]')
    assert values(found) == {"Intel": {"d": (1.25, 1.25, 1.25), "a / b": (2.0, 1.5, 2.5)}}
    assert found.series["Intel"]["d"].text == "1.25"


@pytest.mark.parametrize(
    ("more", "table", "problem"),
    [
        ('rows = ["z"]', TABLE, "no row 'z'"),
        ('columns = ["z"]', TABLE, "no column 'z'"),
        ("colour = 1", TABLE, "unknown key: colour"),
        ("", "Text.\n" + TABLE, "no table"),
        ("", TABLE.replace("4.1 (3 .. 5)", "fast"), "not a value: 'fast'"),
        ("", TABLE.replace("(3 .. 5)", "(5 .. 3)"), "not an interval"),
        ("", TABLE.replace("| c |", "| `a` / b |"), "same name"),
        ('columns = ["AMD"]\nrows = ["a / b"]', TABLE, "no value"),
    ],
)
def test_mistake_is_reported(more: str, table: str, problem: str) -> None:
    with pytest.raises(plots.PlotError, match=problem):
        plot(more, table)


def test_figure_has_texts_values_and_both_widths() -> None:
    html = plots.figure_of(plot())
    assert html.count("<svg") == 2
    assert 'aria-label="T. a / b, Intel: 2.0; c, Intel: 0.80; c, AMD: 4.1."' in html
    assert "U. M. Bars: 95 % intervals." in html
    for text in (">a / b<", ">2.0<", ">0.80<", ">4.1<"):
        assert html.count(text) == 2, text
    # The page's colours, so that the figure is readable on a dark page.
    assert plots.TEXT not in html


def test_figure_of_amounts_begins_at_zero() -> None:
    assert plots.limits_of(plot('scale = "amount"'), 700)[0] == 0


def test_figure_replaces_its_description() -> None:
    markdown = f"# Page\n\n<!-- plot\n{ABOUT}-->\n\n{TABLE}"
    page: Any = SimpleNamespace(markdown=markdown)
    content = plots.on_page_content(f"<h1>Page</h1>\n<!-- plot\n{ABOUT}-->\n<td>2 (1 .. 3)", page)
    assert content.startswith('<h1>Page</h1>\n<figure class="plot"')
    assert content.endswith("</figure><td>2 (1&nbsp;..&nbsp;3)")


@pytest.mark.parametrize(("name", "count"), [("README.md", 1), ("docs/benchmarks.md", 11)])
def test_figures_of_the_pages_can_be_drawn(name: str, count: int) -> None:
    found = plots.plots_of((ROOT / name).read_text())
    assert len(found) == count
    for each in found:
        assert "<svg" in plots.figure_of(each)


def test_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    known: set[str] = set()
    for text in re.findall(r"[\d.]+\s\([\d.]+ \.\. [\d.]+\)", BENCHMARKS.read_text()):
        point = plots.point_of(" ".join(text.split()))
        assert point
        known |= {written(point), written(point, inverse=True)}
    (readme,) = plots.plots_of((ROOT / "README.md").read_text())
    for points in readme.series.values():
        for line, point in points.items():
            assert written(point) in known, line

# SPDX-License-Identifier: MIT OR Apache-2.0
"""Pieces of HTML. All text is escaped here."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from common.tables import Grid

CSS_FILE = Path(__file__).resolve().parent.parent / "report.css"


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Sequence[int] = (),
    *,
    tight: bool = False,
) -> str:
    """A table, with its own scroll bar if it is too wide. Cells are HTML."""

    def row(tag: str, cells: Sequence[str]) -> str:
        marked = (
            f'<{tag} class="n">{cell}</{tag}>' if at in numbers else f"<{tag}>{cell}</{tag}>"
            for at, cell in enumerate(cells)
        )
        return f"<tr>{''.join(marked)}</tr>"

    head = row("th", [escape(heading) for heading in headings])
    body = "\n".join(row("td", cells) for cells in rows)
    return (
        f'<div class="scroll"><table{" class=tight" * tight}>'
        f"<thead>{head}</thead><tbody>\n{body}\n</tbody></table></div>"
    )


def grid(grid: Grid, *, tight: bool = False) -> str:
    """A table of figures, with the smaller text below."""

    def cell(big: str, small: str) -> str:
        return escape(big) + (f"<small>{escape(small)}</small>" if small else "")

    rows = [[cell(*one) for one in row] for row in grid.rows]
    return table(grid.headings, rows, numbers=range(1, len(grid.headings)), tight=tight)


def figure(svg: str, caption: str) -> str:
    """A plot with its caption."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"


def card(title: str, big: str, small: str) -> str:
    """A headline figure."""
    return (
        f'<div class="card"><i>{escape(title)}</i><b>{escape(big)}</b>'
        f"<span>{escape(small)}</span></div>"
    )


def bullets(items: Iterable[str]) -> str:
    """A list of sentences."""
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def facts(entries: Mapping[str, object]) -> str:
    """A list of names and values. Nested values are joined into one line."""
    parts: list[str] = []
    for name, value in entries.items():
        if isinstance(value, Mapping):
            value = "; ".join(f"{key}: {item}" for key, item in value.items()) or "none"
        parts.append(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>")
    return f"<dl>{''.join(parts)}</dl>"


def details(summary: str, content: str) -> str:
    """Content that is collapsed by default."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def document(title: str, body: str) -> str:
    """The whole page, without external resources."""
    css = CSS_FILE.read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )

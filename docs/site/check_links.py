# SPDX-License-Identifier: MIT OR Apache-2.0
"""Checks the built site: check_links.py DIRECTORY.

Each link of a page to the site itself names a file, and an id in that file. No page loads anything
from the network. Pages of rustdoc are link targets only: rustdoc checks its own links.
"""

from __future__ import annotations

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes with an address, and those whose address the browser loads by itself.
ADDRESSES = {("a", "href"), ("link", "href"), ("img", "src"), ("script", "src")}


class Parser(HTMLParser):
    """Collects the addresses and the ids of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[tuple[str, str, dict[str, str | None]]] = []
        self.ids: set[str] = {"", "top"}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Records a tag."""
        attributes = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := attributes.get(name))}
        for name, value in attrs:
            if (tag, name) in ADDRESSES and value:
                self.links.append((tag, value, attributes))


@cache
def parse(path: Path) -> Parser:
    """Returns the contents of a page."""
    parser = Parser()
    parser.feed(path.read_text())
    return parser


def problems_of(page: Path, site: Path) -> list[str]:
    """Returns the broken addresses of a page."""
    problems: list[str] = []
    for tag, address, attributes in parse(page).links:
        url = urlsplit(address)
        if url.scheme or url.netloc:
            if tag != "a" and attributes.get("rel") != "canonical":
                problems.append(f"loads {address}")
            continue
        target = (page.parent / unquote(url.path)).resolve() if url.path else page
        if target.is_dir():
            target /= "index.html"
        if not target.is_relative_to(site) or not target.is_file():
            problems.append(f"no file: {address}")
        elif target.suffix == ".html" and unquote(url.fragment) not in parse(target).ids:
            problems.append(f"no such id: {address}")
    return problems


def main(site: Path) -> int:
    """Prints one line per problem. The exit status is 1 if there are any."""
    # The page 404.html belongs to a server, whose root is unknown.
    pages = [
        page
        for page in sorted(site.rglob("*.html"))
        if page.relative_to(site).parts[0] not in ("rust", "404.html")
    ]
    problems = [
        f"{page.relative_to(site)}: {problem}"
        for page in pages
        for problem in problems_of(page, site)
    ]
    print("\n".join(problems) or f"check_links: 0 problems in {len(pages)} pages")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))

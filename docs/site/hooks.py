# SPDX-License-Identifier: MIT OR Apache-2.0
"""Hooks of MkDocs: the site has the repository's own pages, at the same paths, and generated pages.

A link of a page to a file that the site does not have becomes a link to the repository.
"""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
RECORDS = "docs/adr"
PATTERNS = (
    "*.md",
    "docs/*.md",
    "docs/guides/*.md",
    f"{RECORDS}/*.md",
    "bench/*/README.md",
    "examples/README.md",
    "kernel/README.md",
)
# The pages of examples, by the file.
EXAMPLES = {
    **{f"examples/{path.stem}.md": path for path in sorted((ROOT / "examples").glob("*.py"))},
    **{
        f"examples/rust_{name}.md": ROOT / f"crates/spawnfd/examples/{name}.rs"
        for name in ("tool_executor", "evaluation_farm")
    },
}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|<)([^)#\s]+)(#[^)\s]*)?(?=\))")


def title_of(path: Path) -> str:
    """Returns the text of a page's first heading."""
    found = re.search(r"^# (.+)$", path.read_text(), re.MULTILINE)
    assert found, f"{path} has no heading"
    return found[1]


def records() -> dict[str, str]:
    """Returns the titles of the decision records by their paths."""
    return {
        f"{RECORDS}/{path.name}": title_of(path) for path in sorted((ROOT / RECORDS).glob("*.md"))
    }


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists the decision records in the navigation."""
    for tab in config.nav or []:
        for entry in next(iter(tab.values())):
            if isinstance(entry, dict) and entry.get("Decision records") == f"{RECORDS}/":
                titles = [{title.replace("`", ""): path} for path, title in records().items()]
                entry["Decision records"] = [{"Overview": f"{RECORDS}/index.md"}, *titles]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the repository's pages and the generated pages."""
    for path in sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern)):
        uri = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    for uri, path in EXAMPLES.items():
        files.append(File.generated(config, uri, content=example_page(path)))
    files.append(File.generated(config, f"{RECORDS}/index.md", content=records_page()))
    files.append(File.generated(config, "reference/command.md", content=command_page()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes the links of the repository valid in the site."""
    if page.file.src_uri in ("README.md", "CHANGELOG.md"):
        # These tabs have one page only.
        page.meta["hide"] = ["navigation"]
    folder = posixpath.dirname(page.file.src_uri)

    def target(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, link[1]))
        if files.get_file_from_path(path):
            return link[0]
        for index in ("README.md", "index.md"):
            if files.get_file_from_path(f"{path}/{index}"):
                return posixpath.relpath(f"{path}/{index}", folder) + (link[2] or "")
        if (ROOT / path).exists():
            return f"{config.repo_url}/blob/main/{path}{link[2] or ''}"
        return link[0]

    return LINK.sub(target, markdown)


def example_page(path: Path) -> str:
    """Returns a page with the code of an example."""
    language = {".py": "python", ".rs": "rust"}[path.suffix]
    name = path.relative_to(ROOT).as_posix()
    code = path.read_text().partition("\n")[2]
    return f"# {path.name}\n\nExample, for developers: `{name}`.\n\n```{language}\n{code}```\n"


def records_page() -> str:
    """Returns the list of the decision records."""
    lines = [f"- [{title}]({posixpath.basename(path)})" for path, title in records().items()]
    return "# Decision records\n\nExplanation, for contributors.\n\n" + "\n".join(lines) + "\n"


def command_page() -> str:
    """Returns the help of the command and its subcommands. SPAWNFD_COMMAND names the command."""
    command = os.environ["SPAWNFD_COMMAND"]
    text = "# The command\n\nReference, from `spawnfd --help`, for users of the command line.\n"
    for words in [], ["run"], ["shell"], ["doctor"]:
        shown = subprocess.run(
            [command, *words, "--help"],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
        ).stdout
        title = " ".join(["spawnfd", *words])
        text += f"\n## {title}\n\n```text\n{shown.rstrip()}\n```\n"
    return text

"""Hooks of the docs site: pages that live outside `docs/`, and links to files of the repository.

The README is the home page; the changelog, the security policy and the contributing guide are
pages, too. A link from a page to a file outside `docs/` leads to a copy of that file in the site,
because the repository has no address yet.
    hooks: [docs/hooks.py]   # in mkdocs.yml
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
COPIES = "repository"
"""The folder of the site with copies of files from outside `docs/`."""
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages from outside, and a copy of each file that a page links to."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    linked: set[str] = set()
    for file in list(files):
        if file.is_documentation_page():
            linked |= set(_outside(file.src_uri, file.content_string))
    for path in sorted(linked):
        files.append(File.generated(config, _copy_of(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Point links of the repository to where the site has the same thing."""
    here = page.file.src_uri
    folder = posixpath.dirname(here)

    def moved(match: re.Match[str]) -> str:
        start, target, anchor, end = match.groups()
        path = _in_repository(here, target)
        if path is None:
            return match[0]
        if (ROOT / path).is_dir():  # its name says enough
            return f"{start}#{end}"
        if path in PAGES:
            found = PAGES[path]
        elif path.startswith("docs/"):
            found = path.removeprefix("docs/")
        else:
            found = _copy_of(path)
        return f"{start}{posixpath.relpath(found, folder or '.')}{anchor or ''}{end}"

    return LINK.sub(moved, markdown)


def _outside(page: str, markdown: str) -> list[str]:
    """Files of the repository, outside `docs/`, that a page links to."""
    found = [_in_repository(page, match[2]) for match in LINK.finditer(markdown)]
    return [
        path
        for path in found
        if path and path not in PAGES and not path.startswith("docs/") and (ROOT / path).is_file()
    ]


def _in_repository(page: str, target: str) -> str | None:
    """The path of a link's target from the root of the repository; None for other links."""
    if "://" in target or target.startswith(("mailto:", "/")):
        return None
    homes = {page: source for source, page in PAGES.items()}
    base = posixpath.dirname(homes.get(page, f"docs/{page}"))
    path = posixpath.normpath(posixpath.join(base, target))
    return path if (ROOT / path).exists() else None


def _copy_of(path: str) -> str:
    # A Markdown file would become a page of its own, with links that lead nowhere.
    return f"{COPIES}/{path}" + (".txt" if path.endswith(".md") else "")

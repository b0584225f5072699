"""Writes docs/notebooks/ from pages of the docs: prose becomes text, code becomes cells.

    python benchmarks/notebooks.py [--check]
`--check` changes nothing, and exits with 1 if a notebook is out of date. Commands become
`!terrella` lines. What needs a terminal or installs something stays as a comment.
"""

import json
import re
import sys

import common

DOCS = common.ROOT / "docs"
FOLDER = DOCS / "notebooks"
PAGES = ("first_world", "see", "start_research", "train", "your_env")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n", re.M | re.S)
LINK = re.compile(r"(\]\()(?!\w+:|#)")
FILE = re.compile(r"# (\w+\.py)\n")
"""How code begins that a later command reads from a file."""
INTERACTIVE = ("terrella play ", "pip ")
SHOWN_ONLY = ("class ElevatorWorld(GymWorld):",)
"""How blocks begin that are part of a larger file."""


def notebook(page):
    """The notebook of a page, as JSON text."""
    parts = BLOCK.split((DOCS / f"{page}.md").read_text("utf-8"))
    made = []
    for prose, language, code in zip(
        parts[::3], [*parts[1::3], ""], [*parts[2::3], ""], strict=True
    ):
        if prose.strip():
            made.append(text_cell(prose))
        if code:
            made.append(code_cell(language, code))
    cells = [{"id": f"cell-{number}", **cell} for number, cell in enumerate(made)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def text_cell(prose):
    """Links are relative to the folder of the notebooks."""
    return {"cell_type": "markdown", "metadata": {}, "source": LINK.sub(r"\1../", prose).strip()}


def code_cell(language, code):
    if language not in ("python", "bash") or code.startswith(SHOWN_ONLY):
        return text_cell(f"```{language}\n{code}```")
    source = code if language == "python" else "\n".join(map(shell_line, code.splitlines()))
    if named := FILE.match(source):
        source = f"%%writefile {named[1]}\n{source}"
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": source.strip(),
    }


def shell_line(line):
    if line.startswith(INTERACTIVE):
        return f"# in a terminal: {line}"
    return f"!{line}" if line.strip() else line


def main():
    stale = []
    for page in PAGES:
        path = FOLDER / f"{page}.ipynb"
        text = notebook(page)
        if not path.exists() or path.read_text("utf-8") != text:
            stale.append(page)
            if "--check" not in sys.argv:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, "utf-8")
    sys.exit(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    main()

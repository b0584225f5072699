"""Writes docs/recipes.md from the registry of recipes.

    python benchmarks/gallery.py [--check]
`--check` changes nothing, and exits with 1 if the page is out of date.
"""

import inspect
import sys

import common

from terrella.cli.training import command_of
from terrella.recipes import all_recipes, recipe_info

PAGE = common.ROOT / "docs/recipes.md"
TOP = """# Recipes

A recipe is a complete config with a name. `terrella recipes` prints this list, `--dry-run` the
whole config of one, `--dry-run --on 8xH100` its memory. Times are those of the hardware named
beside them.
Written by `python benchmarks/gallery.py`.
"""


def page():
    """The page: a section per command, a row per recipe."""
    commands = {}
    for name, function in sorted(all_recipes().items()):
        commands.setdefault(command_of(function()), []).append((name, function))
    parts = [TOP]
    for command, recipes in sorted(commands.items()):
        parts.append(f"## terrella {command}\n")
        parts.append("| recipe | what | hardware | time | expect |\n|---|---|---|---|---|")
        parts += [row(name, function) for name, function in recipes]
        parts.append("")
    return "\n".join(parts)


def row(name, function):
    info = recipe_info(function)
    what = (inspect.getdoc(function) or "").splitlines()[0]
    cells = (f"`{name}`", what, info.hardware, info.time, info.expect)
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text("utf-8") != text)
    PAGE.write_text(text, "utf-8")

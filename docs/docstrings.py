"""A Griffe extension: the indented use at the end of a module docstring becomes a code block.

Markdown takes indented lines that follow text directly for text.
    extensions: [docs/docstrings.py]   # in mkdocs.yml, of the Python handler
"""

from __future__ import annotations

import re
from typing import Any

import griffe

USE = re.compile(r"(?<=\n)((?: {4,}\S.*(?:\n|$)|\n(?= {4}))+)\Z")


class UseAsCode(griffe.Extension):
    """Fences the indented lines at the end of a module docstring."""

    def on_module_instance(self, *, mod: griffe.Module, **_: Any) -> None:
        if mod.docstring is None:
            return
        text = mod.docstring.value.rstrip()
        found = USE.search(text)
        if found:
            lines = "\n".join(line[4:] for line in found[1].splitlines())
            mod.docstring.value = f"{text[: found.start()].rstrip()}\n\n```python\n{lines}\n```"

"""The 125 task families of MiniWoB++, where their pages are, and which families are held out.

family_names() -> ("ascending-numbers", ...); held_out(Split.TEST) -> families never trained on when splitting by family
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from terrella.core.errors import MissingExtraError
from terrella.core.types import Split

UNREGISTERED = ("button-delay", "chase-circle", "hover-shape", "moving-items", "simon-says")
"""Pages that MiniWoB++ ships and does not count among its tasks."""

HELD_OUT: dict[Split, tuple[str, ...]] = {
    Split.VALIDATION: ("click-dialog-2", "click-tab", "enter-text-dynamic", "email-inbox-delete", "multi-orderings"),
    Split.TEST: (
        "click-button-sequence", "click-checkboxes-soft", "click-collapsible-nodelay", "click-option",
        "click-tab-2-easy", "email-inbox-important", "enter-password", "enter-text-2", "focus-text-2",
        "form-sequence-2", "login-user-popup", "multi-layouts", "navigate-tree", "search-engine",
    ),
}  # fmt: skip
"""Chosen by hand so that each has relatives in training that ask for the same skills on other pages."""


@functools.cache
def html_folder() -> Path:
    """The pages, from the PyPI package `miniwob` (which is found, not imported)."""
    found = importlib.util.find_spec("miniwob")
    if found is None or found.origin is None:
        raise MissingExtraError("web", "the MiniWoB++ pages")
    return Path(found.origin).parent / "html"


@functools.cache
def family_names() -> tuple[str, ...]:
    """All 125, in order."""
    pages = sorted(page.stem for page in (html_folder() / "miniwob").glob("*.html"))
    return tuple(name for name in pages if name not in UNREGISTERED)


def held_out(split: Split, among: tuple[str, ...]) -> tuple[str, ...]:
    """The families of a split when families themselves are split."""
    if split is Split.TRAIN:
        kept = {name for names in HELD_OUT.values() for name in names}
        return tuple(name for name in among if name not in kept)
    return tuple(name for name in among if name in HELD_OUT[split])

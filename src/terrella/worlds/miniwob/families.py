"""The 125 task families of MiniWoB++, the location of their pages, and the held-out families.

family_names()  # ("ascending-numbers", ...)
held_out(Split.TEST, family_names())  # families that training by family never sees
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from terrella.core.errors import MissingExtraError
from terrella.core.types import Split

UNREGISTERED = ("button-delay", "chase-circle", "hover-shape", "moving-items", "simon-says")
"""Pages that MiniWoB++ ships but does not register as tasks."""

HELD_OUT: dict[Split, tuple[str, ...]] = {
    Split.VALIDATION: (
        "click-dialog-2",
        "click-tab",
        "enter-text-dynamic",
        "email-inbox-delete",
        "multi-orderings",
    ),
    Split.TEST: (
        "click-button-sequence",
        "click-checkboxes-soft",
        "click-collapsible-nodelay",
        "click-option",
        "click-tab-2-easy",
        "email-inbox-important",
        "enter-password",
        "enter-text-2",
        "focus-text-2",
        "form-sequence-2",
        "login-user-popup",
        "multi-layouts",
        "navigate-tree",
        "search-engine",
    ),
}
"""Held-out families by split.

Chosen by hand so that for each of them, a training family needs the same skills on another page.
"""


@functools.cache
def html_folder() -> Path:
    """The folder of the pages in the PyPI package `miniwob`, which is located, not imported."""
    spec = importlib.util.find_spec("miniwob")
    if spec is None or spec.origin is None:
        raise MissingExtraError("web", "the MiniWoB++ pages")
    return Path(spec.origin).parent / "html"


@functools.cache
def family_names() -> tuple[str, ...]:
    """All 125 families, sorted."""
    pages = sorted(page.stem for page in (html_folder() / "miniwob").glob("*.html"))
    return tuple(name for name in pages if name not in UNREGISTERED)


def held_out(split: Split, among: tuple[str, ...]) -> tuple[str, ...]:
    """The families that belong to a split when whole families are held out."""
    if split is Split.TRAIN:
        reserved = {name for names in HELD_OUT.values() for name in names}
        return tuple(name for name in among if name not in reserved)
    return tuple(name for name in among if name in HELD_OUT[split])

"""Remedies for mistyped names: the nearest ones, or all that are known.

known_names("seat", ["seats", "speed"])  # "did you mean seats? known keys: seats, speed"
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def known_names(wrong: str, known: Iterable[str]) -> str:
    """A remedy for a mistyped name: the nearest names, or all of them."""
    names = list(known)
    return f"{near_names(wrong, names)}known keys: {', '.join(names) or 'none'}"


def near_names(wrong: str, known: Iterable[str]) -> str:
    """`did you mean A or B? `, to begin a remedy with; empty if no name is near."""
    near = difflib.get_close_matches(wrong, list(known), n=3)
    return f"did you mean {' or '.join(near)}? " if near else ""

"""When two answers are the same: exactly as numbers if both are numbers, else as normalised text. No `eval`.

$5 = 5, 1,000 = 1000, 0.75 = 3/4 = \\frac{3}{4}; a percent sign is a unit like the dollar's, so 50% = 50.
    same_answer("The answer is: 0.75", "3/4")
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_CHARS = 200
"""A longer answer is wrong without being read: the answers of word problems are short."""

_MARKER = re.compile(r"the answer is:?", re.IGNORECASE)
_NEGATIVE_ABOVE = re.compile(r"\\frac\{-([0-9]+)\}")
_WRAPPED = re.compile(r"\\(?:text|mbox|mathrm|boxed)\{([^{}]*)\}")
_IGNORED = ("\\left", "\\right", "\\!", "\\,", "\\$", "\\%", "$", "%")
# [0-9] rather than \d, which takes the digits of all alphabets. MAX_CHARS bounds how many there can be.
_WHOLE = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+"
_DECIMAL = re.compile(rf"([-+]?)((?:{_WHOLE})?)(?:\.([0-9]+))?")
_RATIO = re.compile(rf"([-+]?)({_WHOLE}) ?/ ?({_WHOLE})")
_LATEX_RATIO = re.compile(r"([-+]?)\\frac(?:\{([0-9]+)\}\{([0-9]+)\}|([0-9])([0-9]))")


def final_answer(text: str) -> str:
    """What follows the last "The answer is:", or the whole text when that is not said. One guess, never two."""
    return _MARKER.split(text)[-1].strip()


def same_answer(reply: str, truth: str) -> bool:
    """Whether a reply (untrusted) gives the true answer."""
    said, true = _clean(final_answer(reply)), _clean(truth)
    if not said or len(said) > MAX_CHARS:
        return False
    number, true_number = read_number(said), read_number(true)
    if number is not None or true_number is not None:
        return number == true_number
    return _squeezed(said) == _squeezed(true)


def read_number(text: str) -> Fraction | None:
    """The exact number that a short text is: whole, decimal, ratio or LaTeX fraction; None for anything else."""
    cleaned = _clean(text)
    if len(cleaned) > MAX_CHARS:
        return None
    decimal = _DECIMAL.fullmatch(cleaned)
    if decimal and (decimal[2] or decimal[3]):
        return Fraction(f"{decimal[1]}{decimal[2].replace(',', '') or '0'}.{decimal[3] or '0'}")
    ratio = _RATIO.fullmatch(cleaned) or _LATEX_RATIO.fullmatch(cleaned)
    if ratio is None:
        return None
    sign, above, below = (group.replace(",", "") for group in ratio.groups() if group is not None)
    return Fraction(int(f"{sign}{above}"), int(below)) if int(below) else None


def _clean(text: str) -> str:
    """The text without LaTeX wrapping, units of money and percent, surrounding space and a final full stop."""
    for mark in _IGNORED:
        text = text.replace(mark, "")
    text = _WRAPPED.sub(r"\1", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = _NEGATIVE_ABOVE.sub(r"-\\frac{\1}", text)
    return text.strip().removesuffix(".").strip()


def _squeezed(text: str) -> str:
    return "".join(text.casefold().split())

"""Compare two answers: exactly as numbers if either is a number, else as normalised text.

There is no `eval`. Examples of equal answers: $5 = 5, 1,000 = 1000, 0.75 = 3/4 = \\frac{3}{4}. A
percent sign is a unit like the dollar sign, so 50% = 50.
    same_answer("The answer is: 0.75", "3/4")
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_CHARS = 200
"""Longer answers are wrong without being parsed: answers to word problems are short."""

_MARKER = re.compile(r"the answer is:?", re.IGNORECASE)
_NEGATIVE_NUMERATOR = re.compile(r"\\frac\{-([0-9]+)\}")
_WRAPPED = re.compile(r"\\(?:text|mbox|mathrm|boxed)\{([^{}]*)\}")
_IGNORED = ("\\left", "\\right", "\\!", "\\,", "\\$", "\\%", "$", "%")
# [0-9] rather than \d, which also matches the digits of other alphabets. MAX_CHARS bounds their
# number.
_WHOLE = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+"
_DECIMAL = re.compile(rf"([-+]?)((?:{_WHOLE})?)(?:\.([0-9]+))?")
_RATIO = re.compile(rf"([-+]?)({_WHOLE}) ?/ ?({_WHOLE})")
_LATEX_RATIO = re.compile(r"([-+]?)\\frac(?:\{([0-9]+)\}\{([0-9]+)\}|([0-9])([0-9]))")


def final_answer(text: str) -> str:
    """The text after the last "The answer is:", or the whole text if it has no such marker.

    So a reply counts as one guess, never two.
    """
    return _MARKER.split(text)[-1].strip()


def same_answer(reply: str, truth: str) -> bool:
    """Whether a reply (untrusted) gives the true answer."""
    answer = _clean(final_answer(reply))
    if not answer or len(answer) > MAX_CHARS:
        return False
    true_answer = _clean(truth)
    number, true_number = read_number(answer), read_number(true_answer)
    if number is not None or true_number is not None:
        return number == true_number
    return _without_case_and_spaces(answer) == _without_case_and_spaces(true_answer)


def read_number(text: str) -> Fraction | None:
    """Parse a whole number, decimal, ratio or LaTeX fraction exactly; None for anything else."""
    cleaned = _clean(text)
    if len(cleaned) > MAX_CHARS:
        return None
    decimal = _DECIMAL.fullmatch(cleaned)
    if decimal and (decimal[2] or decimal[3]):
        return Fraction(f"{decimal[1]}{decimal[2].replace(',', '') or '0'}.{decimal[3] or '0'}")
    ratio = _RATIO.fullmatch(cleaned) or _LATEX_RATIO.fullmatch(cleaned)
    if ratio is None:
        return None
    sign, numerator, denominator = (
        group.replace(",", "") for group in ratio.groups() if group is not None
    )
    if int(denominator) == 0:
        return None
    return Fraction(int(f"{sign}{numerator}"), int(denominator))


def _clean(text: str) -> str:
    """Remove LaTeX wrapping, currency and percent signs, outer spaces and a final full stop."""
    for ignored in _IGNORED:
        text = text.replace(ignored, "")
    text = _WRAPPED.sub(r"\1", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")
    text = _NEGATIVE_NUMERATOR.sub(r"-\\frac{\1}", text)
    return text.strip().removesuffix(".").strip()


def _without_case_and_spaces(text: str) -> str:
    return "".join(text.casefold().split())

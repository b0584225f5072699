"""Which new instructions say the same as one that is known.

Two instructions are duplicates if they are similar and name the same values: "Who owns ticket 3?"
and "Who owns ticket 4?" are nearly the same text and two tasks. Similarity is the cosine of
embeddings (`wordllama`, an extra), or the share of common words (`words`, needs nothing).
    duplicates(["Open it."], ["Please open it."], measure="words", least=0.6)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from terrella.core.errors import MissingExtraError

Measure = Literal["words", "wordllama"]
LEAST: dict[Measure, float] = {"words": 0.8, "wordllama": 0.95}
"""From which similarity on two instructions with the same values are duplicates.

Cosines are larger than shares of words: "Upvote the newest post of the forum." and "Downvote the
newest post of the forum." have 0.93 and 0.71. At 0.8 embeddings would drop different tasks.
"""
Similarities = NDArray[np.float64]

_WORD = re.compile(r"\w+")
_VALUE = re.compile(r"\"[^\"]*\"|\d[\d.,]*|(?<=\w )[A-Z]\w*")
"""What makes two like instructions different tasks: quoted texts, numbers, names."""


def duplicates(
    texts: Sequence[str], known: Sequence[str], *, measure: Measure, least: float
) -> list[str]:
    """For each text the known or earlier one that it repeats; empty if it is new."""
    pool = [*known, *texts]
    if not texts:
        return []
    found: list[str] = []
    dropped: set[int] = set()
    values = [values_of(text) for text in pool]
    similar = MEASURES[measure](texts, pool)
    for number in range(len(texts)):
        place = len(known) + number
        like = [
            at
            for at in range(place)
            if at not in dropped
            and similar[number, at] >= least - 1e-6
            and values[at] == values[place]
        ]
        if like:
            dropped.add(place)
        found.append(pool[max(like, key=lambda at: similar[number, at])] if like else "")
    return found


def values_of(text: str) -> frozenset[str]:
    """The quoted texts, numbers and names of an instruction."""
    return frozenset(value.strip('".,').lower() for value in _VALUE.findall(text))


def word_similarity(texts: Sequence[str], pool: Sequence[str]) -> Similarities:
    """The number of common words by the number of all words of two texts."""
    words = [frozenset(_WORD.findall(text.lower())) for text in pool]
    asked = [frozenset(_WORD.findall(text.lower())) for text in texts]
    rows = [[len(one & other) / max(1, len(one | other)) for other in words] for one in asked]
    return np.asarray(rows, dtype=np.float64)


def embedding_similarity(texts: Sequence[str], pool: Sequence[str]) -> Similarities:
    """Cosines of WordLlama's embeddings; its weights are in the package, nothing is loaded."""
    model = _word_llama()
    vectors = np.asarray(model.embed([*texts, *pool], norm=True), dtype=np.float64)
    cosines: Similarities = vectors[: len(texts)] @ vectors[len(texts) :].T
    return cosines


def _word_llama() -> Any:
    try:
        import wordllama
    except ImportError:
        what = "duplicates=wordllama (or set duplicates=words)"
        raise MissingExtraError("embeddings", what) from None
    # The package looks for its tokenizer in another folder than it ships it in.
    shipped = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=shipped, disable_download=True)


MEASURES: dict[Measure, Callable[[Sequence[str], Sequence[str]], Similarities]] = {
    "words": word_similarity,
    "wordllama": embedding_similarity,
}

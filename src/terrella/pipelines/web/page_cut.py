"""Long pages, cut to a part around the element that is acted on: recorded steps, and predictions.

The part keeps the task, the address and the ancestors of every element. The page after a recorded
step is cut to the same elements, and to what is new among them, so that its changes are those of
the part. `CutPages` asks a model about the part and applies its changes to the whole page.
    shorter = cut_step(step, keep=80)
    model = CutPages(page_model, fits=lambda situation, action: ...)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace

from terrella.codecs.web_language import parse_action
from terrella.core.errors import PolicyError
from terrella.core.predictive import PredictiveDistribution, Query
from terrella.core.protocols import WorldModel
from terrella.core.types import Observation, Prediction, Situation, Transition, Tree, show_text
from terrella.verify.tree import Node, parse, write
from terrella.verify.tree_diff import Changes, apply, diff
from terrella.verify.tree_match import match

ALWAYS = ("task", "page")
"""Roles that are always kept: what the agent is told, and where it is."""


def cut_step(step: Transition, keep: int) -> Transition | None:
    """The step on `keep` elements and their ancestors; None if no page can be made of them."""
    old, new = parse(show_text(step.observation)), parse(show_text(step.next_observation))
    kept = _kept(old, step.action, keep)
    before = [old[index] for index in sorted(kept)]
    after = _after(old, new, kept)
    try:
        parse(write(after))
    except ValueError:  # an element was moved out of what is kept
        return None
    return replace(step, observation=Tree(write(before)), next_observation=Tree(write(after)))


def _kept(old: Sequence[Node], action: str, keep: int) -> set[int]:
    """The elements nearest to the one that is acted on, and their ancestors."""
    parsed = parse_action(action)
    wanted = parsed.id if parsed is not None else 0
    centre = next((index for index, node in enumerate(old) if wanted and node.id == wanted), 0)
    nearest = sorted(range(len(old)), key=lambda index: abs(index - centre))
    kept = {index for index, node in enumerate(old) if node.role in ALWAYS and not node.depth}
    parents = _parents(old)
    for index in nearest[:keep]:
        while index >= 0 and index not in kept:
            kept.add(index)
            index = parents[index]
    return kept


def _parents(nodes: Sequence[Node]) -> list[int]:
    parents: list[int] = []
    path: list[int] = []
    for index, node in enumerate(nodes):
        del path[node.depth :]
        parents.append(path[-1] if path else -1)
        path.append(index)
    return parents


def _after(old: Sequence[Node], new: Sequence[Node], kept: set[int]) -> list[Node]:
    """The elements of the next page that were kept, or are new beside one that was."""
    old_index = {b: a for a, b in match(old, new)}
    after, anchor = [], -1
    for index, node in enumerate(new):
        anchor = old_index.get(index, anchor)
        if anchor in kept or anchor < 0:
            after.append(node)
    return after


def most_that_fit(count: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to `count` that fits, 0 if none does; more never fits better."""
    return bisect_right(range(1, count + 1), False, key=lambda n: not fits(n))


class PageCut:
    """Shortens questions about pages that do not fit."""

    def __init__(self, fits: Callable[[Situation, str], bool]) -> None:
        """`fits` says whether a question and its answer fit into the model's context."""
        self.fits = fits
        self.count = 0
        """Questions so far that were about a part of a page."""

    def shorten(self, query: Query) -> tuple[Query, list[int] | None]:
        """The question that is asked, and the elements that it shows; None for all of them."""
        if self.fits(query.situation, query.action):
            return query, None
        page = parse(show_text(query.situation.observation))

        def part(keep: int) -> tuple[Query, list[int]]:
            kept = sorted(_kept(page, query.action, keep))
            shown = Tree(write([page[index] for index in kept]))
            return Query(replace(query.situation, observation=shown), query.action), kept

        most = most_that_fit(len(page), lambda n: self.fits(part(n)[0].situation, query.action))
        if not most:
            raise PolicyError(
                "page model",
                "not even one element of a page fits into its context",
                "use a page model with a larger context_tokens",
            )
        self.count += 1
        return part(most)


class CutPages:
    """A page model that is asked about as much of a page as fits, and predicts the whole page."""

    def __init__(self, model: WorldModel, fits: Callable[[Situation, str], bool]) -> None:
        self.model = model
        self.cut = PageCut(fits)

    def predict(self, queries: Sequence[Query]) -> list[PredictiveDistribution]:
        asked = [self.cut.shorten(query) for query in queries]
        answers = self.model.predict([short for short, _ in asked])
        return [
            answer if kept is None else _whole(answer, query, short, kept)
            for answer, query, (short, kept) in zip(answers, queries, asked, strict=True)
        ]


def _whole(
    answer: PredictiveDistribution, query: Query, short: Query, kept: Sequence[int]
) -> PredictiveDistribution:
    """The predicted changes of a part, applied to the whole page."""
    page, shown = query.situation.observation, short.situation.observation
    made = [_applied(prediction, page, shown, kept) for prediction in answer.predictions]
    counts = answer.counts or (0,) * len(made)
    pairs = [(each, count) for each, count in zip(made, counts, strict=True) if each is not None]
    return PredictiveDistribution(
        predictions=tuple(each for each, _ in pairs),
        counts=tuple(count for _, count in pairs),
        unreadable=answer.unreadable + sum(counts) - sum(count for _, count in pairs),
    )


def _applied(
    prediction: Prediction, page: Observation, shown: Observation, kept: Sequence[int]
) -> Prediction | None:
    whole = whole_page(prediction.observation, page, shown, kept)
    return None if whole is None else replace(prediction, observation=whole)


def whole_page(
    predicted: Observation, page: Observation, shown: Observation, kept: Sequence[int]
) -> Tree | None:
    """The page after the predicted changes of its part `shown`, the elements `kept`.

    None if the changes leave an element without its parent.
    """
    old = parse(show_text(page))
    changes = diff(parse(show_text(shown)), parse(show_text(predicted)))
    gone = _with_descendants({kept[index] for index in changes.deleted}, old)
    whole = Changes(
        frozenset(gone),
        {kept[index]: node for index, node in changes.updated.items()},
        tuple((kept[index] if index >= 0 else -1, node) for index, node in changes.new),
    )
    text = write(apply(whole, old))
    try:
        parse(text)
    except ValueError:
        return None
    return Tree(text)


def _with_descendants(indices: set[int], nodes: Sequence[Node]) -> set[int]:
    """What is not shown goes with the element that it is in."""
    parents = _parents(nodes)
    found = set(indices)
    for index in range(len(nodes)):  # parents come first
        if parents[index] in found:
            found.add(index)
    return found

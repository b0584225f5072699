"""A recorded step of a long page, cut to a part of the page around the element that is acted on.

The part keeps the task, the address and the ancestors of every element. The page after the step is
cut to the same elements, and to what is new among them, so that its changes are those of the part.
    shorter = cut_step(step, keep=80)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from terrella.browser.actions import parse_action
from terrella.core.types import Transition, Tree, show_text
from terrella.verify.tree import Node, parse, write
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

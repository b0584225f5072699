"""Episodes of a web agent that plans, one row each, and success by depth of look-ahead.

scores = depth_scores(rows)["1"].gain
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from terrella.core.metric import Metric
from terrella.core.types import Episode, Stop
from terrella.core.world import World
from terrella.world_models.planner_web import PagePlanner


@dataclass(frozen=True, kw_only=True)
class PlannedEpisode:
    """One episode at one depth."""

    depth: int
    seed: int
    family: str
    """The kind of task, where the world has kinds."""
    success: float | None
    """None for an episode that says nothing about the agent."""
    steps: int
    calls: int
    """Model calls of the whole episode."""
    asked: int
    """Replies of the proposer and of a model that values pages,"""
    unread: int
    """and those without an action that the page allows, or without a mark."""
    pages: int = 0
    """With `right_action`: pages for which actions were proposed,"""
    missing: int = 0
    """and those for which the right one was not among the policy's own proposals."""
    error: str = ""
    may_pass: bool = False
    """Whether it failed for a reason that may have passed: a server that was down."""


@dataclass(frozen=True, kw_only=True)
class DepthScores:
    """The episodes of one depth."""

    success: Metric | None
    """None if every episode is masked."""
    gain: Metric | None
    """Success minus that of depth 0, on the same instances."""
    masked: int
    calls_per_step: float
    unread: float
    """Share of the replies of the proposer and of the value that could not be read.

    Where all of the proposer's replies are unread, the first offered action is proposed.
    """
    missing: float | None
    """Share of the pages whose right action the policy did not propose; None if not measured."""


def planned_episode(
    episode: Episode, world: World, planner: PagePlanner, counts: Mapping[str, int]
) -> PlannedEpisode:
    return PlannedEpisode(
        depth=planner.config.depth,
        seed=episode.seed,
        family=str(getattr(world, "family", "")),
        success=episode.outcome.value,
        steps=len(episode.transitions),
        calls=planner.cost.calls,
        error=episode.error,
        may_pass=episode.stop is Stop.POLICY_ERROR,
        **counts,
    )


def _share(parts: Sequence[int], wholes: Sequence[int]) -> float | None:
    return sum(parts) / sum(wholes) if sum(wholes) else None


def success_so_far(rows: Sequence[PlannedEpisode]) -> dict[str, float]:
    """What the progress display shows of the rows so far."""
    shown = {}
    for depth in sorted({row.depth for row in rows}):
        known = [row.success for row in rows if row.depth == depth and row.success is not None]
        if known:
            shown[f"depth_{depth}"] = sum(known) / len(known)
    if asked := sum(row.asked for row in rows):
        shown["unread"] = sum(row.unread for row in rows) / asked
    return shown


def depth_scores(rows: Sequence[PlannedEpisode]) -> dict[str, DepthScores]:
    """Success by depth, and what look-ahead gains on the same instances."""
    base = {row.seed: row.success for row in rows if row.depth == 0}
    scores = {}
    for depth in sorted({row.depth for row in rows}):
        own = [row for row in rows if row.depth == depth]
        known = [row for row in own if row.success is not None]
        gains = [
            row.success - before
            for row in known
            if depth and row.success is not None and (before := base.get(row.seed)) is not None
        ]
        calls = sum(row.calls for row in known)
        scores[str(depth)] = DepthScores(
            success=Metric.of([row.success for row in known]) if known else None,
            gain=Metric.of(gains) if gains else None,
            masked=len(own) - len(known),
            calls_per_step=calls / max(1, sum(row.steps for row in known)),
            unread=sum(row.unread for row in known) / max(1, sum(row.asked for row in known)),
            missing=_share([row.missing for row in known], [row.pages for row in known]),
        )
    return scores

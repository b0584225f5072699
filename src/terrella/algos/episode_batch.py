"""From the rewards of a batch of episodes to what one step trains on. Both engines call this.

Which groups train, the advantage of each episode or turn, and the weight of each token. Shapes:
P groups, G episodes per group (nan marks a masked verdict or a missing member), T tokens.
    chosen_PG = chosen_groups(episodes, rewards_PG, rules)
    scores = score_episodes(episodes, chosen_PG, rules)
    columns = token_columns(episode, score, counts, rules, longest=512)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from terrella.algos.advantages import group_advantages, zero_variance
from terrella.algos.credit import per_turn, to_go, turn_rewards
from terrella.algos.estimators import ESTIMATORS
from terrella.algos.filters import group_spread, most_uncertain, top_p_spread
from terrella.algos.losses import token_scales
from terrella.core.errors import EngineError


class Rules(Protocol):
    """The settings that are read here; `engines.configs.RlvrConfig` has them."""

    @property
    def algorithm(self) -> str: ...
    @property
    def credit(self) -> str: ...
    @property
    def keep_share(self) -> float: ...
    @property
    def keep_top_p(self) -> float: ...
    @property
    def denominator(self) -> str: ...
    @property
    def world_loss(self) -> float: ...
    @property
    def mini_batches(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFacts:
    """What the rules read of an episode: its rewards and which tokens the model wrote."""

    model_mask: Sequence[bool]
    turn_ends: Sequence[int]
    rewards: Sequence[float]
    """The reward that is trained on, by turn (`credit.rewards_by_turn`)."""
    world_rewards: Sequence[float]
    """The world's own reward of each turn, from which turn credit is made."""
    masked: bool = False

    @property
    def reward(self) -> float:
        """The sum of the rewards; nan if masked, and only then."""
        if self.masked:
            return math.nan
        total = sum(self.rewards)
        if not math.isfinite(total):
            raise EngineError(
                "rewards",
                f"an episode that is not masked has the reward {total}",
                "mend the world or the reward: only a masked verdict may be left out",
            )
        return total


MISSING = EpisodeFacts(model_mask=(), turn_ends=(), rewards=(), world_rewards=(), masked=True)
"""A group member that was lost."""


class Score(NamedTuple):
    """The advantage of an episode that counts in the loss (0 where a critic estimates it)."""

    advantage: float
    turns: tuple[float, ...] = ()
    """The advantage of each turn, where credit is given by turn."""

    @property
    def has_gradient(self) -> bool:
        """Whether any advantage differs from zero. An average member of a group has none."""
        return any(self.turns) or self.advantage != 0.0


class TokenCounts(NamedTuple):
    """Episodes and tokens that count in the loss of a batch, over all processes."""

    episodes: float
    tokens: float
    """Tokens that the model wrote."""
    world_tokens: float = 0.0


def informative_groups(
    episodes: Sequence[EpisodeFacts], rewards_PG: Tensor, rules: Rules
) -> Tensor:
    """[P] of bool: groups with any advantage; with a critic, groups with any known verdict."""
    if rules.algorithm == "ppo":
        return ~rewards_PG.isnan().all(1)
    compared_PVG = _compared(episodes, rewards_PG, rules)
    return ~zero_variance(compared_PVG.flatten(0, 1)).view(compared_PVG.shape[:2]).all(1)


def group_spreads(episodes: Sequence[EpisodeFacts], rewards_PG: Tensor, rules: Rules) -> Tensor:
    """[P]: the spread of what a group's advantages are made of; by turn, that of its widest one."""
    compared_PVG = _compared(episodes, rewards_PG, rules)
    return group_spread(compared_PVG.flatten(0, 1)).view(compared_PVG.shape[:2]).amax(1)


def _compared(episodes: Sequence[EpisodeFacts], rewards_PG: Tensor, rules: Rules) -> Tensor:
    """[P, V, G]: what members of a group are compared by: one reward, or each turn's return."""
    if rules.credit == "turn" and any(episode.world_rewards for episode in episodes):
        return turn_returns([episode.world_rewards for episode in episodes], rewards_PG)
    return rewards_PG[:, None]


def replacement_task(index: int, *, extra: int, run_tasks: int) -> int:
    """The task that replaces task `index` in round `extra`: one beyond those of the run.

    It depends on nothing else, so the tasks are the same for any number of processes.
    """
    return index + extra * run_tasks


def chosen_groups(episodes: Sequence[EpisodeFacts], rewards_PG: Tensor, rules: Rules) -> Tensor:
    """The rewards, with nan for groups that the filters leave out of training."""
    wanted_P = wanted_groups(group_spreads(episodes, rewards_PG, rules), rules)
    return torch.where(wanted_P[:, None], rewards_PG, torch.nan)


def wanted_groups(spread_P: Tensor, rules: Rules) -> Tensor:
    """[P] of bool: the groups that the filters keep, by the spreads of the whole batch."""
    wanted = torch.ones(len(spread_P), dtype=torch.bool)
    if rules.keep_share < 1:
        wanted &= most_uncertain(spread_P, share=rules.keep_share)
    if rules.keep_top_p < 1:
        wanted &= top_p_spread(spread_P, p=rules.keep_top_p)
    return wanted


def score_episodes(
    episodes: Sequence[EpisodeFacts], chosen_PG: Tensor, rules: Rules
) -> list[Score | None]:
    """The score of each episode, group by group; None for those that do not count in the loss.

    A masked episode and a group that was filtered out never count. A group without variance counts
    with `denominator="all"`: its advantages are zero, but its tokens are in the mean.
    """
    known_PG = ~chosen_PG.isnan()
    counted_PG = known_PG
    if rules.denominator == "informative":
        counted_PG = known_PG & informative_groups(episodes, chosen_PG, rules)[:, None]
    advantages = episode_advantages(chosen_PG, rules.algorithm).flatten().tolist()
    by_turn: Sequence[tuple[float, ...]] = [()] * len(episodes)
    if rules.credit == "turn":
        turns = [episode.world_rewards for episode in episodes]
        by_turn = turn_advantages(turns, chosen_PG, rules.algorithm)
    counted = counted_PG.flatten().tolist()
    return [
        Score(advantage, turns) if counts else None
        for advantage, turns, counts in zip(advantages, by_turn, counted, strict=True)
    ]


def episode_advantages(rewards_PG: Tensor, algorithm: str) -> Tensor:
    """[P, G]; zeros where a critic estimates them."""
    if algorithm == "ppo":
        return torch.zeros_like(rewards_PG)
    estimator = ESTIMATORS[algorithm]
    return group_advantages(rewards_PG, scale=estimator.scale, baseline=estimator.baseline)


def turn_advantages(
    turn_rewards: Sequence[Sequence[float]], rewards_PG: Tensor, algorithm: str
) -> list[tuple[float, ...]]:
    """Advantage of each turn over the same turn of the group, by its reward-to-go."""
    if not any(turn_rewards):  # no episode got to its first turn
        return [()] * len(turn_rewards)
    returns_PTG = turn_returns(turn_rewards, rewards_PG)
    advantages = episode_advantages(returns_PTG.flatten(0, 1), algorithm).view(returns_PTG.shape)
    by_episode = advantages.transpose(1, 2).flatten(0, 1).tolist()
    return [
        tuple(turns[: len(rewards)])
        for turns, rewards in zip(by_episode, turn_rewards, strict=True)
    ]


def turn_returns(turn_rewards: Sequence[Sequence[float]], rewards_PG: Tensor) -> Tensor:
    """[P, T, G]: the reward-to-go of each turn; nan where there is no turn or no verdict."""
    longest = max(map(len, turn_rewards))
    returns = torch.full((len(turn_rewards), longest), torch.nan)
    known = (~rewards_PG.isnan()).flatten().tolist()
    for index, rewards in enumerate(turn_rewards):
        if known[index]:
            returns[index, : len(rewards)] = torch.tensor(to_go(rewards))
    return returns.view(-1, rewards_PG.shape[1], longest).transpose(1, 2)


def token_counts(model_masks: Iterable[Sequence[bool]]) -> TokenCounts:
    """The counts of these episodes."""
    masks = list(model_masks)
    written = sum(sum(mask) for mask in masks)
    return TokenCounts(len(masks), written, sum(len(mask) for mask in masks) - written)


def token_columns(
    episode: EpisodeFacts, score: Score, counts: TokenCounts, rules: Rules, *, longest: int
) -> dict[str, Tensor]:
    """The columns of an episode that counts, one value per completion token.

    `weight` is the share of the loss; `advantage`, or for PPO `reward`, is on every token of a
    turn, whoever wrote it: the engines read it where the model wrote. `world` is the share of the
    auxiliary loss. Shares add up to 1 over a batch, times the number of its mini-batches: each of
    them takes a step as long as that of a whole batch.
    """
    length = len(episode.model_mask)
    weight = token_scales(
        ESTIMATORS[rules.algorithm].normalise,
        written=sum(episode.model_mask),
        episodes=counts.episodes,
        tokens=counts.tokens,
        longest=longest,
    )
    columns = {"weight": torch.full((length,), weight * rules.mini_batches)}
    if rules.algorithm == "ppo":
        columns["reward"] = turn_rewards(episode.rewards, episode.turn_ends, length)
    elif score.turns:
        columns["advantage"] = torch.tensor(per_turn(score.turns, episode.turn_ends, length))
    else:
        columns["advantage"] = torch.full((length,), score.advantage)
    if rules.world_loss:
        by_world = ~torch.tensor(episode.model_mask, dtype=torch.bool)
        share = rules.mini_batches / counts.world_tokens if counts.world_tokens else 0.0
        columns["world"] = torch.where(by_world, share, 0.0)
    return columns

"""What an agent is paid besides the world's reward: fines for broken formats, and a price for true states.

The price is the online world-modelling reward (VAGEN's idea, without a judge: states are text, so the world itself says
whether they are right). Fines can be per turn or once per episode. Everything is paid to the turn that earned it.
    driver = PaidDriver(driver_config, codec, AgentPay.Config(turn_fine=0.1, observation=0.5, prediction=0.5))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from terrella.codecs.tagged import TaggedCodec
from terrella.core.config import Configurable
from terrella.core.protocols import Sampler, Task, TokenEpisode
from terrella.engines.episodes.driver import Driver
from terrella.stages.tagged_rows import Turn, turns


class AgentPay(Configurable):
    """Prices and fines."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """All zero: the world's own reward."""

        success: float = 1.0
        """Paid at the end of a won episode, in place of the world's own rewards; 0 keeps those."""
        turn_fine: float = 0.0
        """Off for each turn whose reply is not well formed."""
        episode_fine: float = 0.0
        """Off once, when any reply is not well formed."""
        observation: float = 0.0
        """For an episode whose replies all say truly what is seen; a share of it for a share of them."""
        prediction: float = 0.0
        """The same for what will be seen."""


def paid_turns(episode: TokenEpisode, codec: TaggedCodec, pay: AgentPay.Config, *, max_actions: int) -> list[float]:
    """What each turn of a whole episode earns."""
    played = turns(episode, codec, max_actions=max_actions)
    earned = list(episode.turn_rewards)
    if pay.success:
        earned = [0.0] * (len(played) - 1) + [pay.success * (episode.outcome.value or 0.0)]
    broken = [not codec.well_formed(turn.reply) for turn in played]
    prices = [_price(turn, codec, pay) / len(played) for turn in played]
    paid = [a + b - pay.turn_fine * c for a, b, c in zip(earned, prices, broken, strict=True)]
    paid[-1] -= pay.episode_fine * any(broken)
    return paid


def _price(turn: Turn, codec: TaggedCodec, pay: AgentPay.Config) -> float:
    if not (pay.observation or pay.prediction):
        return 0.0
    observed, predicted = codec.read_states(turn.reply)
    return pay.observation * (observed == turn.before.strip()) + pay.prediction * (predicted == turn.after.strip())


class PaidDriver(Driver):
    """A driver whose turns earn what `AgentPay` says; train with `reward="return"`. The verdict stays the world's."""

    def __init__(self, config: Driver.Config, codec: TaggedCodec, pay: AgentPay.Config) -> None:
        """As a driver's, with a price list."""
        super().__init__(config, codec)
        self.tagged, self.pay = codec, pay
        self.world_steps = 0
        """Actions carried out so far: what a budget counts."""

    async def run_async(
        self, sampler: Sampler, tasks: Sequence[Task], *, group_size: int, seed: int
    ) -> list[TokenEpisode]:
        """As the driver's; broken episodes stay as they are, masked."""
        episodes = await super().run_async(sampler, tasks, group_size=group_size, seed=seed)
        self.world_steps += sum(len(e.record.transitions) for e in episodes if e.record is not None)
        return [self._paid(episode) for episode in episodes]

    def _paid(self, episode: TokenEpisode) -> TokenEpisode:
        if episode.record is None or episode.outcome.value is None:
            return episode
        paid = paid_turns(episode, self.tagged, self.pay, max_actions=self.config.max_actions)
        return dataclasses.replace(episode, turn_rewards=tuple(paid))

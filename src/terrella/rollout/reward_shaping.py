"""Reward shaping for agents with tagged replies: format penalties and a reward for true states.

The reward for true states is the online world-modelling reward of VAGEN, without a judge: states
are text, so the world itself says whether they are right. Each turn gets the reward that it earned;
the verdict on the episode stays the world's.
    shaping = RewardShaping(RewardShaping.Config(turn_fine=0.1, observation=0.5))
    rollout = Rollout(config, codec, shaping=shaping)
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from terrella.codecs.tagged import TaggedCodec
from terrella.core.config import Configurable
from terrella.core.errors import ConfigError
from terrella.core.protocols import Codec
from terrella.core.tokens import TokenEpisode
from terrella.rollout.turns import Turn, turns


class RewardShaping(Configurable):
    """Replaces the rewards of an episode's turns; train with `reward="return"` to use them."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        success: float = 1.0
        """Reward at the end of a won episode, in place of the world's rewards; 0 keeps those."""
        turn_fine: float = 0.0
        """Penalty for each turn whose reply is not well formed."""
        episode_fine: float = 0.0
        """Penalty for the episode, once, if any reply is not well formed."""
        observation: float = 0.0
        """Reward for replies that state truly what is seen, as a share of the episode's turns."""
        prediction: float = 0.0
        """The same for what will be seen next."""

    config: Config

    def shape(self, episode: TokenEpisode, codec: Codec, *, max_actions: int) -> TokenEpisode:
        """The episode with shaped turn rewards; a broken or masked one stays as it is."""
        if episode.record is None or episode.outcome.value is None:
            return episode
        if not isinstance(codec, TaggedCodec):
            raise ConfigError(
                "reward_shaping", "needs replies with tags", "use a tagged reply format"
            )
        rewards = shaped_rewards(episode, codec, self.config, max_actions=max_actions)
        return dataclasses.replace(episode, turn_rewards=tuple(rewards))


def shaped_rewards(
    episode: TokenEpisode, codec: TaggedCodec, config: RewardShaping.Config, *, max_actions: int
) -> list[float]:
    """The reward of each turn of a whole episode."""
    played = turns(episode, codec, max_actions=max_actions)
    rewards = list(episode.turn_rewards)
    if config.success:
        rewards = [0.0] * len(played)
        rewards[-1] = config.success * (episode.outcome.value or 0.0)
    broken = [not codec.well_formed(turn.reply) for turn in played]
    bonuses = [_state_reward(turn, codec, config) / len(played) for turn in played]
    shaped = [
        reward + bonus - config.turn_fine * is_broken
        for reward, bonus, is_broken in zip(rewards, bonuses, broken, strict=True)
    ]
    shaped[-1] -= config.episode_fine * any(broken)
    return shaped


def _state_reward(turn: Turn, codec: TaggedCodec, config: RewardShaping.Config) -> float:
    if not (config.observation or config.prediction):
        return 0.0
    found = codec.true_states(turn.reply, turn.states)
    predicted = sum(found.predictions) / len(found.predictions)
    return config.observation * bool(found.observation) + config.prediction * predicted

"""Random and expert play, and mixtures of two policies."""

import pytest

from terrella.core.config import dump, load
from terrella.core.episode import play
from terrella.core.errors import ConfigError
from terrella.policies.basic import Expert, Mixture, Random
from terrella.worlds.counter import Counter


def success_rate(policy, episodes=300):
    world = Counter.Config().build()
    return sum(play(world, policy, seed=seed).success for seed in range(episodes)) / episodes


def test_mixtures_with_more_random_steps_succeed_less():
    rates = [success_rate(Mixture.Config(share=share).build()) for share in (0.0, 0.3, 0.7, 1.0)]
    assert rates[0] == 1.0 and rates == sorted(rates, reverse=True) and rates[-1] < 0.5
    assert abs(rates[-1] - success_rate(Random.Config().build())) < 0.12


def test_the_config_of_a_mixture_survives_disk():
    config = Mixture.Config(first=Random.Config(), second=Expert.Config(), share=0.25)
    assert load(dump(config)) == config and config.build().name == "mixture(random,expert,0.25)"


def test_a_share_must_be_a_probability():
    with pytest.raises(ConfigError, match="share"):
        Mixture.Config(share=1.5)

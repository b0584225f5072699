import pytest

from terrella.core.config import dump, load
from terrella.core.episode import play
from terrella.core.errors import ConfigError
from terrella.policies.basic import Expert, Mixture, Random
from terrella.worlds.counter import Counter


def success(policy, n=300):
    world = Counter.Config().build()
    return sum(play(world, policy, seed=i).success for i in range(n)) / n


def test_the_ladder_of_mixtures_is_graded():
    rates = [success(Mixture.Config(share=share).build()) for share in (0.0, 0.3, 0.7, 1.0)]
    assert rates[0] == 1.0 and rates == sorted(rates, reverse=True) and rates[-1] < 0.5
    assert abs(rates[-1] - success(Random.Config().build())) < 0.12


def test_a_mixture_survives_disk_with_its_parts():
    config = Mixture.Config(first=Random.Config(), second=Expert.Config(), share=0.25)
    assert load(dump(config)) == config and config.build().name == "mixture(random,expert,0.25)"


def test_a_share_is_a_probability():
    with pytest.raises(ConfigError, match="share"):
        Mixture.Config(share=1.5)

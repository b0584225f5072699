"""Policies that need no model: uniform random, the world's expert, and mixtures of two.

play(world, Random.Config().build(), seed=0)
Mixture.Config(first=Expert.Config(), second=Random.Config(), share=0.3).build()  # 30% random
"""

from __future__ import annotations

from dataclasses import dataclass, field

from terrella.core.config import Configurable
from terrella.core.errors import ConfigError, PolicyError
from terrella.core.protocols import Policy
from terrella.core.types import Moment


def require_policy(config: Configurable.Config) -> None:
    """Refuse a config that builds something else than a policy."""
    owner = getattr(config, "owner", type(config))
    if not callable(getattr(owner, "act", None)):
        raise ConfigError("policy", f"{owner.__qualname__} is not a policy", "name one that acts")


class Random(Configurable):
    """Chooses uniformly among the world's proposals: the lower baseline of every score."""

    name = "random"

    def act(self, moment: Moment) -> str:
        choices = moment.proposals()
        if not choices:
            raise PolicyError(
                self.name, "the world proposes no action", "override `proposals` in the world"
            )
        return choices[int(moment.rng.integers(len(choices)))]


class Expert(Configurable):
    """Plays the world's own expert (a solver or a script): the upper baseline of every score."""

    name = "expert"

    def act(self, moment: Moment) -> str:
        return moment.expert()


class Mixture(Configurable):
    """Acts as `second` with probability `share` at each step, else as `first`.

    Different shares give policies of graded strength.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        first: Configurable.Config = field(default_factory=Expert.Config)
        second: Configurable.Config = field(default_factory=Random.Config)
        share: float = 0.1

        def __post_init__(self) -> None:
            if not 0.0 <= self.share <= 1.0:
                raise ConfigError("share", f"must lie in [0, 1], not {self.share}")
            require_policy(self.first)
            require_policy(self.second)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.first: Policy = config.first.build()
        self.second: Policy = config.second.build()
        self.share = config.share
        self.name = f"mixture({self.first.name},{self.second.name},{config.share:g})"

    def act(self, moment: Moment) -> str:
        policy = self.second if moment.rng.random() < self.share else self.first
        return policy.act(moment)

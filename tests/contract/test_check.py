"""`terrella check`: every world passes, and a world that breaks a property fails its check."""

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest

from terrella.commands.check import CHECKS, check_world
from terrella.core.errors import ConfigError, MissingExtraError, MissingProgramError, WorldError
from terrella.core.instances import plain
from terrella.core.types import Outcome, Split, Text, Verdict, show_text
from terrella.core.world import World
from terrella.verify.text import Exact
from terrella.worlds import builtin_names, find_world, world_config
from terrella.worlds.counter import Count, Counter


@pytest.mark.parametrize("name", builtin_names())
def test_every_world_passes_every_check(name):
    build_or_skip(name)
    assert failed_checks(name) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", [f"{n}:{p}" for n in builtin_names() for p in find_world(n).presets]
)
def test_every_preset_passes_every_check(spec):
    build_or_skip(spec)
    assert failed_checks(spec) == []


def failed_checks(spec):
    results = check_world(world_config(spec))
    return [f"{result.name}: {result.detail}" for result in results if not result.passed]


class WithoutExpert(Counter):
    """A world without an expert."""

    expert = World.expert


def test_a_world_without_an_expert_is_checked_with_random_play():
    results = {result.name: result for result in check_world(WithoutExpert.Config())}
    assert all(result.passed for result in results.values())
    assert results["expert_beats_random"].detail == "no expert: nothing to compare"
    assert results["expert_beats_random"].status == "n/a"  # nothing was tested, so not "ok"
    assert results["truth_is_pure"].status == "ok"
    assert not WithoutExpert.Config().build().has_expert
    assert Counter.Config().build().has_expert


class PartialCredit(Counter):
    """An outcome of its own, and states with numbers as `rng` gives them."""

    def outcome(self, transitions):
        return Verdict.of(max(0.3, super().outcome(transitions).value))

    def draw(self, rng):
        count = super().draw(rng)
        return Count(np.int64(count.value), np.int64(count.goal))


def test_partial_credit_and_numpy_numbers_are_no_defects():
    results = check_world(PartialCredit.Config())
    assert [result.detail for result in results if not result.passed] == []


def build_or_skip(spec):
    if spec == "browsergym":
        pytest.skip("an adapter: the user chooses the environments and whether they can be forked")
    try:
        world_config(spec).build()
    except (MissingExtraError, MissingProgramError) as missing:
        pytest.skip(str(missing))
    except WorldError as missing:
        if spec not in ("webarena", "webshop"):  # they need running sites, and data of the user's
            raise
        pytest.skip(str(missing))


# --- one broken world per property ----------------------------------------------------------------


class ForgetsConfig(Counter):
    @dataclass(frozen=True, kw_only=True)
    class Config(Counter.Config):
        names: tuple = ("up", "down")

        def __eq__(self, other):
            return False


class NotAnEnv(Counter):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options)[0]


class DependsOnHistory(Counter):
    draws = 0

    def draw(self, rng):
        DependsOnHistory.draws += 1
        return replace(super().draw(rng), goal=DependsOnHistory.draws % 97)


class HashOrder(Counter):
    def draw(self, rng):
        order = "".join({"1", "2", "3", "4", "5", "6", "7", "8", "9"})
        return replace(super().draw(rng), goal=int(order))


class UsesGlobalRng(Counter):
    def draw(self, rng):
        random.random()
        return super().draw(rng)


class NoiseMovesTheStart(Counter):
    def _draw_instance(self):
        super()._draw_instance()
        self._state = replace(self._state, value=self._state.value + self.noise_seed)


class ProbabilitiesBelowOne(Counter):
    def outcomes(self, state, action):
        return [replace(result, probability=0.7) for result in super().outcomes(state, action)]


class NegativeProbability(Counter):
    def outcomes(self, state, action):
        done = super().outcomes(state, action)[0]
        return [replace(done, probability=1.5), replace(done, probability=-0.5)]


class ValueOnlyView:
    legend = "The value only."

    def show(self, state):
        return Text(f"value {state.value}")

    def read(self, observation):
        return Count(int(show_text(observation).split()[1]), 0)


class LossyView(Counter):
    verifier = Exact.Config().build()

    def make_view(self, name):
        return ValueOnlyView()


class Stingy(Exact):
    def verify(self, reply, truth, before):
        return Verdict.of(0.9 * super().verify(reply, truth, before).value)


class TruthIsNotEnough(Counter):
    verifier = Stingy.Config().build()


class Generous(Exact):
    def verify(self, reply, truth, before):
        return Verdict.of(1.0)


class AnythingGoes(Counter):
    verifier = Generous.Config().build()


class Substring(Exact):
    """Accepts a reply that contains the truth anywhere: a classic exploit."""

    def verify(self, reply, truth, before):
        return Verdict.of(float(show_text(truth) in show_text(reply)))


class Farmable(Counter):
    verifier = Substring.Config().build()


class Raises(Exact):
    def verify(self, reply, truth, before):
        if not show_text(reply).strip():
            raise IndexError("empty")
        return super().verify(reply, truth, before)


class FragileVerifier(Counter):
    verifier = Raises.Config().build()


class OneInstance(Counter):
    def draw(self, rng):
        return Count(3, 5)


class IgnoresSplit(Counter):
    def _draw_instance(self):
        requested = self.split
        self.split = Split.TRAIN
        super()._draw_instance()
        self.split = requested


class SeedInKey(Counter):
    def key(self, state):
        return [state.value, state.goal, self.seed]


class FreeNonsense(Counter):
    def outcomes(self, state, action):
        return [replace(done, reward=-0.1) for done in super().outcomes(state, action)]


class CrashesOnNonsense(Counter):
    def truth(self, state, action):
        return [Outcome(state=replace(state, value=state.value + {"up": 1, "down": -1}[action]))]


class SharedFork(Counter):
    def fork(self):
        return self


class ForkForgets(Counter):
    def fork(self):
        twin = type(self)(self.config)
        twin.reset(seed=self.seed, options={"split": self.split, "noise_seed": self.noise_seed})
        return twin


class WrongSolver(Counter):
    def proposals(self, state):
        return ("up",) if not hasattr(self, "_lying") else self.legal(state)

    @property
    def solver(self):
        class Optimist:
            def random_value(self, state, steps):
                return 1.0

            def best_action(self, state, steps):
                return "up" if state.value < state.goal else "down"

            def clear(self):
                pass

        return Optimist()


class BadExpert(Counter):
    def expert(self, state, steps_left, rng):
        return "down" if state.value < state.goal else "up"


BROKEN = {
    "config_survives_disk": [ForgetsConfig],
    "is_a_gymnasium_env": [NotAnEnv],
    "same_seed_same_episode": [DependsOnHistory, HashOrder],
    "leaves_global_rngs_alone": [UsesGlobalRng],
    "noise_is_not_the_instance": [NoiseMovesTheStart],
    "truth_is_pure": [ProbabilitiesBelowOne, NegativeProbability],
    "views_round_trip": [LossyView],
    "truth_scores_one": [TruthIsNotEnough],
    "corrupted_truth_scores_less": [AnythingGoes],
    "battery_wins_nothing": [Farmable, FragileVerifier],
    "splits_are_disjoint": [OneInstance, IgnoresSplit, SeedInKey],
    "nonsense_is_harmless": [CrashesOnNonsense, FreeNonsense],
    "fork_is_independent": [SharedFork, ForkForgets],
    "random_value_is_exact": [WrongSolver],
    "expert_beats_random": [BadExpert],
}


def test_every_check_has_a_world_that_breaks_it():
    assert set(BROKEN) == {check.__name__ for check in CHECKS}


@pytest.mark.parametrize(
    ("check", "world"), [(check, world) for check, worlds in BROKEN.items() for world in worlds]
)
def test_a_broken_world_fails_its_check(check, world):
    results = {result.name: result for result in check_world(world.Config())}
    assert not results[check].passed and results[check].detail


def test_unknown_worlds_and_presets_are_errors():
    assert issubclass(find_world("counter"), World)
    with pytest.raises(ConfigError, match="no such world"):
        find_world("no_such_world")
    with pytest.raises(ConfigError, match="no such preset"):
        world_config("counter:huge")


def test_states_are_plain_json():
    assert plain(Count(1, 2)) == {"value": 1, "goal": 2}
    assert np.isscalar(plain(3))

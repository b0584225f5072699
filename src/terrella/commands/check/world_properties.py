"""Properties of a world: determinism, exact dynamics, disjoint splits, harmless bad actions.

Each function below is one property.
    truth_is_pure(Subject(FrozenLake.Config()))  # a line of detail, or PropertyError
"""

from __future__ import annotations

import json
import math
import random
import warnings
from typing import Any

import numpy as np
from gymnasium.utils.env_checker import check_env

from terrella.commands.check.other_process import digest, digest_elsewhere, why_not_elsewhere
from terrella.commands.check.subject import NotApplicableError, Subject, require
from terrella.core.config import dump, rebuild
from terrella.core.episode import play
from terrella.core.field_origin import undeclared
from terrella.core.instances import plain, split_of
from terrella.core.protocols import Policy
from terrella.core.seeds import POLICY_STREAM, stream
from terrella.core.types import Split, same_kind
from terrella.core.world import StateWorld, World
from terrella.evals.baselines import exact_random
from terrella.policies.basic import Expert, Random

INSTANCES_PER_SPLIT = 150
NONSENSE_ACTIONS = ("", "no such action", "\x00\ud800", "Up || Up", "1e999", "A" * 5000)
SAME = range(5)
"""Seeds of the episodes that must be the same each time."""
FORKED = range(2)
"""Seeds of the episodes that are forked: few, since a fork may be a browser."""
COMPARED = range(12)
"""Seeds of the episodes that expert and random play are compared on: few, so no rate is shown."""
UNREADABLE = ("", "no such thing", "\x00", "[[[[", "1" * 10_000)
"""Texts that are not a rendering of any state."""


# --- records and random streams -------------------------------------------------------------------


def config_survives_disk(subject: Subject) -> str:
    """A config that was dumped, written as JSON and loaded is equal to itself.

    Each field of text or of a path says whether a file may give it.
    """
    loaded = rebuild(json.loads(json.dumps(dump(subject.config))))
    require(loaded == subject.config, f"came back as {loaded}")
    unclear = undeclared(type(subject.config))
    require(not unclear, f"declare as Recorded[...] or Local[...]: {', '.join(unclear)}")
    return f"{len(dump(subject.config)) - 1} fields"


def is_a_gymnasium_env(subject: Subject) -> str:
    """Gymnasium's own checker accepts the world."""
    with warnings.catch_warnings():
        # It warns about unusual spaces, such as text; what it refuses raises.
        warnings.simplefilter("ignore")
        check_env(subject.config.build(), skip_render_check=True)
    return "gymnasium.utils.env_checker"


def same_seed_same_episode(subject: Subject) -> str:
    """Two fresh worlds give equal episodes for the same seeds and the same policy.

    So does a world in another process, where the order of a set of texts is another one.
    """
    policy = Random.Config().build()
    for seed in SAME:
        first, second = (
            play(subject.config.build(), policy, seed=seed, noise_seed=seed) for _ in range(2)
        )
        require(first == second, f"seed {seed} gave two different episodes")
    reason = why_not_elsewhere(subject.config)
    if reason:
        return f"{len(SAME)} seeds, in one process: {reason}"
    require(
        digest(subject.config, SAME) == digest_elsewhere(subject.config, SAME),
        "another process gives other episodes: is something taken from a set, or from hash()?",
    )
    return f"{len(SAME)} seeds, 2 processes"


def leaves_global_rngs_alone(subject: Subject) -> str:
    """Playing does not use the global generators `random` and `numpy.random`."""
    before = random.getstate(), _numpy_state()
    play(subject.config.build(), Random.Config().build(), seed=1)
    require((random.getstate(), _numpy_state()) == before, "a global random generator was used")
    return "random, numpy.random"


def _numpy_state() -> str:
    return str(np.random.get_state(legacy=False))


def noise_is_not_the_instance(subject: Subject) -> str:
    """Another noise seed gives the same instance."""
    starts = [subject.world.reset(seed=3, options={"noise_seed": k}) for k in range(4)]
    instances = {info["instance"] for _, info in starts}
    require(len(instances) == 1, "noise_seed changes the instance")
    observations = {observation for observation, _ in starts}
    require(len(observations) == 1, "noise_seed changes the first observation")
    return "4 noise seeds"


# --- exact dynamics and views ---------------------------------------------------------------------


def truth_is_pure(subject: Subject) -> str:
    """The exact results form a probability distribution, and computing them changes nothing."""
    world = subject.world
    if not isinstance(world, StateWorld):
        raise NotApplicableError("not a StateWorld: no exact truth")
    for state, action in _states_and_actions(world):
        before = plain(state)
        results = world.truth(state, action)
        again = world.truth(state, action)
        total = math.fsum(result.probability for result in results)
        require(list(results) == list(again), f"{action!r} gave two different answers")
        require(plain(state) == before, f"{action!r} changed the state it was asked about")
        require(abs(total - 1) < 1e-9, f"probabilities of {action!r} sum to {total}")
        least = min(result.probability for result in results)
        require(least >= 0, f"{action!r} has a result with the probability {least}")
    return "distributions sum to 1"


def _states_and_actions(world: StateWorld[Any]) -> list[tuple[Any, str]]:
    pairs: list[tuple[Any, str]] = []
    for seed in range(10):
        world.reset(seed=seed)
        over = False
        while not over:
            choices = world.proposals(world.state)
            action = choices[int(world.np_random.integers(len(choices)))]
            pairs.append((world.state, action))
            _, _, terminated, truncated, _ = world.step(action)
            over = terminated or truncated
    return pairs


def views_round_trip(subject: Subject) -> str:
    """Every view can be read back, and other text is rejected without an exception."""
    world = subject.world
    if not isinstance(world, StateWorld):
        raise NotApplicableError("not a StateWorld: no state to read back")
    states = [state for state, _ in _states_and_actions(world)] + _final_states(world)
    for name in world.view_names:
        view = world.make_view(name)
        for state in states:
            require(
                view.read(view.show(state)) == state,
                f"view {name!r} loses something of {plain(state)}",
            )
        for text in UNREADABLE:
            require(
                view.read(same_kind(view.show(states[0]), text)) is None,
                f"view {name!r} reads {text[:20]!r}",
            )
    return f"{len(world.view_names)} views x {len(states)} states"


def _final_states(world: StateWorld[Any]) -> list[Any]:
    finals = []
    for seed in range(6):
        play(world, Expert.Config().build(), seed=seed)
        finals.append(world.state)
    return finals


# --- instances, actions and forks -----------------------------------------------------------------


def splits_are_disjoint(subject: Subject) -> str:
    """Each split has instances, and no instance is in two of them.

    Instances with equal initial states count as one, whatever `key` makes of them.
    """
    seeds = range(INSTANCES_PER_SPLIT)
    drawn = {split: instances_of(subject.world, split, seeds) for split in Split}
    for split, instances in drawn.items():
        require(
            all(split_of(instance) is split for instance in instances),
            f"{split} holds an instance of another split",
        )
    train = drawn[Split.TRAIN]
    shared = train & drawn[Split.TEST] | train & drawn[Split.VALIDATION]
    require(not shared, f"{len(shared)} instances are in two splits")
    if isinstance(subject.world, StateWorld):
        _require_disjoint_states(subject.world, seeds)
    return " / ".join(f"{len(drawn[split])} {split}" for split in Split)


def _require_disjoint_states(world: StateWorld[Any], seeds: range) -> None:
    """An instance that `key` tells apart by something that no model sees would be in two splits."""
    states: dict[Split, set[Any]] = {split: set() for split in Split}
    for split in Split:
        for seed in seeds:
            world.reset(seed=seed, options={"split": split})
            states[split].add(world.state)
    held_out = states[Split.VALIDATION] | states[Split.TEST]
    shared = len(held_out & states[Split.TRAIN])
    require(
        not shared,
        f"{shared} of {len(held_out)} held-out initial states are also in train: `key` holds "
        "something that is not in the state",
    )


def instances_of(world: World, split: Split, seeds: range) -> set[str]:
    """Return the distinct instances that these seeds draw."""
    return {world.reset(seed=seed, options={"split": split})[1]["instance"] for seed in seeds}


def nonsense_is_harmless(subject: Subject) -> str:
    """Text that is not an action is an invalid step, not an exception.

    In a world with named actions it changes nothing, and earns no more than a wasted action: an
    agent would learn to write it.
    """
    wasted = _wasted_reward(subject)
    for text in NONSENSE_ACTIONS:
        before, _ = subject.world.reset(seed=0)
        after, reward, _, _, info = subject.world.step(text)
        require(math.isfinite(reward), f"{text[:20]!r} earned {reward}")
        if subject.world.actions():
            ignored = not info["valid"] and after == before
            require(ignored, f"{text[:20]!r} was taken for an action")
            require(
                reward <= wasted,
                f"{text[:20]!r} earns {reward:g}, a wasted action {wasted:g}: set `invalid_reward`",
            )
    return f"{len(NONSENSE_ACTIONS)} replies"


def _wasted_reward(subject: Subject) -> float:
    """The most that a step without effect earned; if there was none, any step but a last one."""
    on_the_way = [
        step for step in subject.transitions if step.info["valid"] and not step.terminated
    ]
    wasted = [step.reward for step in on_the_way if not step.info["effective"]]
    return max(wasted or [step.reward for step in on_the_way], default=math.inf)


def fork_is_independent(subject: Subject) -> str:
    """Stepping a fork leaves the original alone; equal actions have equal results to the end.

    Forks are made at the start, after a step and in the middle, where nonsense was said before.
    """
    world = subject.config.build()
    for seed in FORKED:
        for steps in (0, 1, max(2, world.config.max_steps // 2)):
            world.reset(seed=seed)
            rng = stream(POLICY_STREAM, seed, steps)
            for step in range(steps):
                if not world._over:
                    nonsense = steps > 1 and step == 0
                    world.step(NONSENSE_ACTIONS[1] if nonsense else _random_action(world, rng))
            if not world._over:
                _compare_with_fork(world, rng)
    return f"{len(FORKED)} seeds, 3 moments"


def _compare_with_fork(world: World, rng: np.random.Generator) -> None:
    """Play a fork to its end, then the original with the same actions."""
    fork, before = world.fork(), world._observe()
    played = []
    while not fork._over:
        action = _random_action(fork, rng)
        played.append((action, fork.step(action)))
    require(world._observe() == before, "stepping a fork moved the original")
    for action, result in played:
        require(
            not world._over and world.step(action) == result,
            f"{action!r} had another result than in a fork",
        )


def _random_action(world: World, rng: np.random.Generator) -> str:
    choices = world.proposals(world.state)
    return choices[int(rng.integers(len(choices)))]


# --- policies -------------------------------------------------------------------------------------


def random_value_is_exact(subject: Subject) -> str:
    """The exact value of the random policy agrees with playing it, within 4 standard errors."""
    world = subject.config.build()
    seeds = range(8)
    noise_seeds = range(40)
    exact = exact_random(world, seeds, Split.TRAIN)
    if exact is None:
        raise NotApplicableError("the exact value is not known: not a StateWorld, or too large")
    policy = Random.Config().build()
    episodes = [
        play(world, policy, seed=seed, noise_seed=noise_seed)
        for seed in seeds
        for noise_seed in noise_seeds
    ]
    # The exact value is that of success; an outcome may also have partial credit.
    values = [
        float(bool(episode.transitions) and bool(episode.transitions[-1].info["success"]))
        for episode in episodes
        if not episode.outcome.masked
    ]
    require(bool(values), f"all {len(episodes)} plays were masked: {episodes[0].outcome.evidence}")
    played = sum(values) / len(values)
    error = math.sqrt(max(exact * (1 - exact), 1 / len(values)) / len(values))
    summary = f"exact {exact:.3f}, played {played:.3f} (8 instances, {len(values)} episodes)"
    require(abs(played - exact) <= 4 * error, f"{summary}, standard error {error:.3f}")
    masked = len(episodes) - len(values)
    return f"{summary}, {masked} masked" if masked else summary


def expert_beats_random(subject: Subject) -> str:
    """The expert succeeds at least as often as random play, and at least once."""
    world = subject.config.build()
    if not world.has_expert:
        raise NotApplicableError("no expert: nothing to compare")
    expert = _wins(world, Expert.Config().build())
    chance = _wins(world, Random.Config().build())
    summary = f"of {len(COMPARED)} episodes, the expert wins {expert} and random play {chance}"
    require(expert >= chance and expert > 0, summary)
    return summary


def _wins(world: World, policy: Policy) -> int:
    episodes = [play(world, policy, seed=seed, noise_seed=seed) for seed in COMPARED]
    return sum(episode.success for episode in episodes)

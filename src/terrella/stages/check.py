"""`terrella check`: what every world must keep, proved without a model and in seconds.

Each property is one function below: it returns a line of detail, or raises `BrokenPromise` with what it saw.
    results = check_world(FrozenLake.Config()); all(r.passed for r in results)
"""

from __future__ import annotations

import functools
import json
import math
import random
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.utils.env_checker import check_env

from terrella.core.config import dump, load
from terrella.core.episode import play
from terrella.core.instances import CORRUPTION_STREAM, plain, split_of, stream
from terrella.core.judge import judge
from terrella.core.types import Episode, Frames, Observation, Split, State, Text, Transition, show_text
from terrella.core.world import StateWorld, World
from terrella.policies.basic import Expert, Mixture, Random
from terrella.use.baselines import exact_random
from terrella.verify.attacks_frames import DAMAGES, FRAME_ATTACKS
from terrella.verify.battery import Example, run_battery

EPISODES = 24
INSTANCES_PER_SPLIT = 150
CANDIDATES = 4
FEW_FRAMES = 40
"""Frames are slower to judge than texts."""


class BrokenPromiseError(AssertionError):
    """A property does not hold; the message says where."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """One property of one world."""

    world: str
    name: str
    passed: bool
    detail: str
    seconds: float


class Subject:
    """A world under check, with the episodes that several checks look at."""

    def __init__(self, config: World.Config) -> None:
        """Build it once; checks that need a fresh one build their own."""
        self.config = config
        self.world: World = config.build()

    @functools.cached_property
    def views(self) -> list[Subject]:
        """The same world once per view, this one first."""
        others = [name for name in self.world.view_names if name != self.config.view]
        return [self, *(Subject(self.config.replace(view=name)) for name in others)]

    @functools.cached_property
    def episodes(self) -> list[Episode]:
        """Random play, and, where there is an expert, play that reaches the end, on train instances."""
        mixed = Mixture.Config(share=0.2).build() if self.world.has_expert else Random.Config().build()
        policies = [Random.Config().build(), mixed]
        played = [play(self.world, policies[i % 2], seed=i, noise_seed=i) for i in range(EPISODES)]
        for episode in played:
            promise(not episode.stop.is_broken, f"seed {episode.seed}: {episode.error}")
        return played

    @functools.cached_property
    def transitions(self) -> list[Transition]:
        """All steps of these episodes."""
        steps = [step for episode in self.episodes for step in episode.transitions]
        promise(any(step.changed for step in steps), "no action ever changes what is seen")
        return steps


def promise(holds: bool, otherwise: str) -> None:
    """Raise `BrokenPromiseError` unless it holds; unlike `assert`, also under `python -O`."""
    if not holds:
        raise BrokenPromiseError(otherwise)


def config_survives_disk(subject: Subject) -> str:
    """Dump, JSON, load, equal."""
    again = load(json.loads(json.dumps(dump(subject.config))))
    promise(again == subject.config, f"came back as {again}")
    return f"{len(dump(subject.config)) - 1} fields"


def is_a_gymnasium_env(subject: Subject) -> str:
    """Gymnasium's own checker accepts it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about unusual (text) spaces; what it *refuses* it raises
        check_env(subject.config.build(), skip_render_check=True)
    return "gymnasium.utils.env_checker"


def same_seed_same_episode(subject: Subject) -> str:
    """Two fresh worlds, same seeds, same policy: equal records."""
    policy = Random.Config().build()
    for seed in range(5):
        first, second = (play(subject.config.build(), policy, seed=seed, noise_seed=seed) for _ in range(2))
        promise(first == second, f"seed {seed} gave two different episodes")
    return "5 seeds"


def leaves_global_rngs_alone(subject: Subject) -> str:
    """Playing neither reads nor moves `random` and `numpy.random`."""
    before = random.getstate(), _numpy_state()
    play(subject.config.build(), Random.Config().build(), seed=1)
    promise((random.getstate(), _numpy_state()) == before, "a global random generator was moved")
    return "random, numpy.random"


def _numpy_state() -> str:
    return str(np.random.get_state(legacy=False))


def noise_is_not_the_instance(subject: Subject) -> str:
    """Another noise seed gives the same instance."""
    world = subject.world
    starts = [world.reset(seed=3, options={"noise_seed": k}) for k in range(4)]
    promise(len({world_info["instance"] for _, world_info in starts}) == 1, "noise_seed changes the instance")
    promise(len({seen for seen, _ in starts}) == 1, "noise_seed changes the first observation")
    return "4 noise seeds"


def truth_is_pure(subject: Subject) -> str:
    """Outcomes are a probability distribution, and asking for them changes nothing."""
    if not isinstance(subject.world, StateWorld):
        return "not a StateWorld: no exact truth"
    for state, action in _states_and_actions(subject.world):
        before = plain(state)
        results, again = subject.world.truth(state, action), subject.world.truth(state, action)
        total = math.fsum(result.probability for result in results)
        promise(list(results) == list(again), f"{action!r} gave two different answers")
        promise(plain(state) == before, f"{action!r} changed the state it was asked about")
        promise(abs(total - 1) < 1e-9, f"probabilities of {action!r} sum to {total}")
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
    """Every view can be read back, and what is not a rendering is refused without an exception."""
    world = subject.world
    if not isinstance(world, StateWorld):
        return "not a StateWorld: no state to read back"
    states = [state for state, _ in _states_and_actions(world)] + _final_states(world)
    for name in world.view_names:
        view = world.make_view(name)
        for state in states:
            promise(view.read(view.show(state)) == state, f"view {name!r} loses something of {plain(state)}")
        for text in ("", "no such thing", "\x00", "[[[[", "1" * 10_000):
            promise(view.read(type_of(view.show(states[0]), text)) is None, f"view {name!r} reads {text[:20]!r}")
    return f"{len(world.view_names)} views x {len(states)} states"


def _final_states(world: StateWorld[Any]) -> list[Any]:
    finals = []
    for seed in range(6):
        play(world, Expert.Config().build(), seed=seed)
        finals.append(world.state)
    return finals


def type_of(example: Observation, text: str) -> Observation:
    """`text` as an observation of the same kind."""
    return State(text) if isinstance(example, State) else Text(text)


def truth_scores_one(subject: Subject) -> str:
    """The world's verifier gives the truth a full 1, in every view."""
    for seen in subject.views:
        for step in seen.transitions:
            verdict = _verdict(subject, step, step.next_observation)
            promise(verdict == 1.0, f"view {seen.config.view!r}: the truth after {step.action!r} scores {verdict}")
    return f"{len(subject.views)} views x {len(subject.transitions)} transitions"


def _verdict(subject: Subject, step: Transition, reply: Observation) -> float | None:
    return judge(subject.world.verifier, reply=reply, truth=step.next_observation, before=step.observation).value


def corrupted_truth_scores_less(subject: Subject) -> str:
    """A truth with a changed character, a lost line or an added one is not a full 1."""
    rng = stream(CORRUPTION_STREAM, 0)
    count = 0
    if isinstance(subject.transitions[0].next_observation, Frames):
        return _damaged_frames(subject, rng)
    for step in subject.transitions:
        text = show_text(step.next_observation)
        for corrupt in (_change_character, _drop_line, _add_line):
            reply = corrupt(text, rng)
            if reply.strip() == text.strip():
                continue
            value = _verdict(subject, step, type_of(step.next_observation, reply))
            promise(value is not None and value < 1.0, f"{corrupt.__name__} of the truth scores {value}: {reply!r}")
            count += 1
    promise(count > 0, "nothing could be corrupted")
    return f"{count} corruptions"


def _damaged_frames(subject: Subject, rng: np.random.Generator) -> str:
    steps = subject.transitions[:FEW_FRAMES]
    for step in steps:
        assert isinstance(step.next_observation, Frames)
        for damage in DAMAGES:
            value = _verdict(subject, step, damage(step.next_observation, rng))
            promise(value is not None and value < 1.0, f"a truth that was {damage.__name__} scores {value}")
    return f"{len(steps) * len(DAMAGES)} damaged frames"


def _change_character(text: str, rng: np.random.Generator) -> str:
    solid = [i for i, c in enumerate(text) if not c.isspace()]
    place = solid[int(rng.integers(len(solid)))]
    return text[:place] + ("~" if text[place] != "~" else "!") + text[place + 1 :]


def _drop_line(text: str, rng: np.random.Generator) -> str:
    lines = text.splitlines()
    del lines[int(rng.integers(len(lines)))]
    return "\n".join(lines)


def _add_line(text: str, rng: np.random.Generator) -> str:
    return f"{text}\nand more"


def battery_wins_nothing(subject: Subject) -> str:
    """No reply of the exploit battery beats predicting 'nothing happens' on changed transitions."""
    tried = 0
    if isinstance(subject.transitions[0].next_observation, Frames):
        return _attacked_frames(subject)
    for seen in subject.views:
        report = run_battery(subject.world.verifier, _examples(seen))
        promise(report.passed, f"view {seen.config.view!r}: {report.summary()}")
        tried += report.tried
    return f"{tried} attacks, {len(subject.views)} views"


def _attacked_frames(subject: Subject) -> str:
    changed = [step for step in subject.transitions if step.changed][:FEW_FRAMES]
    for step in changed:
        before, truth = step.observation, step.next_observation
        assert isinstance(before, Frames) and isinstance(truth, Frames)
        allowed = _verdict(subject, step, before)
        for name, attack in FRAME_ATTACKS.items():
            value = _verdict(subject, step, attack(before, truth))
            promise(value is not None, f"{name} broke the verifier")
            promise((value or 0.0) <= (allowed or 0.0), f"{name} scores {value}, nothing happens {allowed}")
    return f"{len(changed) * len(FRAME_ATTACKS)} attacks"


def _examples(subject: Subject) -> list[Example]:
    changed = [step for step in subject.transitions if step.changed]
    chosen = changed[:: max(1, len(changed) // 25)][:25]
    return [
        Example(before=s.observation, truth=s.next_observation, others=_candidates(changed, s.next_observation))
        for s in chosen
    ]


def _candidates(steps: Sequence[Transition], truth: Observation) -> tuple[Observation, ...]:
    others = (step.next_observation for step in steps if step.next_observation != truth)
    return tuple(dict.fromkeys(others))[:CANDIDATES]


def splits_are_disjoint(subject: Subject) -> str:
    """Each split can be drawn from, and no instance is in two of them."""
    drawn = {split: instances_of(subject.world, split, range(INSTANCES_PER_SPLIT)) for split in Split}
    for split, instances in drawn.items():
        promise(all(split_of(one) is split for one in instances), f"{split} holds an instance of another split")
    shared = drawn[Split.TRAIN] & drawn[Split.TEST] | drawn[Split.TRAIN] & drawn[Split.VALIDATION]
    promise(not shared, f"{len(shared)} instances are in two splits")
    return " / ".join(f"{len(drawn[split])} {split}" for split in Split)


def instances_of(world: World, split: Split, seeds: range) -> set[str]:
    """The distinct instances that these seeds draw."""
    return {world.reset(seed=seed, options={"split": split})[1]["instance"] for seed in seeds}


def nonsense_is_harmless(subject: Subject) -> str:
    """An action that is none is an invalid step, not an exception, and changes no named-action world."""
    nonsense = ("", "no such action", "\x00\ud800", "Up || Up", "1e999", "A" * 5000)
    for text in nonsense:
        seen, _ = subject.world.reset(seed=0)
        after, reward, _, _, info = subject.world.step(text)
        promise(math.isfinite(reward), f"{text[:20]!r} earned {reward}")
        if subject.world.actions():
            promise(not info["valid"] and after == seen, f"{text[:20]!r} was taken for an action")
    return f"{len(nonsense)} replies"


def fork_is_independent(subject: Subject) -> str:
    """A fork goes its own way; given the same actions it comes to the same place."""
    world = subject.config.build()
    for seed in range(5):
        world.reset(seed=seed)
        choices = world.proposals(world.state)
        twin = world.fork()
        here = world._observe()
        taken = twin.step(choices[0])
        promise(world._observe() == here, "stepping a fork moved the original")
        promise(world.step(choices[0]) == taken, "the original then went elsewhere than its fork")
    return "5 seeds"


def random_value_is_exact(subject: Subject) -> str:
    """The exact value of the random policy agrees with playing it, within four standard errors."""
    world, seeds, plays = subject.config.build(), range(8), 40
    exact = exact_random(world, seeds, Split.TRAIN)
    if exact is None:
        return "state space too large: played only"
    policy = Random.Config().build()
    wins = [play(world, policy, seed=seed, noise_seed=k).outcome.value for seed in seeds for k in range(plays)]
    played = sum(value or 0.0 for value in wins) / len(wins)
    error = math.sqrt(max(exact * (1 - exact), 1 / len(wins)) / len(wins))
    promise(abs(played - exact) <= 4 * error, f"exact {exact:.3f}, played {played:.3f}, standard error {error:.3f}")
    return f"exact {exact:.3f}, played {played:.3f}"


def expert_beats_random(subject: Subject) -> str:
    """The expert succeeds at least as often as random play, and at least once."""
    world, seeds = subject.config.build(), range(12)
    if not world.has_expert:
        return "no expert: nothing to compare"
    rates = [
        sum(play(world, policy, seed=seed, noise_seed=seed).success for seed in seeds) / len(seeds)
        for policy in (Expert.Config().build(), Random.Config().build())
    ]
    promise(rates[0] >= rates[1] and rates[0] > 0, f"expert {rates[0]:.2f}, random {rates[1]:.2f}")
    return f"expert {rates[0]:.2f}, random {rates[1]:.2f}"


CHECKS: tuple[Callable[[Subject], str], ...] = (
    config_survives_disk,
    is_a_gymnasium_env,
    same_seed_same_episode,
    leaves_global_rngs_alone,
    noise_is_not_the_instance,
    truth_is_pure,
    views_round_trip,
    truth_scores_one,
    corrupted_truth_scores_less,
    battery_wins_nothing,
    splits_are_disjoint,
    nonsense_is_harmless,
    fork_is_independent,
    random_value_is_exact,
    expert_beats_random,
)


def check_world(config: World.Config, label: str = "") -> list[CheckResult]:
    """Run every check; a check that raises has failed, and its exception is the detail."""
    label = label or config.owner.__name__
    subject = Subject(config)
    return [_run(check, subject, label) for check in CHECKS]


def _run(check: Callable[[Subject], str], subject: Subject, label: str) -> CheckResult:
    began = time.perf_counter()
    try:
        passed, detail = True, check(subject)
    except BrokenPromiseError as broken:
        passed, detail = False, str(broken)
    except Exception as error:  # noqa: BLE001  a world may break in any way; the table must still name it
        passed, detail = False, f"{type(error).__name__}: {error}"
    seconds = time.perf_counter() - began
    return CheckResult(world=label, name=check.__name__, passed=passed, detail=detail, seconds=seconds)

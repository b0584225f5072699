"""What a Gymnasium env is like, found out by playing it at random; `terrella wrap` writes it down.

Spaces are read, and the rest is measured in a few hundred random steps.
    steps = play_at_random(env, [0, 1])
    digits_for(steps), success_rule(steps), wasted_reward(steps)
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from terrella.core.errors import ConfigError
from terrella.core.gym_world import rounded
from terrella.core.types import State, canonical_json
from terrella.verify.state import StateDiff

DRAWS = 400
"""Resets that are tried to see how many initial states there are."""
PLAYED_STEPS = 500
FEWEST_DIGITS, MOST_DIGITS = 2, 4
KNOWN_ACTIONS = {
    "Acrobot": ("push_left", "rest", "push_right"),
    "Blackjack": ("stick", "hit"),
    "CartPole": ("left", "right"),
    "CliffWalking": ("up", "right", "down", "left"),
    "FrozenLake": ("left", "down", "right", "up"),
    "FrozenLake8x8": ("left", "down", "right", "up"),
    "LunarLander": ("rest", "left_engine", "main_engine", "right_engine"),
    "MountainCar": ("left", "rest", "right"),
    "Taxi": ("south", "north", "east", "west", "pickup", "dropoff"),
}
"""Names of discrete actions, from Gymnasium's documentation."""
LASTED = "not terminated and self.played >= self.config.max_steps"

AnyEnv = gymnasium.Env[Any, Any]


# --- spaces ---------------------------------------------------------------------------------------


def named_actions(env: AnyEnv, env_id: str) -> dict[str, Any]:
    """The env's actions by name; a continuous one is reduced to a push on each axis."""
    space = env.action_space
    if isinstance(space, spaces.Discrete):
        count = int(space.n)
        names = KNOWN_ACTIONS.get(env_id.partition("-v")[0], ())
        if len(names) != count:
            names = tuple(f"action{index}" for index in range(count))
        return {name: int(space.start) + index for index, name in enumerate(names)}
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        low = [float(value) if math.isfinite(value) else -1.0 for value in space.low]
        high = [float(value) if math.isfinite(value) else 1.0 for value in space.high]
        rest = [min(max(0.0, a), b) for a, b in zip(low, high, strict=True)]
        actions = {"rest": rest}
        for axis, ends in enumerate(zip(low, high, strict=True)):
            for sign, value in zip(("minus", "plus"), ends, strict=True):
                actions[f"{sign}{axis}"] = [*rest[:axis], value, *rest[axis + 1 :]]
        return actions
    raise ConfigError(
        env_id,
        f"actions of {space} have no names",
        "write a GymWorld with `native_action` (docs/your_env.md)",
    )


def require_numbers(space: spaces.Space[Any], env_id: str) -> None:
    """Refuse what is not a list of numbers; pictures need frames and a video model."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            require_numbers(part, env_id)
    elif isinstance(space, spaces.Box) and len(space.shape) >= 2:
        raise ConfigError(
            env_id,
            f"observations are pictures {space.shape}",
            "write a GymWorld whose `show` returns Frames, and train a video model (docs/video.md)",
        )
    elif not isinstance(
        space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    ):
        raise ConfigError(
            env_id,
            f"observations of {space} are not numbers",
            "write a GymWorld whose `show` returns a Text or a State (docs/your_env.md)",
        )


def has_floats(space: spaces.Space[Any]) -> bool:
    """Whether an observation holds measured numbers, which are shown rounded."""
    if isinstance(space, spaces.Dict):
        return any(map(has_floats, space.spaces.values()))
    if isinstance(space, spaces.Tuple):
        return any(map(has_floats, space.spaces))
    return isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)


def flat_numbers(native: Any) -> list[float]:
    """All numbers of an observation."""
    if isinstance(native, dict):
        return [number for value in native.values() for number in flat_numbers(value)]
    if isinstance(native, tuple | list):
        return [number for value in native for number in flat_numbers(value)]
    return [float(number) for number in np.ravel(native)]


# --- random play ----------------------------------------------------------------------------------


class PlayedStep(NamedTuple):
    """One step of random play; observations are lists of their numbers."""

    before: list[float]
    after: list[float]
    reward: float
    ended: bool


def play_at_random(env: AnyEnv, natives: Sequence[Any]) -> list[PlayedStep]:
    rng = np.random.default_rng(0)
    before = flat_numbers(env.reset(seed=0)[0])
    steps = []
    for step in range(PLAYED_STEPS):
        native, reward, terminated, truncated, _ = env.step(
            natives[int(rng.integers(len(natives)))]
        )
        after = flat_numbers(native)
        steps.append(PlayedStep(before, after, round(float(reward), 3), terminated or truncated))
        before = flat_numbers(env.reset(seed=step)[0]) if steps[-1].ended else after
    return steps


def require_finite(steps: Sequence[PlayedStep], env_id: str) -> None:
    """Refuse NaN and infinity: a state is JSON."""
    if not all(math.isfinite(number) for step in steps for number in (*step.after, step.reward)):
        raise ConfigError(
            env_id,
            "observations or rewards hold NaN or infinity",
            "write a GymWorld whose `show` leaves them out (docs/your_env.md)",
        )


def digits_for(steps: Sequence[PlayedStep]) -> int:
    """Digits that show the usual change per step of every number that varies."""
    rows = np.abs(np.array([np.subtract(step.after, step.before) for step in steps], np.float64))
    changes = [float(np.median(column[column > 0])) for column in rows.T if column.any()]
    least = min(changes, default=1.0)
    return min(max(1 + math.ceil(-math.log10(least)), FEWEST_DIGITS), MOST_DIGITS)


def success_rule(steps: Sequence[PlayedStep]) -> tuple[str, str]:
    """A guess of what success is, as a docstring and an expression, from the rewards met."""
    rewards = {step.reward for step in steps}
    on_the_way = {step.reward for step in steps if not step.ended}
    if len(rewards) > 5:
        return "GUESS: nothing counts as a success; returns are measured all the same.", "False"
    if len(on_the_way) == 1 and max(rewards) == max(on_the_way) > 0:
        return "GUESS: steps earn the same, so lasting to `max_steps` is a success.", LASTED
    if max(rewards) <= 0 and min(rewards) < 0:
        return "GUESS: steps cost, so the end of an episode is a success.", "terminated"
    return "GUESS: an episode that ends with a positive reward is a success.", (
        "terminated and reward > 0"
    )


def wasted_reward(steps: Sequence[PlayedStep]) -> float:
    """What an action that does nothing costs: the reward of an action that is not one.

    Where every action changes something, the lowest reward. It is never above 0.
    """
    on_the_way = [step for step in steps if not step.ended]
    wasted = [step.reward for step in on_the_way if step.after == step.before]
    if wasted:
        return min(0.0, statistics.median_low(wasted))
    return min(0.0, *(step.reward for step in on_the_way or steps))


def distinct_starts(env: AnyEnv, natives: Sequence[Any], walk: int, digits: int) -> int:
    """How many different observations episodes would begin with."""
    rng = np.random.default_rng(0)
    found = set()
    for seed in range(DRAWS):
        native, _ = env.reset(seed=seed)
        for _ in range(int(rng.integers(walk + 1))):
            native, _, terminated, truncated, _ = env.step(natives[int(rng.integers(len(natives)))])
            if terminated or truncated:
                native, _ = env.reset(seed=seed)
                break
        found.add(canonical_json(rounded(native, digits=digits)))
    return len(found)


# --- what rounding hides --------------------------------------------------------------------------


def ceiling(
    env: AnyEnv, twin: AnyEnv, natives: Sequence[Any], digits: int, verifier: StateDiff
) -> float | None:
    """The share of steps that a perfect model gets right from the rounded numbers that it is shown.

    The model is a twin of the env, which begins each step in what is shown. None where the env's
    state is not what it shows.
    """
    rng = np.random.default_rng(1)
    native, _ = env.reset(seed=0)
    right = 0
    for step in range(PLAYED_STEPS):
        if not _shows_its_state(env.unwrapped, native):
            return None
        shown, action = rounded(native, digits=digits), natives[int(rng.integers(len(natives)))]
        twin.reset(seed=0)
        twin.unwrapped.state = np.array(shown, np.float64)  # type: ignore[attr-defined]
        imagined = twin.step(action)[0]
        native, _, terminated, truncated, _ = env.step(action)
        reply, truth = (State.of(rounded(seen, digits=digits)) for seen in (imagined, native))
        right += verifier.verify(reply, truth, State.of(shown)).value == 1.0
        if terminated or truncated:
            native, _ = env.reset(seed=step)
    return right / PLAYED_STEPS


def _shows_its_state(inner: Any, native: Any) -> bool:
    state = vars(inner).get("state")
    if not isinstance(native, np.ndarray) or not isinstance(state, np.ndarray | tuple | list):
        return False
    return np.shape(state) == native.shape and np.allclose(np.asarray(state, np.float64), native)

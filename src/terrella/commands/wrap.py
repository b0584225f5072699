"""`terrella wrap ENV`: write a world around a Gymnasium env, and a recipe for a model of it.

The env is built and played at random, to see what its observations, actions, rewards and initial
states look like. What the file guesses it says; edit it.
    wrap("CliffWalking-v1", Path.cwd())   # writes cliff_walking.py
"""

from __future__ import annotations

import importlib
import keyword
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from terrella.core.errors import ConfigError
from terrella.core.gym_world import rounded
from terrella.core.types import canonical_json

DRAWS = 400
"""Resets that are tried to see how many initial states there are."""
ENOUGH = 300
"""Different ones among them with which a certificate's hundred per split can be expected."""
WALK = 12
PLAYED_STEPS = 500
MOST_STEPS = 50
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

TEMPLATE = '''"""{env_id} as a world, written by `terrella wrap`. Lines with GUESS are worth a look.

    terrella check {module}
    terrella train-world-model {module}.{module}_model --out runs/{module}
    terrella certify runs/{module} {module}
    terrella plan runs/{module} {module}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

{imports}from terrella import GymWorld, Random, State, StateDiff
from terrella.core.gym_world import rounded
from terrella.engines.configs import SftConfig
from terrella.pipelines.world_model import TrainWorldModel
{native}

class {title}(GymWorld):
    """{env_id}. GUESS: say in a line what it is about."""

    rules = "{env_id}."  # GUESS: the rules, as a model is told them
    env_id = "{env_id}"
    action_names = {actions}
    verifier = StateDiff.Config().build()

    @dataclass(frozen=True, kw_only=True)
    class Config(GymWorld.Config):
        """{starts}"""

        max_steps: int = {max_steps}
        walk: int = {walk}
        split_by: Literal["start", "path"] = "{split_by}"

    def show(self, native: Any) -> State:
        """What a model sees: numbers with {digits} digits. GUESS: names help."""
        return State.of(rounded(native, digits={digits}))
{native_action}
    def succeeded(self, reward: float, terminated: bool, info: Mapping[str, Any]) -> bool:
        """{success_told}"""
        return {success}


def {module}_model() -> TrainWorldModel.Config:
    """A model with 0.3M parameters, fitted to 20,000 random steps."""
    fit = SftConfig(epochs=4, batch_size=32, learning_rate=2e-3, warmup_steps=50, pack_tokens=512)
    return TrainWorldModel.Config(
        world={title}.Config(), policy=Random.Config(), transitions=20_000, sft=fit
    )
'''


@dataclass(frozen=True, kw_only=True)
class Wrapped:
    """What was written, and what was found out."""

    path: Path
    module: str
    starts: str


def wrap(env_id: str, folder: Path, name: str = "") -> Wrapped:
    """Write `folder/NAME.py`; refuse what a text model cannot be shown or asked."""
    module = name or module_name(env_id)
    if not module.isidentifier() or keyword.iskeyword(module) or module != module.lower():
        raise ConfigError(
            module, "cannot be the name of a module", "use lower_case_with_underscores"
        )
    path = folder / f"{module}.py"
    if path.exists():
        raise ConfigError(str(path), "exists already", "choose another name with --name")
    env = make_env(env_id)
    try:
        text, starts = _write(env, env_id.rpartition(":")[2], module, env_id.rpartition(":")[0])
    finally:
        env.close()
    path.write_text(text, "utf-8")
    return Wrapped(path=path, module=module, starts=starts)


def module_name(env_id: str) -> str:
    """`CliffWalking-v1` becomes `cliff_walking`."""
    bare = env_id.rpartition(":")[2].rpartition("/")[2].partition("-v")[0]
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", bare)
    return re.sub(r"\W", "_", words).lower()


def make_env(env_id: str) -> gymnasium.Env[Any, Any]:
    """The env, without a time limit of its own; `module:Env-v0` imports the module first."""
    module = env_id.rpartition(":")[0]
    try:
        if module:
            importlib.import_module(module)
        return gymnasium.make(env_id.rpartition(":")[2], max_episode_steps=-1)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(env_id, str(error), "install what it names") from error
    except ModuleNotFoundError as error:
        raise ConfigError(env_id, str(error), f"pip install {error.name}") from error
    except gymnasium.error.Error as error:
        remedy = "name one that gymnasium.make takes; MODULE:ENV imports the module that has it"
        raise ConfigError(env_id, str(error), remedy) from error


# --- what the env is like -------------------------------------------------------------------------


def named_actions(env: gymnasium.Env[Any, Any], env_id: str) -> dict[str, Any]:
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


def require_numbers(env: gymnasium.Env[Any, Any], env_id: str) -> None:
    """Refuse pictures: they need frames and a video model."""
    space = env.observation_space
    if isinstance(space, spaces.Box) and len(space.shape) >= 2:
        raise ConfigError(
            env_id,
            f"observations are pictures {space.shape}",
            "write a GymWorld whose `show` returns Frames, and train a video model (docs/video.md)",
        )


def digits_for(observations: list[Any]) -> int:
    """Digits with which every number that varies can be told from itself a moment later."""
    rows = np.array([flat_numbers(native) for native in observations], np.float64)
    spreads = rows.std(axis=0)
    least = min((float(spread) for spread in spreads if spread > 0), default=1.0)
    return min(max(1 + math.ceil(-math.log10(least)), FEWEST_DIGITS), MOST_DIGITS)


def flat_numbers(native: Any) -> list[float]:
    """All numbers of an observation."""
    if isinstance(native, dict):
        return [number for value in native.values() for number in flat_numbers(value)]
    if isinstance(native, tuple | list):
        return [number for value in native for number in flat_numbers(value)]
    return [float(number) for number in np.ravel(native)]


def distinct_starts(
    env: gymnasium.Env[Any, Any], natives: list[Any], walk: int, digits: int
) -> int:
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


@dataclass(frozen=True)
class RandomPlay:
    """What random play met."""

    observations: list[Any]
    rewards: frozenset[float]


def play_at_random(env: gymnasium.Env[Any, Any], natives: list[Any]) -> RandomPlay:
    rng = np.random.default_rng(0)
    observations: list[Any] = [env.reset(seed=0)[0]]
    rewards: set[float] = set()
    for step in range(PLAYED_STEPS):
        native, reward, terminated, truncated, _ = env.step(
            natives[int(rng.integers(len(natives)))]
        )
        observations.append(native)
        rewards.add(round(float(reward), 3))
        if terminated or truncated:
            env.reset(seed=step)
    return RandomPlay(observations, frozenset(rewards))


def success_rule(rewards: frozenset[float]) -> tuple[str, str]:
    """A guess of what success is, as a docstring and an expression, from the rewards met."""
    if len(rewards) > 5:
        return "GUESS: nothing counts as a success; returns are measured all the same.", "False"
    if rewards == {max(rewards)} and max(rewards) > 0:
        told = "GUESS: every step earns the same, so lasting to `max_steps` is a success."
        return told, "not terminated and self.steps + 1 >= self.config.max_steps"
    if max(rewards) <= 0 and min(rewards) < 0:
        return "GUESS: steps cost, so the end of an episode is a success.", "terminated"
    return "GUESS: an episode that ends with a positive reward is a success.", (
        "terminated and reward > 0"
    )


# --- the file -------------------------------------------------------------------------------------


def _write(
    env: gymnasium.Env[Any, Any], env_id: str, module: str, imported: str
) -> tuple[str, str]:
    require_numbers(env, env_id)
    actions = named_actions(env, env_id)
    discrete = isinstance(env.action_space, spaces.Discrete)
    natives = [value if discrete else np.array(value, np.float32) for value in actions.values()]
    played = play_at_random(env, natives)
    digits = digits_for(played.observations)
    walk, split_by, starts = _start_mode(env, natives, digits)
    success_told, success = success_rule(played.rewards)
    limit = env.spec.max_episode_steps if env.spec else None
    indices = list(range(len(actions)))
    plain_indices = discrete and list(actions.values()) == indices
    text = TEMPLATE.format(
        env_id=env_id,
        module=module,
        title="".join(part.capitalize() for part in module.split("_")),
        imports=_imports(imported, discrete),
        actions=_tuple(actions) if plain_indices else "tuple(ACTIONS)",
        native="" if plain_indices else f"\nACTIONS = {_mapping(actions)}\n",
        native_action="" if plain_indices else _native_action(discrete),
        max_steps=min(limit if limit and limit > 0 else MOST_STEPS, MOST_STEPS),
        starts=starts,
        walk=walk,
        split_by=split_by,
        success=success,
        success_told=success_told,
        digits=digits,
    )
    return text, starts


def _start_mode(
    env: gymnasium.Env[Any, Any], natives: list[Any], digits: int
) -> tuple[int, str, str]:
    """The least change to the env with which there are enough instances."""
    drawn = distinct_starts(env, natives, 0, digits)
    if drawn >= ENOUGH:
        return 0, "start", f"{drawn} of {DRAWS} resets differ: enough for a certificate."
    walked = distinct_starts(env, natives, WALK, digits)
    if walked >= ENOUGH:
        told = f"{drawn} of {DRAWS} resets differ; after a random walk, {walked}."
        return WALK, "start", told
    told = f"Few starts ({walked} of {DRAWS}): split by path, a weaker certificate that says so."
    return WALK, "path", told


def _imports(imported: str, discrete: bool) -> str:
    lines = [] if discrete else ["import numpy as np", ""]
    if imported:
        lines = [f"import {imported}  # registers the env", *lines]
    return "".join(f"{line}\n" for line in lines)


def _tuple(names: dict[str, Any]) -> str:
    return f"({', '.join(f'{chr(34)}{name}{chr(34)}' for name in names)},)"


def _mapping(actions: dict[str, Any]) -> str:
    lines = [f'    "{name}": {value},' for name, value in actions.items()]
    return "\n".join(["{", *lines, "}"])


def _native_action(discrete: bool) -> str:
    value = "ACTIONS[action]" if discrete else "np.array(ACTIONS[action], np.float32)"
    told = "GUESS: a push on one axis at a time; add the combinations that matter."
    return f'''
    def native_action(self, action: str) -> Any:
        """{told}"""
        return {value}
'''

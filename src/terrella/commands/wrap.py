"""`terrella wrap ENV`: write a world around a Gymnasium env, and a recipe for a model of it.

The env is built and played at random, to see what its observations, actions, rewards and initial
states look like. What the file guesses it says; edit it.
    wrap("CliffWalking-v1", Path.cwd())   # writes cliff_walking.py
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from terrella.commands.env_facts import (
    DRAWS,
    ceiling,
    digits_for,
    distinct_starts,
    has_floats,
    named_actions,
    play_at_random,
    require_finite,
    require_numbers,
    success_rule,
    wasted_reward,
)
from terrella.core.errors import ConfigError, TerrellaError
from terrella.core.local_modules import import_local
from terrella.verify.state import StateDiff
from terrella.worlds import taken_name

ENOUGH = 300
"""Different initial states with which a certificate's hundred per split can be expected."""
WALK = 12
MOST_STEPS = 50
LOW_CEILING = 0.9
"""Below this a model can hardly be certified, however well it is trained."""

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
    verifier = {verifier}.build(){verifier_told}
    invalid_reward = {invalid_reward}  # GUESS: of text that is no action, like a wasted step

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
    fit = SftConfig(epochs=4, batch_size=16, learning_rate=1e-3, warmup_steps=50, pack_tokens=512)
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
    warning: str
    """Why a model of it can hardly be certified; usually nothing."""
    resets: int
    """Of the env, for all of this."""
    steps: int


class Counted(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Counts what the env is asked for: its steps may be expensive."""

    resets = 0
    steps = 0

    def reset(self, **more: Any) -> tuple[Any, dict[str, Any]]:
        """Reset the env, and count it."""
        self.resets += 1
        return self.env.reset(**more)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step of the env, and count it."""
        self.steps += 1
        return self.env.step(action)


def wrap(env_id: str, folder: Path, name: str = "") -> Wrapped:
    """Write `folder/NAME.py`; refuse what a text model cannot be shown or asked."""
    module = _free_name(env_id, name)
    path = folder / f"{module}.py"
    if path.exists():
        raise ConfigError(str(path), "exists already", "choose another name with --name")
    env, twin = make_env(env_id), make_env(env_id)
    try:
        text, starts, warning = _write(env, twin, env_id, module)
    except TerrellaError:
        raise
    except Exception as error:  # the env is the user's: it may raise anything
        raise ConfigError(
            env_id,
            f"playing it at random raised {type(error).__name__}: {error}",
            "mend the env, or write a GymWorld by hand (docs/your_env.md)",
        ) from error
    finally:
        env.close()
        twin.close()
    path.write_text(text, "utf-8")
    return Wrapped(
        path=path,
        module=module,
        starts=starts,
        warning=warning,
        resets=env.resets + twin.resets,
        steps=env.steps + twin.steps,
    )


def _free_name(env_id: str, name: str) -> str:
    """The module's name; one that `find_world` gives to another world would never be used."""
    module = name or module_name(env_id)
    if not name and taken_name(module):
        module = f"{module}_gym"
    if not module.isidentifier() or keyword.iskeyword(module) or module != module.lower():
        raise ConfigError(
            module, "cannot be the name of a module", "use lower_case_with_underscores"
        )
    if taken_name(module):
        raise ConfigError(module, taken_name(module), "choose another name with --name")
    return module


def module_name(env_id: str) -> str:
    """`CliffWalking-v1` becomes `cliff_walking`."""
    bare = env_id.rpartition(":")[2].rpartition("/")[2].partition("-v")[0]
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", bare)
    return re.sub(r"\W", "_", words).lower()


def make_env(env_id: str) -> Counted:
    """The env, without a time limit of its own; `module:Env-v0` imports the module first."""
    module = env_id.rpartition(":")[0]
    try:
        if module and import_local(module) is None:
            raise ConfigError(
                env_id,
                f"no module {module} in this folder or installed",
                "run this in the folder of the module, or install its package",
            )
        return Counted(gymnasium.make(env_id.rpartition(":")[2], max_episode_steps=-1))
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(env_id, str(error), "install what it names") from error
    except ModuleNotFoundError as error:
        raise ConfigError(env_id, str(error), f"install {error.name}, which it imports") from error
    except gymnasium.error.Error as error:
        remedy = "name one that gymnasium.make takes; MODULE:ENV imports the module that has it"
        raise ConfigError(env_id, str(error), remedy) from error


# --- the file -------------------------------------------------------------------------------------


def _write(
    env: gymnasium.Env[Any, Any], twin: gymnasium.Env[Any, Any], full_id: str, module: str
) -> tuple[str, str, str]:
    imported, _, env_id = full_id.rpartition(":")
    require_numbers(env.observation_space, env_id)
    actions = named_actions(env, env_id)
    discrete = isinstance(env.action_space, spaces.Discrete)
    natives = [value if discrete else np.array(value, np.float32) for value in actions.values()]
    played = play_at_random(env, natives)
    require_finite(played, env_id)
    digits = digits_for(played)
    walk, split_by, starts = _start_mode(env, natives, digits)
    success_told, success = success_rule(played)
    tolerance = 10.0**-digits if has_floats(env.observation_space) else 0.0
    limit = env.spec.max_episode_steps if env.spec else None
    plain_indices = discrete and list(actions.values()) == list(range(len(actions)))
    verifier = StateDiff.Config(tolerance=tolerance)
    highest = ceiling(env, twin, natives, digits, verifier.build()) if tolerance else None
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
        verifier=f"StateDiff.Config({f'tolerance={tolerance}' if tolerance else ''})",
        verifier_told="" if highest is None else f"  # a perfect model: {highest:.3f}",
        invalid_reward=wasted_reward(played),
    )
    return text, starts, _ceiling_warning(highest)


def _ceiling_warning(highest: float | None) -> str:
    if highest is None or highest >= LOW_CEILING:
        return ""
    return (
        f"rounded numbers hide what comes next: a perfect model would be right in {highest:.2f} of "
        "the steps, too few for a certificate; show more in `show`, or raise the tolerance"
    )


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

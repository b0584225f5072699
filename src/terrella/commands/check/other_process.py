"""The same episodes in a process of their own, where sets and dicts of text have another order.

A world that takes something from a set or from `hash()` plays otherwise there.
    digest(config, range(5)) == digest_elsewhere(config, range(5))
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from terrella.commands.check.subject import PropertyError
from terrella.core.config import dump, rebuild
from terrella.core.episode import play
from terrella.core.world import World
from terrella.policies.basic import Random

SECONDS = 300
CODE = "from terrella.commands.check.other_process import main; main()"


def digest(config: World.Config, seeds: Iterable[int]) -> str:
    """A hash of all that happens in random play with these seeds."""
    world, policy, found = config.build(), Random.Config().build(), hashlib.sha256()
    for seed in seeds:
        episode = play(world, policy, seed=seed, noise_seed=seed)
        found.update(repr((episode.instance, episode.first, episode.stop)).encode())
        for step in episode.transitions:
            shown = step.action, step.next_observation, step.reward, step.info.get("success")
            found.update(repr(shown).encode())
    return found.hexdigest()


def why_not_elsewhere(config: World.Config) -> str:
    """Why another process cannot build this world; nothing if it can."""
    if config.owner.reaches:
        return f"it starts {config.owner.reaches}"
    module, _, name = dump(config)["class"].partition(":")
    if module == "__main__" or "<locals>" in name:
        return "its class is not in a module that can be imported"
    return ""


def digest_elsewhere(config: World.Config, seeds: range) -> str:
    """`digest` in a new process with another seed of Python's hashes."""
    other = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"
    asked = {"path": sys.path, "config": dump(config), "seeds": [*seeds]}
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": other},
        timeout=SECONDS,
    )
    if done.returncode:
        told = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise PropertyError(f"it cannot be played in another process: {told[:200]}")
    return done.stdout.strip().splitlines()[-1]


def main() -> None:
    """Read the question from stdin and print the digest."""
    asked = json.loads(sys.stdin.read())
    sys.path[:] = asked["path"]
    for module in _modules(asked["config"]):
        importlib.import_module(module)
    sys.stdout.write(f"{digest(rebuild(asked['config']), asked['seeds'])}\n")


def _modules(config: Any) -> set[str]:
    """The modules of all classes that a dumped config names."""
    if isinstance(config, list):
        return {module for item in config for module in _modules(item)}
    if not isinstance(config, dict):
        return set()
    own = {config["class"].partition(":")[0]} if "class" in config else set()
    return own | _modules([value for key, value in config.items() if key != "class"])

"""No setting of a trainer is ignored without a word: an engine reads it, refuses it, or is listed.

What is checked is that an engine's modules read the field; what it does there has tests of its own.
"""

import ast
from dataclasses import fields
from pathlib import Path

import pytest

from terrella.engines.configs import LearnerConfig, RlvrConfig, SftConfig

SOURCE = Path(__file__).parents[3] / "src" / "terrella"
SHARED = ("algos", "engines/configs.py", "engines/trl/rlvr_batch.py")
"""What all engines use: credit, filters and losses, checks, episodes as examples."""
ENDPOINT = "memory and precision are the endpoint's"
CRITIC = "of a critic; the endpoint has none, and algorithm=ppo is refused"
UNCONCERNED = {
    "trl": {},
    "verl": {
        "share_prefix": "verl's batches have no shared prompts",
        "hang_limit": "episodes are played in verl's own processes, which no watchdog watches",
    },
    "tinker": {
        "pack_tokens": ENDPOINT,
        "bf16": ENDPOINT,
        "gradient_checkpointing": ENDPOINT,
        "attention": ENDPOINT,
        "share_prefix": ENDPOINT,
        "critic": CRITIC,
        "value_coefficient": CRITIC,
        "value_clip": CRITIC,
        "whiten": CRITIC,
        "critic_learning_rate": CRITIC,
    },
}


def names_read(*places: str) -> set[str]:
    """Attributes that modules read."""
    found = set()
    for place in places:
        path = SOURCE / place
        for file in [path] if path.is_file() else path.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.Attribute):
                    found.add(node.attr)
    return found


@pytest.mark.parametrize("engine", UNCONCERNED)
@pytest.mark.parametrize("settings", [RlvrConfig, SftConfig])
def test_every_setting_is_read_or_listed(settings, engine):
    read = names_read(f"engines/{engine}", *(SHARED if settings is RlvrConfig else ()))
    ignored = {each.name for each in fields(settings)} - read
    assert ignored <= UNCONCERNED[engine].keys()


@pytest.mark.parametrize("engine", ["trl", "verl"])
def test_every_setting_of_a_learner_is_read_or_listed(engine):
    """An endpoint has no learner, and refuses its settings as a whole."""
    ignored = {each.name for each in fields(LearnerConfig)} - names_read(f"engines/{engine}")
    assert ignored <= UNCONCERNED[engine].keys()

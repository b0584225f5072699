"""Small chat models: a template over characters, untrained or taught to play the counter."""

from pathlib import Path

import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL

from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.models.presets import load_model
from terrella.pipelines.rlvr import Rlvr
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<act>{{ message['content'] }}<end>"
    "{% else %}<obs>{{ message['content'] }}<end>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<act>{% endif %}"
)
WORLD = Counter.Config(max_steps=6, away=4)
_world = WORLD.build()
_world.reset(seed=0)
WORDS = (
    "<answer>",
    "</answer>",
    "up",
    "down",
    "State:",
    "You have ",
    " actions left.",
    "Bring the value to the goal. Each action changes the value by one.",
    "The state is a JSON object.",
    "Actions: ",
    "Reply as: <think> your thoughts </think>",
    " your action ",
    *_world.vocabulary(),
)
"""Strings with a token of their own: prompts of characters would be long."""


def plain_folder(folder: Path, preset: str = "tiny-0.3m") -> Path:
    """A Hugging Face folder that no command of ours wrote: weights, tokenizer, chat template."""
    model, tokenizer = load_model(preset, vocabulary=tuple(dict.fromkeys(WORDS)))
    tokenizer.chat_template = TEMPLATE
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def chat_agent(folder: Path, preset: str = "tiny-0.3m", examples: int = 384) -> Path:
    """The folder of a run whose model plays the counter in a chat template, not well."""
    config = Rlvr.Config(
        world=WORLD,
        model=str(plain_folder(folder.with_name("start"), preset)),
        warmup_examples=examples,
        correct_fraction=0.4,
        warmup=SftConfig(batch_size=16, learning_rate=3e-3, warmup_steps=4),
        rlvr=RlvrConfig(steps=1, groups=2, group_size=4, learning_rate=1e-6),
        turn_tokens=12,
        max_turns=6,
        evaluate_on=4,
        out=folder,
    )
    Rlvr(config).run(SilentProgress())
    return folder

"""Refuses a limit of tokens into which no right reply fits: every one would be cut off.

What is checked are replies in the codec's own words, without a thought, to a few train tasks. A
model may need more tokens, so a limit that passes may still be low.
    limit = TurnLimit(world=world, codec=codec, ask="action", tokens=6, seed=0)
    check_turn_limits("smollm2", [limit], here=True)
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from terrella.codecs.choose import CodecConfig
from terrella.codecs.tagged import TAG_TOKENS
from terrella.core.episode import EpisodeRun
from terrella.core.errors import ConfigError, TerrellaError
from terrella.core.protocols import Codec
from terrella.core.seeds import instance_seed
from terrella.core.types import Split
from terrella.core.world import StateWorld, World
from terrella.engines.engine import load_tokenizer
from terrella.models.names import BUNDLED, TINY
from terrella.rollout.tasks import Ask, tasks_for

TASKS = 4
"""Train tasks that are looked at; one into whose limit a right reply fits is enough."""
ACTIONS = 8
"""Actions of a task that are looked at; in most worlds all are about as long."""


@dataclass(frozen=True, kw_only=True)
class TurnLimit:
    """How long a reply in a world may be."""

    world: World.Config
    codec: CodecConfig
    ask: Ask
    tokens: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A right reply: how long it is, and whether it is still read as such when it is cut off."""

    tokens: int
    fits: bool


def limits_of(
    config: Any,
    asked: Iterable[tuple[World.Config, CodecConfig]],
    ask: Ask,
    *,
    kind: type[World] = StateWorld,
) -> list[TurnLimit]:
    """The limits of a pipeline in its worlds of a kind; those of other kinds may open a browser."""
    return [
        TurnLimit(world=world, codec=codec, ask=ask, tokens=config.turn_tokens, seed=config.seed)
        for world, codec in asked
        if issubclass(world.real.owner, kind)
    ]


def check_turn_limits(model: str, limits: Sequence[TurnLimit], *, here: bool) -> None:
    """Refuse a limit into which no right reply of this model fits.

    `here` checks a model whose tokenizer can be read at once, which a dry run does as well. Without
    it, only one whose tokenizer would be downloaded or made first is checked.
    """
    if not limits or _is_here(model) is not here:
        return
    tokenizer = _tokenizer(model, limits)
    for limit in limits:
        replies = list(_replies(limit, limit.codec.make(tokenizer)))
        if replies and not any(reply.fits for reply in replies):
            shortest = min(reply.tokens for reply in replies)
            raise ConfigError(
                "turn_tokens",
                f"{limit.tokens}, and a right reply in {limit.world.owner.name} has {shortest} "
                f"tokens or more with the model {model}: it would be cut off",
                f"set turn_tokens={shortest} or more",
            )


def _replies(limit: TurnLimit, codec: Codec) -> Iterator[Reply]:
    """Right replies to a few train tasks; none where the world is not on this machine."""
    try:
        if limit.ask == "observation":
            yield from _predictions(limit, codec)
        else:
            yield from _actions(limit, codec)
    except (TerrellaError, ImportError):  # the run says what the world lacks
        return


def _predictions(limit: TurnLimit, codec: Codec) -> Iterator[Reply]:
    tasks = tasks_for("observation", limit.world.real, split=Split.TRAIN, seed=limit.seed)
    for number in range(TASKS):
        step = tasks(number).transition
        if step is None:
            continue
        whole = codec.answer_observation(step.next_observation)
        read = [
            codec.read_observation(reply, step.observation)
            for reply in (whole, whole[: limit.tokens])
        ]
        yield Reply(tokens=len(whole), fits=read[0] == read[1])


def _actions(limit: TurnLimit, codec: Codec) -> Iterator[Reply]:
    world: World = limit.world.real.build()
    with contextlib.closing(world):
        for number in range(TASKS):
            run = EpisodeRun(world, seed=instance_seed(limit.seed, number), split=Split.TRAIN)
            known = tuple(run.moment.proposals())[:ACTIONS]
            for action in known or (run.moment.expert(),):
                whole = codec.answer_action([action])
                read = [codec.read_actions(reply) for reply in (whole, whole[: limit.tokens])]
                yield Reply(tokens=len(whole), fits=read[0] == read[1])


# --- tokenizers -----------------------------------------------------------------------------------


def _tokenizer(model: str, limits: Iterable[TurnLimit]) -> Any:
    if model not in TINY:
        return _loaded(model)
    from terrella.models.characters import character_tokenizer

    words = [word for limit in limits for word in _words(limit.world.real)]
    return character_tokenizer((*dict.fromkeys(words), *TAG_TOKENS))


@functools.cache
def _loaded(model: str) -> Any:
    return load_tokenizer(model)


def _words(config: World.Config) -> tuple[str, ...]:
    try:
        world: World = config.build()
        with contextlib.closing(world):
            world.reset(seed=0)
            return tuple(world.vocabulary())
    except (TerrellaError, ImportError):  # as in `_replies`
        return ()


def _is_here(model: str) -> bool:
    """Whether a tokenizer can be read at once. One from scratch needs transformers to be made."""
    if model in TINY:
        return False
    if model in BUNDLED:
        from terrella.models.bundled import is_converted

        return is_converted(model)
    if Path(model).is_dir():
        return True
    if importlib.util.find_spec("huggingface_hub") is None:
        return False
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(model, "tokenizer_config.json"), str)

"""From a pipeline's config to the phases of its memory plan.

A phase is found by the type of its settings, wherever they are in the config, so that a new
pipeline is planned without an edit here. Lengths are the most that the config allows: every reply
as long as it may be, every episode to its last turn. Prompts are written as the run writes them.
    for phase in phases(config): ...
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any

from terrella.codecs.chat import Message, chat_messages, prediction_messages, state_message
from terrella.codecs.choose import codec_for
from terrella.codecs.frames import JOINT_BINS
from terrella.core.config import Configurable
from terrella.core.episode import EpisodeRun
from terrella.core.errors import TerrellaError
from terrella.core.seeds import instance_seed
from terrella.core.types import Situation, Split, show_text
from terrella.core.world import World
from terrella.engines.configs import LARGEST_MODEL, LearnerConfig, RlvrConfig, VerlConfig
from terrella.engines.frames.configs import TokenizerTrainConfig
from terrella.engines.memory.model_spec import ModelSpec, llama_spec, model_spec, parameters
from terrella.engines.memory.plan import Phase, Served
from terrella.engines.memory.steps import ExampleShape
from terrella.engines.training_parts import Settings, settings_of, used_settings
from terrella.models.characters import character_tokenizer
from terrella.models.names import TINY
from terrella.pipelines.sft.pipeline import Sft
from terrella.pipelines.webrl.settings import WebRlSettings
from terrella.policies.basic import Random
from terrella.rollout.rollout import Rollout
from terrella.rollout.tasks import Ask, tasks_for

CHARACTERS_PER_TOKEN = 3.0
"""Of a subword tokenizer on states and rules. English has four, drawings have two. Assumed."""
UNKNOWN_PROMPT = 4096
"""Tokens of a prompt where the world's data are not on this machine, or are recorded. Assumed."""
UNKNOWN_REPLY = 64
"""Tokens of an answer that is only imitated. Assumed."""
TEMPLATE_TOKENS = 8
"""Tokens of a chat template around a turn of the world. Assumed."""
ASKED_TASKS = 8
"""Tasks whose prompts and turns are measured; the longest counts."""
EVALUATED_ROWS = 512
OWN_SHARE = 0.9
"""Of a GPU's memory that vLLM takes on GPUs of its own, unless `vllm.memory` says otherwise."""
ACTION_NUMBERS = 13
"""Numbers in an action of RT-1, the widest that is imported."""


def phases(config: Configurable.Config) -> list[Phase]:
    """Every part of a pipeline that holds a model."""
    if hasattr(config, "arms"):
        return _merged(phase for arm in config.arms.values() for phase in phases(arm))
    lengths = _lengths(config)
    if lengths is None:
        return []
    model, example = lengths
    made = [
        _phase(config, path, settings, model, example) for path, settings in used_settings(config)
    ]
    if isinstance(config, Sft.Config):  # it samples nothing
        return made
    return [*made, _evaluation(config, model, example)]


def _merged(found: Iterable[Phase]) -> list[Phase]:
    """Phases of several arms; of those that differ only in their lengths, the longest."""
    longest: dict[Phase, Phase] = {}
    for phase in found:
        key = dataclasses.replace(phase, example=ExampleShape(prompt=0, completion=0))
        known = longest.get(key, phase).example
        most = ExampleShape(
            prompt=max(known.prompt, phase.example.prompt),
            completion=max(known.completion, phase.example.completion),
        )
        longest[key] = dataclasses.replace(phase, example=most)
    return list(longest.values())


# --- phases ---------------------------------------------------------------------------------------


def _phase(
    config: Any, path: str, settings: Settings, model: ModelSpec, example: ExampleShape
) -> Phase:
    if isinstance(settings, TokenizerTrainConfig):
        return Phase(name=path, model=None, settings=settings, example=example)
    if isinstance(settings, RlvrConfig):
        return Phase(
            name=path,
            model=model,
            settings=settings,
            example=example,
            members=settings.group_size,
            rows=settings.groups * settings.group_size,
            server=_server(config, model),
            engine=getattr(config, "engine", "trl"),
        )
    # SFT on records: a state and some of its actions stay together. A teacher's replies are alone.
    alone = getattr(config, "teacher", None) is not None
    beside = _is_served_before(config, path, settings)
    return Phase(
        name=path,
        model=model,
        settings=settings,
        example=example,
        members=1 if alone else getattr(config, "actions", 1),
        rows=_evaluated_rows(config) if beside else 0,
        server=_server(config, model) if beside else None,
        engine=getattr(config, "engine", "trl"),
    )


def _is_served_before(config: Any, path: str, settings: Settings) -> bool:
    """Whether the model was sampled before this part begins: a server stays until the run ends."""
    if isinstance(settings, LearnerConfig):
        return getattr(config, "learners", None) is not None
    if path == "self_play.sft":
        return bool(config.validation.instances) or config.self_play.actions == "model"
    return getattr(config, "sft_rounds", 1) > 1 or getattr(config, "score_before", False)


def _evaluation(config: Any, model: ModelSpec, example: ExampleShape) -> Phase:
    return Phase(
        name="evaluate",
        model=model,
        settings=None,
        example=example,
        rows=_evaluated_rows(config),
        server=_server(config, model),
    )


def _evaluated_rows(config: Any) -> int:
    at_once = getattr(config, "slots", EVALUATED_ROWS)  # of a web agent: episodes in flight
    return min(EVALUATED_ROWS, getattr(config, "evaluate_on", at_once))


def _server(config: Any, model: ModelSpec) -> Served | None:
    if getattr(config, "engine", "trl") == "verl":
        verl = config.verl
        return Served(share=verl.server_memory, tensor_parallel=verl.tensor_parallel, sleeps=True)
    sampler = getattr(config, "sampler", "local")
    if sampler == "local" or (sampler == "auto" and parameters(model) <= LARGEST_MODEL):
        return None
    # As the engine starts it beside a trainer (`engines.engine.make_engine`).
    trained = getattr(config, "rlvr", None) or getattr(config, "learners", None)
    bf16 = trained is None or trained.bf16
    vllm = config.vllm.beside_trainer(bf16=bf16, temperature=1.0)
    return Served(
        share=vllm.memory or OWN_SHARE,
        bf16=vllm.dtype != "float32",
        tensor_parallel=vllm.tensor_parallel,
        data_parallel=vllm.data_parallel,
        # A server on GPUs of its own takes nothing from the trainer's.
        sleeps=vllm.sleep or bool(vllm.devices),
    )


# --- lengths --------------------------------------------------------------------------------------


def _lengths(config: Any) -> tuple[ModelSpec, ExampleShape] | None:
    """The model and its longest example; None for a pipeline without a language model."""
    if hasattr(config, "videos"):
        return _video_lengths(config)
    if isinstance(config, Sft.Config):
        return _sft_lengths(config)
    name = getattr(config, "model", None)
    if not isinstance(name, str) or not any(True for _ in settings_of(config)):
        return None
    if name not in TINY and "/" not in name and not _is_model(name):
        return None
    if isinstance(config, WebRlSettings):
        return _web_agent_lengths(config)
    prompt, vocabulary = _prompt(config, name)
    if _has_turn_prompts(config):
        prompt = max(prompt, config.context_tokens - config.turn_tokens)
    return model_spec(name, vocabulary=vocabulary), ExampleShape(
        prompt=prompt, completion=_completion(config, name)
    )


def _sft_lengths(config: Sft.Config) -> tuple[ModelSpec, ExampleShape]:
    """Examples of a data set: as long as they may be, half of it learnt. The half is assumed."""
    learnt = config.max_tokens // 2
    model = model_spec(config.model, vocabulary=len(character_tokenizer()))
    return model, ExampleShape(prompt=config.max_tokens - learnt, completion=learnt)


def _web_agent_lengths(config: WebRlSettings) -> tuple[ModelSpec, ExampleShape]:
    """Each turn is an example: a prompt as long as it may be, and one action."""
    prompt = config.agent.codec.prompt_tokens or UNKNOWN_PROMPT
    model = model_spec(config.model, vocabulary=len(character_tokenizer()))
    return model, ExampleShape(prompt=prompt, completion=config.agent.turn_tokens)


def _is_model(name: str) -> bool:
    """Some arms are baselines that need no model, such as `nearest_neighbour`."""
    from terrella.models.names import check_model_name

    try:
        check_model_name(name)
    except TerrellaError:
        return False
    return True


def _has_turn_prompts(config: Any) -> bool:
    """Whether each turn has a prompt of its own, so that an example is one turn."""
    return getattr(config, "history", "sampled") != "sampled"


def _completion(config: Any, name: str) -> int:
    """Tokens after the prompt, the world's included: an episode may be no longer."""
    turns = getattr(config, "max_turns", 1)
    if getattr(config, "ask", "") == "observation" or _has_turn_prompts(config):
        turns = 1
    reply = int(getattr(config, "turn_tokens", UNKNOWN_REPLY))
    most = getattr(config, "episode_tokens", max(Rollout.Config.episode_tokens, reply))
    written = turns * reply
    if turns == 1 or written >= most:
        return min(int(most), written)
    return min(int(most), written + (turns - 1) * _world_turn(config, name))


def _world_turn(config: Any, name: str) -> int:
    """Tokens of the longest turn of the world in a few random episodes."""
    try:
        world: World = config.world.build()
        situations = list(_random_situations(config, world))
        vocabulary = world.vocabulary()
    except (TerrellaError, ImportError):  # as in `_prompt`
        return UNKNOWN_PROMPT
    if name in TINY:
        codec = codec_for(character_tokenizer(vocabulary))
        return max((len(codec.world_turn(each)) for each in situations), default=0)
    texts = [
        state_message(show_text(each.observation), each.steps_left)["content"]
        for each in situations
    ]
    longest = max(map(len, texts), default=0)
    return math.ceil(longest / CHARACTERS_PER_TOKEN) + TEMPLATE_TOKENS


def _random_situations(config: Any, world: World) -> Iterator[Situation]:
    policy = Random.Config().build()
    for number in range(ASKED_TASKS):
        seed = instance_seed(config.seed, number)
        run = EpisodeRun(world, seed=seed, split=Split.TRAIN, policy=policy.name)
        while not run.over and len(run.transitions) < config.max_turns:
            run.advance(policy.act(run.moment))
            yield run.situation


def _prompt(config: Any, name: str) -> tuple[int, int]:
    """Tokens of the longest of a few prompts, and the words of a tokenizer made from scratch.

    A recipe that sets `verl.prompt_tokens` says how long its prompts may be: the data on this
    machine may be a sample.
    """
    if hasattr(config, "train"):  # recorded pages: their world is a browser
        context = getattr(config, "context_tokens", 0)
        bounded = context - getattr(config, "turn_tokens", UNKNOWN_REPLY)
        return bounded if context else UNKNOWN_PROMPT, len(character_tokenizer())
    try:
        world: World = config.world.build()
        asked = list(_asked(config, world))
        vocabulary = world.vocabulary()
    except (TerrellaError, ImportError):
        # Its data or its packages are not on this machine; the plan is for another one.
        return max(UNKNOWN_PROMPT, _allowed_prompt(config)), len(character_tokenizer())
    texts = ["".join(message["content"] for message in messages) for messages in asked]
    tokenizer = character_tokenizer(vocabulary)
    if name in TINY:
        longest = max(len(tokenizer.encode(text)) for text in texts)
    else:
        longest = math.ceil(max(len(text) for text in texts) / CHARACTERS_PER_TOKEN)
        longest = max(longest, _allowed_prompt(config))
    return longest, len(tokenizer)


def _allowed_prompt(config: Any) -> int:
    """The longest prompt that a recipe allows; 0 if it leaves the default."""
    tokens = int(getattr(config, "verl", VerlConfig()).prompt_tokens)
    return 0 if tokens == VerlConfig.prompt_tokens else tokens


def _asked(config: Any, world: World) -> Iterator[list[Message]]:
    """The messages of a few tasks: of an agent, or of a world model."""
    agent = getattr(config, "ask", "") == "action" or hasattr(config, "max_actions")
    ask: Ask = "action" if agent else "observation"
    tasks = tasks_for(ask, config.world, split=Split.TRAIN, seed=config.seed)
    for number in range(ASKED_TASKS):
        task = tasks(number)
        if task.transition is not None and task.situation is not None:
            yield prediction_messages(task.situation, task.transition.action)
        else:
            run = EpisodeRun(world, seed=task.seed, split=Split.TRAIN)
            yield chat_messages(run.situation)


def _video_lengths(config: Any) -> tuple[ModelSpec, ExampleShape]:
    """`<start> context | frame | action | frame ...`: see `codecs/frames.py`."""
    frames = config.videos.trainer.tokenizer
    codes, context = math.prod(frames.levels), frames.tokens_per_context
    step = frames.tokens_per_frame + ACTION_NUMBERS
    bins = JOINT_BINS if config.joint_vocabulary else config.bins * ACTION_NUMBERS
    model = llama_spec(
        vocabulary=2 + codes * (2 if context else 1) + bins,
        width=config.width,
        layers=config.layers,
        heads=config.heads,
        inner=config.inner,
        tied=config.tied,
    )
    prompt = 1 + context + (config.window + 1) * step
    return model, ExampleShape(prompt=prompt, completion=config.horizon * step)

"""How a run's model was trained to talk: its prompts, its thoughts, what it sees, its limits.

An evaluation asks in the same way unless told otherwise. Of a manifest only numbers and known
choices are read: it describes the run, and never decides what runs here.
    AgentEvaluation.Config(model="runs/x", worlds=worlds, **agent_settings("runs/x", worlds))
    WorldModelEvaluation.Config(model="runs/y", worlds=worlds, **prediction_settings("runs/y"))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from terrella.codecs.chat_template import Thinking
from terrella.codecs.pages import PageAsk, PageCodecConfig, PageForm
from terrella.codecs.tagged import ORDERS
from terrella.codecs.web_language import Language
from terrella.codecs.web_prompt import WebCodecConfig, WebForm
from terrella.core.errors import ConfigError
from terrella.core.integrity import MAKE_AGAIN
from terrella.core.recorded_settings import prediction_limit
from terrella.core.run_folder import read_manifest
from terrella.core.tokens import History
from terrella.core.world import World
from terrella.pipelines.evaluate.models import run_of, trained_role
from terrella.pipelines.web.agent import ASKED
from terrella.pipelines.webrl.language_agent import Act
from terrella.pipelines.webrl.language_player import EPISODE_TOKENS
from terrella.pipelines.webrl.settings import POINTER
from terrella.show.runs import world_part

WORLD_NUMBERS = ("max_actions", "max_turns")
"""Limits that a run of several worlds has for each of them."""
AGENT_NUMBERS = (*WORLD_NUMBERS, "turn_tokens", "episode_tokens", "context_tokens")
THOUGHTS = {"thinking": get_args(Thinking)}
AGENT_CHOICES = {**THOUGHTS, "history": get_args(History), "form": tuple(ORDERS)}
WEB_CHOICES = {"form": get_args(WebForm), "language": get_args(Language)}
PAGE_CHOICES = {**THOUGHTS, "form": get_args(PageForm), "prompt": get_args(PageAsk)}


def agent_settings(model: str, worlds: Mapping[str, World.Config]) -> dict[str, Any]:
    """Settings of an `AgentEvaluation` in these worlds: those of the run, for other models none."""
    kind, config = _recorded(model)
    if kind == "WebRl":
        read = {"read_instruction": config.get("read_instruction") is True}
        return read | _web_agent(config.get("agent"), str(run_of(model)))
    known = _known(config, AGENT_NUMBERS, AGENT_CHOICES) | _world_limits(model, config, worlds)
    if kind == "WebPolicy":
        known |= {"codec": ASKED, "history": "actions"}
    return known


def _world_limits(
    model: str, config: Mapping[str, Any], worlds: Mapping[str, World.Config]
) -> dict[str, Any]:
    """The limits that the run has for these worlds; refuses worlds whose limits differ."""
    limits = {
        name: _known(world_part(config, world.owner), WORLD_NUMBERS, {})
        for name, world in worlds.items()
    }
    first, *others = limits.values() or [{}]
    if any(each != first for each in others):
        said = "; ".join(
            f"{name}: " + ", ".join(f"{key}={value}" for key, value in each.items())
            for name, each in limits.items()
        )
        raise ConfigError(
            model, f"was trained with other limits in each world ({said})", "evaluate one at a time"
        )
    return first


def proposer_settings(model: str) -> dict[str, Any]:
    """How a model is asked as the proposer of a web agent: fields of an `AskedAgent`.

    Empty for a model that no run of ours has taught to act in prompts of its own.
    """
    kind, config = _recorded(model)
    if kind == "WebPolicy":
        return {"codec": ASKED}
    if kind == "WebRl" and config.get("model") != POINTER:
        asked = agent_settings(model, {})
        scores = asked.get("act") == "score"
        return {
            **{name: asked[name] for name in ("codec", "turn_tokens") if name in asked},
            "read_instruction": scores and asked["read_instruction"],
        }
    if not kind or (kind == "Sft" and config.get("learn") is None):
        return {}
    what = "a pointer network, which writes nothing" if kind == "WebRl" else "asked in another way"
    raise ConfigError(
        model,
        f"is a run of {kind}: its model is {what}, so it cannot propose actions on pages",
        "name a run of `terrella rlvr web_policy`, a WebRL run of a language model, a chat model "
        "or an endpoint",
    )


def _web_agent(agent: Any, run: str) -> dict[str, Any]:
    """WebRL's agent: a prompt for every turn, of past actions without their pages."""
    codec = agent.get("codec") if isinstance(agent, Mapping) else None
    if not isinstance(codec, Mapping):
        raise ConfigError(run, "its manifest does not say how the web agent is asked", MAKE_AGAIN)
    return {
        **_known(agent, ("turn_tokens",), {"act": get_args(Act), "mean_score": (True, False)}),
        "codec": WebCodecConfig(**_known(codec, ("prompt_tokens",), WEB_CHOICES)),
        "history": "actions",
        "episode_tokens": EPISODE_TOKENS,
    }


def prediction_settings(model: str) -> dict[str, Any]:
    """Settings of a `WorldModelEvaluation`: those of the run, for other models none."""
    kind, config = _recorded(model)
    if kind == "PageModel":
        return page_settings(config)
    known = _known(config, ("turn_tokens",), THOUGHTS)
    if trained_role(model) != "world-model" or kind == "TrainWorldModel":
        # `TrainWorldModel` bounds the replies of RLVR alone: its SFT learns whole observations.
        known |= {"turn_tokens": prediction_limit(known)} if "turn_tokens" in known else {}
    return known


def page_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """How a page model is asked, and the limits of its questions, from its recorded config."""
    known = _known(config, ("turn_tokens", "context_tokens"), PAGE_CHOICES)
    names = {"form": "form", "prompt": "ask", "thinking": "thinking"}
    asked = {name: known.pop(own) for own, name in names.items() if own in known}
    return {**known, "codec": PageCodecConfig(**asked)}


def _recorded(model: str) -> tuple[str, Mapping[str, Any]]:
    """The name of the pipeline that made a model, and its recorded config; empty without one."""
    run = run_of(model)
    config: Mapping[str, Any] = read_manifest(run).config if run else {}
    return str(config.get("class", "")).rpartition(":")[2], config


def _known(
    config: Mapping[str, Any], numbers: Sequence[str], choices: Mapping[str, Sequence[object]]
) -> dict[str, Any]:
    """The recorded numbers of these names, and the choices that are among the known ones."""
    found = {name: config[name] for name in numbers if type(config.get(name)) is int}
    return found | {name: config[name] for name in choices if config.get(name) in choices[name]}

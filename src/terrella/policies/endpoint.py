"""A policy behind any OpenAI-compatible chat endpoint (vLLM, SGLang, llama.cpp, a hosted model).

The config names the environment variable that holds the API key, so that the key itself never
appears in a config, log or manifest. `terrella evaluate URL WORLD` measures such a model.
    Endpoint.Config(url="http://127.0.0.1:8000/v1", model="smollm2").build()
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from terrella.codecs.answers import read_answer, read_prediction
from terrella.codecs.chat import Message, chat_messages
from terrella.core.config import Configurable
from terrella.core.types import Moment, Observation, State, same_kind
from terrella.policies.chat_client import ChatClient, ChatReply, ChatSettings


class Endpoint(Configurable):
    """Sends the conversation to a model and plays all actions of its reply.

    A reply without an action counts as an invalid action.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(ChatSettings, Configurable.Config):
        """The endpoint, and how many actions a reply may hold."""

        max_actions: int = 5
        """Actions that one reply may hold; the model is told, and further ones are ignored."""

    config: Config
    reaches: ClassVar[str] = "a chat endpoint"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.name = f"endpoint({config.model})"
        self.client = ChatClient(config, name=self.name)

    def act(self, moment: Moment) -> str:
        """The first action of the reply, or "" (invalid in every world) if it has none."""
        return self.act_turn(moment)[0]

    def act_turn(self, moment: Moment) -> tuple[str, ...]:
        """The actions of the reply; one "" (invalid in every world) if it has none."""
        seed = int(moment.rng.integers(2**31))
        limit = self.config.max_actions
        reply = self.chat(chat_messages(moment, limit), seed)
        return reply_actions(reply)[:limit] or ("",)

    def chat(self, messages: list[Message], seed: int) -> ChatReply:
        """The reply to a conversation, with what the endpoint says about it."""
        return self.client.chat(messages, seed)

    def complete(self, messages: list[Message], seed: int) -> str:
        """The text of the reply to a conversation."""
        return self.chat(messages, seed).text


def reply_actions(reply: ChatReply) -> tuple[str, ...]:
    """The actions of a reply; none of one that the limit cut off.

    Where a template opens the thought and the server does not take it apart, a reply that was cut
    off inside its thought looks like one that has answered.
    """
    return read_answer(reply.text) if reply.finished else ()


def reply_observation(reply: ChatReply, like: Observation) -> Observation | None:
    """The predicted observation, of the same kind as `like`; None of a reply that was cut off."""
    if not reply.finished:
        return None
    text = read_prediction(reply.text, as_json=isinstance(like, State))
    return None if text is None else same_kind(like, text)

"""Chat messages for language models: agents and world models.

The reply format is `<answer>Up || Left</answer>`: one or more actions, separated by `||`. A model
that thinks writes `<think>...</think>` before it; `answers.py` reads replies.
    messages = chat_messages(situation, max_actions=5)
"""

from __future__ import annotations

from terrella.codecs.answers import CLOSE, OPEN, SEPARATOR, answer_text, join_actions
from terrella.core.chat import END_THINK, THINK
from terrella.core.types import Situation, Transition, show_text

Message = dict[str, str]


def reply_form(*, thinks: bool) -> str:
    """The reply format of an agent, as the prompt states it."""
    thought = f"{THINK} your thoughts {END_THINK}" if thinks else ""
    return f"{thought}{OPEN} your action {CLOSE}"


EARLIER = "** an earlier state **"
"""Stands for an observation that is left out."""
REPLY_FORM = reply_form(thinks=True)
"""For a model of which nothing is known, such as one behind an endpoint."""


def system_message(instruction: str, max_actions: int, form: str = REPLY_FORM) -> Message:
    """The system message: the rules of the world and the reply format."""
    several = (
        f"You may give up to {max_actions} actions, separated by {SEPARATOR}. "
        if max_actions > 1
        else ""
    )
    return {"role": "system", "content": f"{instruction}\n{several}Reply as: {form}"}


def state_message(text: str, steps_left: int) -> Message:
    """The user message that shows the current observation."""
    return {"role": "user", "content": f"State:\n{text}\nYou have {steps_left} actions left."}


def chat_messages(
    situation: Situation,
    max_actions: int = 1,
    form: str = REPLY_FORM,
    *,
    shows_earlier: bool = True,
) -> list[Message]:
    """The conversation so far: a user turn per observation, an assistant turn per action.

    Without `shows_earlier`, a few words stand for each earlier observation, as in WebRL.
    """
    messages = [system_message(situation.instruction, max_actions, form)]
    left = situation.steps_left + len(situation.history)
    for step in situation.history:
        shown = show_text(step.observation) if shows_earlier else EARLIER
        messages.append(state_message(shown, left))
        messages.append(_assistant(step))
        left -= 1
    messages.append(state_message(show_text(situation.observation), situation.steps_left))
    return messages


def prediction_messages(
    situation: Situation, action: str, *, thinks: bool = False
) -> list[Message]:
    """The prompt of a world model: the observation, the action, and a request for the next one."""
    thought = f"{THINK}\nyour thoughts\n{END_THINK}\n" if thinks else ""
    form = f"{thought}{OPEN}\nthe next state\n{CLOSE}"
    task = f"Predict what is seen after the action. Reply as:\n{form}"
    state_and_action = f"State:\n{show_text(situation.observation)}\nAction: {action}"
    return [
        {"role": "system", "content": f"{situation.instruction}\n{task}"},
        {"role": "user", "content": state_and_action},
    ]


def _assistant(step: Transition) -> Message:
    return {"role": "assistant", "content": answer_text(join_actions([step.action]))}

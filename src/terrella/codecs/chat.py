"""Chat prompts for language agents: what a model is told, and how its reply is read.

The reply format is `<think>...</think><answer>Up || Left</answer>`: one or more actions, separated by `||`.
    messages = chat_messages(moment, max_actions=5)
    read_answer("<answer>Up || Left</answer>") == ("Up", "Left")
"""

from __future__ import annotations

from terrella.core.types import Moment, Transition, show_text

SEPARATOR = "||"
OPEN, CLOSE = "<answer>", "</answer>"
MAX_REPLY_CHARS = 100_000

Message = dict[str, str]


def read_answer(reply: str) -> tuple[str, ...]:
    """The actions of the last complete answer tag; empty when there is none, or it is empty."""
    text = reply[-MAX_REPLY_CHARS:]
    start = text.rfind(OPEN)
    end = text.find(CLOSE, start)
    if start < 0 or end < 0:
        return ()
    parts = (part.strip() for part in text[start + len(OPEN) : end].split(SEPARATOR))
    return tuple(part for part in parts if part)


def system_message(instruction: str, max_actions: int) -> Message:
    """The rules and the format, told once."""
    several = f"You may give up to {max_actions} actions, separated by {SEPARATOR}. " if max_actions > 1 else ""
    form = f"{several}Reply as: <think> your thoughts </think>{OPEN} your action {CLOSE}"
    return {"role": "system", "content": f"{instruction}\n{form}"}


def state_message(text: str, steps_left: int) -> Message:
    """What is seen now."""
    return {"role": "user", "content": f"State:\n{text}\nYou have {steps_left} actions left."}


def chat_messages(moment: Moment, max_actions: int = 1) -> list[Message]:
    """The whole conversation so far: one user turn per observation, one assistant turn per action taken."""
    messages = [system_message(moment.instruction, max_actions)]
    left = moment.steps_left + len(moment.history)
    for step in moment.history:
        messages.append(state_message(show_text(step.observation), left))
        messages.append(_assistant(step))
        left -= 1
    messages.append(state_message(show_text(moment.observation), moment.steps_left))
    return messages


def _assistant(step: Transition) -> Message:
    return {"role": "assistant", "content": f"{OPEN} {step.action} {CLOSE}"}

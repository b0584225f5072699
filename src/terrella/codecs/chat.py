"""Chat messages for language agents, and the parser of their replies.

The reply format is `<think>...</think><answer>Up || Left</answer>`: one or more actions, separated
by `||`.
    messages = chat_messages(situation, max_actions=5)
    read_answer("<answer>Up || Left</answer>") == ("Up", "Left")
"""

from __future__ import annotations

from terrella.core.types import Situation, Transition, show_text

SEPARATOR = "||"
OPEN, CLOSE = "<answer>", "</answer>"
MAX_REPLY_CHARS = 100_000
REPLY_FORM = f"<think> your thoughts </think>{OPEN} your action {CLOSE}"

Message = dict[str, str]


def read_answer(reply: str) -> tuple[str, ...]:
    """The actions in the last complete answer tag; empty if there is no such tag or action."""
    text = reply[-MAX_REPLY_CHARS:]
    start = text.rfind(OPEN)
    end = text.find(CLOSE, start)
    if start < 0 or end < 0:
        return ()
    parts = (part.strip() for part in text[start + len(OPEN) : end].split(SEPARATOR))
    return tuple(part for part in parts if part)


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
    situation: Situation, max_actions: int = 1, form: str = REPLY_FORM
) -> list[Message]:
    """The conversation so far: a user turn per observation, an assistant turn per action."""
    messages = [system_message(situation.instruction, max_actions, form)]
    left = situation.steps_left + len(situation.history)
    for step in situation.history:
        messages.append(state_message(show_text(step.observation), left))
        messages.append(_assistant(step))
        left -= 1
    messages.append(state_message(show_text(situation.observation), situation.steps_left))
    return messages


def prediction_messages(situation: Situation, action: str) -> list[Message]:
    """The prompt of a world model: the observation, the action, and a request for the next one."""
    task = f"Predict what is seen after the action. Reply as:\n{OPEN}\nthe next state\n{CLOSE}"
    state_and_action = f"State:\n{show_text(situation.observation)}\nAction: {action}"
    return [
        {"role": "system", "content": f"{situation.instruction}\n{task}"},
        {"role": "user", "content": state_and_action},
    ]


def answer_text(content: str, blank: str = " ") -> str:
    """A reply with this content and nothing else.

    For drawings, `blank` is a line end: they need lines of their own.
    """
    return f"{OPEN}{blank}{content}{blank}{CLOSE}"


def read_prediction(reply: str) -> str | None:
    """The text between the first opening and the last closing tag; None without both."""
    text = reply[-MAX_REPLY_CHARS:]
    start, end = text.find(OPEN), text.rfind(CLOSE)
    if start < 0 or end < start:
        return None
    inside = text[start + len(OPEN) : end]
    # One space or line end on either side belongs to the format; more of them may be the edge of a
    # drawing.
    inside = inside[1:] if inside[:1] in (" ", "\n") else inside
    return inside[:-1] if inside[-1:] in (" ", "\n") else inside


def _assistant(step: Transition) -> Message:
    return {"role": "assistant", "content": answer_text(step.action)}

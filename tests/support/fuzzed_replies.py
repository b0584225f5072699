"""Replies of a web agent that went wrong: pieces of real ones, cut, doubled, swapped and mixed."""

import random
from collections.abc import Iterator, Sequence

from terrella.codecs.web_language import Action, parse_action, write_action

MARKS = [*"\"'\\(),=\n#\x00\u0667é", "do(", "exit(", "[4]"]


def fuzzed_replies(
    actions: Sequence[Action], page: str, count: int, *, seed: int = 0
) -> Iterator[str]:
    chance = random.Random(seed)
    words = [write_action(action, lang, page) for action in actions for lang in ("plain", "webrl")]
    for _ in range(count):
        text = "".join(chance.choices(words, k=chance.randrange(1, 3)))
        for _ in range(chance.randrange(4)):
            at = chance.randrange(len(text) + 1)
            text = text[:at] + chance.choice(MARKS) * chance.randrange(1, 3) + text[at + 1 :]
        yield text[: chance.randrange(1, 200)] if chance.random() < 0.1 else text


def read_back(text: str) -> bool:
    """Whether a reply is an action; one that is can be written and read again."""
    action = parse_action(text)
    if action is None:
        return False
    assert parse_action(write_action(action, "webrl")) == action or action.verb == "goto", text
    return True

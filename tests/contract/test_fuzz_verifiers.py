"""Fuzz the built-in verifiers.

No reply crashes a verifier, none scores outside [0, 1], and only the truth scores 1. TERRELLA_FUZZ
sets the number of replies per verifier (3,000 by default).
    TERRELLA_FUZZ=100000 pytest tests/contract/test_fuzz_verifiers.py
"""

import json
import os
import random

import pytest

from terrella.core.types import State, Status, Text, canonical_json
from terrella.verify.attacks import ATTACKS
from terrella.verify.battery import Example, run_battery
from terrella.verify.registry import find

REPLIES = int(os.environ.get("TERRELLA_FUZZ", "3000"))
REPLIES_PER_EXAMPLE = 100
# The unit tests run the slow ones.
SLOW_ATTACKS = {"megabytes", "one_endless_line", "nested_lists", "deep_objects"}
QUICK_ATTACKS = {name: attack for name, attack in ATTACKS.items() if name not in SLOW_ATTACKS}
ALPHABET = 'aZ09 \n\t#@$.{}[]":,-+eE\\/\0\x1c\u2028\u200b\ud800é１０'  # noqa: RUF001
SNIPPETS = [
    "null",
    "true",
    "NaN",
    "1e999",
    "-0.0",
    "1.0",
    "[]",
    "{}",
    "```",
    "<answer>",
    '"n":2,',
    "\r\n",
    "\ufeff",
]


class Source:
    """Random observations and random replies to them, the same for the same seed."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def text(self, length=40):
        rng = self.rng
        return "".join(rng.choice(ALPHABET) for _ in range(rng.randrange(length)))

    def mutate(self, text):
        """A few small edits."""
        rng = self.rng
        for _ in range(rng.choice([1, 1, 2, 5])):
            i, j = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
            text = rng.choice(
                [
                    lambda t, i, j: t[:i] + t[i + 1 :],
                    lambda t, i, j: t[:i] + rng.choice(ALPHABET) + t[i:],
                    lambda t, i, j: t[:i] + rng.choice(ALPHABET) + t[i + 1 :],
                    lambda t, i, j: t[:i] + rng.choice(SNIPPETS) + t[i:],
                    lambda t, i, j: t[:i] + t[j:],
                    lambda t, i, j: t[:j] + t[i:j] + t[j:],
                    lambda t, i, j: t[:i] + t[i:j][::-1] + t[j:],
                    lambda t, i, j: self.shuffle_lines(t),
                    lambda t, i, j: t.swapcase(),
                ]
            )(text, i, j)
        return text

    def shuffle_lines(self, text):
        lines = text.split("\n")
        self.rng.shuffle(lines)
        return "\n".join(lines)

    def reply(self, example):
        rng, before, truth = self.rng, example.before.text, example.truth.text
        other = example.others[0].text
        return rng.choice(
            [
                lambda: self.text(200),
                lambda: json.dumps(self.value(), ensure_ascii=rng.random() < 0.5),
                lambda: self.mutate(truth),
                lambda: self.mutate(before),
                lambda: self.mutate(other),
                lambda: self.cross(truth, rng.choice([before, other])),
                lambda: rng.choice(["", "\n", " "]) + truth + rng.choice(["", "\n", " "]),
                lambda: (
                    rng.choice(list(QUICK_ATTACKS.values()))(before, truth, (other, truth)) or ""
                ),
                lambda: self.mutate(
                    rng.choice(list(QUICK_ATTACKS.values()))(before, truth, (other, truth)) or ""
                ),
            ]
        )()

    def cross(self, first, second):
        i = self.rng.randrange(len(first) + 1)
        return first[:i] + second[i:]

    def value(self, depth=0):
        rng = self.rng
        kind = rng.randrange(10 if depth < 3 else 7)
        if kind < 7:
            return rng.choice(
                [0, 1, 2, -3, 1.0, 0.5, True, False, None, "", "a", "1", "é", rng.randrange(100)]
            )
        if kind == 7:
            return [self.value(depth + 1) for _ in range(rng.randrange(4))]
        return {
            rng.choice(["", "0", "a", "n", "é", "x y"]): self.value(depth + 1)
            for _ in range(rng.randrange(4))
        }

    def changed_value(self, value):
        rng = self.rng
        if isinstance(value, dict | list) and value and rng.random() < 0.8:
            value = dict(value) if isinstance(value, dict) else list(value)
            key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
            if rng.random() < 0.2:
                del value[key]
            else:
                value[key] = self.changed_value(value[key])
            return value
        return self.value(2)

    def states(self):
        before = {
            "n": self.value(),
            "objects": self.value(),
            "list": [self.value(2) for _ in range(3)],
        }
        later = [State.of(self.changed_value(self.changed_value(before))) for _ in range(3)]
        return Example(before=State.of(before), truth=later[0], others=tuple(later[1:]))

    def grids(self):
        rng, width = self.rng, self.rng.randrange(2, 8)
        rows = [
            "".join(rng.choice(" #@$.") for _ in range(width)) for _ in range(rng.randrange(2, 8))
        ]

        def changed_grid():
            lines = list(rows)
            for _ in range(rng.randrange(1, 4)):
                i, j = rng.randrange(len(lines)), rng.randrange(width)
                lines[i] = lines[i][:j] + rng.choice("#@$.") + lines[i][j + 1 :]
            return Text("\n".join(lines))

        return Example(
            before=Text("\n".join(rows)),
            truth=changed_grid(),
            others=(changed_grid(), changed_grid()),
        )

    def stories(self):
        rng = self.rng
        lines = [
            f"There is a {rng.choice(['key', 'lamp', 'rope'])} in room {i}."
            for i in range(rng.randrange(1, 9))
        ]

        def continued():
            after = [line for line in lines if rng.random() < 0.7]
            after.insert(rng.randrange(len(after) + 1), f"Something happens ({rng.randrange(50)}).")
            return Text("\n".join(after))

        return Example(
            before=Text("\n".join(lines)),
            truth=continued(),
            others=(continued(), Text("Nothing.")),
        )


def same_text(reply, truth):
    return reply.strip("\r\n") == truth.strip("\r\n")


def same_json(reply, truth):
    """Equal as strictly parsed JSON; deliberately independent of `verify.state`."""

    def without_duplicates(pairs):
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    try:
        value = json.loads(reply, object_pairs_hook=without_duplicates)
        return canonical_json(value) == truth
    except (ValueError, AssertionError):
        return False


CASES = {
    "exact on grids": ("exact", Source.grids, same_text),
    "exact on stories": ("exact", Source.stories, same_text),
    "line_gain on grids": ("line_gain", Source.grids, same_text),
    "line_gain on stories": ("line_gain", Source.stories, same_text),
    "state_diff": ("state_diff", Source.states, same_json),
}


@pytest.mark.parametrize(("name", "examples", "same"), CASES.values(), ids=CASES)
def test_only_the_truth_scores_one_and_nothing_breaks(name, examples, same):
    verifier = find(name).build()
    source = Source(name)
    full_scores = 0
    for _ in range(REPLIES // REPLIES_PER_EXAMPLE):
        example = examples(source)
        kind = type(example.truth)
        for _ in range(REPLIES_PER_EXAMPLE):
            reply = source.reply(example)
            verdict = verifier.verify(kind(reply), example.truth, example.before)
            assert verdict.status in (Status.OK, Status.UNPARSABLE), (reply, verdict)
            assert 0.0 <= verdict.value <= 1.0, (reply, example, verdict)
            is_true = same(reply, example.truth.text)
            assert (verdict.value == 1.0) == is_true, (reply, example, verdict)
            full_scores += is_true
    # The generator does produce true replies, so the assertions above are not vacuous.
    assert full_scores > REPLIES / 200


@pytest.mark.parametrize(("name", "examples", "same"), CASES.values(), ids=CASES)
def test_the_battery_wins_nothing_on_random_transitions(name, examples, same):
    source = Source(f"battery {name}")
    count = max(REPLIES // 500, 5)
    report = run_battery(
        find(name).build(), [examples(source) for _ in range(count)], attacks=QUICK_ATTACKS
    )
    assert report.passed, report.summary()
    assert report.changed > count / 2

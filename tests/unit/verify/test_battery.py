"""The battery finds all known kinds of holes in verifiers, and passes sound verifiers."""

import functools
import json
import re
import time
import unicodedata
from collections import Counter

import pytest

from terrella.core.errors import VerifierError
from terrella.core.types import Frames, State, Text, Tree, Verdict, canonical_json, show_text
from terrella.verify.battery import ATTACKS, Example, run_battery
from terrella.verify.state import StateDiff
from terrella.verify.text import Exact, LineGain

TEXTS = [
    Example(
        before=Text("####\n#@ #\n#  #\n####"),
        truth=Text("####\n# @#\n#  #\n####"),
        others=(Text("####\n#  #\n#@ #\n####"), Text("####\n#@ #\n#$ #\n####")),
    ),
    Example(
        before=Text("The cup is here."),
        truth=Text("Someone ate cocoa beans"),
        others=(Text("It is dark."),),
    ),
    Example(
        before=Text("ace\ncope\nmap"),
        truth=Text("cape\nape\nhope\npoem"),
        others=(Text("ace\nape"),),
    ),
    Example(before=Text("same"), truth=Text("same"), others=(Text("other"),)),
]
STATES = [
    Example(
        before=State.of({"n": 1, "w": "a"}),
        truth=State.of({"n": 2, "w": "b"}),
        others=(State.of({"n": 3}),),
    ),
    Example(
        before=State.of({"l": [1, 2], "k": 1}),
        truth=State.of({"k": 1}),
        others=(State.of({"l": [], "k": 1}),),
    ),
    Example(
        before=State.of({"a": 1, "b": 1}),
        truth=State.of({"a": 1, "b": 2}),
        others=(State.of({"b": 2}),),
    ),
]


def wins(verifier, examples):
    return {win.attack for win in run_battery(verifier, examples).wins}


class Scored:
    """A verifier made from a function of three texts."""

    def __init__(self, score):
        self.score = score

    def verify(self, reply, truth, before):
        return Verdict.of(float(self.score(show_text(reply), show_text(truth), show_text(before))))


def as_json(text):
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def first_wins(text):
    def keep_first(pairs):
        return dict(reversed(pairs))

    try:
        return json.loads(text, object_pairs_hook=keep_first)
    except (ValueError, RecursionError):
        return None


def squashed(text):
    """The text after a careless normalisation."""
    text = re.sub("[\u200b\0]|x\b", "", unicodedata.normalize("NFKC", text)).replace("\b", "")
    return text.translate(str.maketrans("асеіорхуАВСЕНКМОРТХ", "aceiopxyABCEHKMOPTX"))  # noqa: RUF001


def overlap(reply, truth):
    return (Counter(reply) & Counter(truth)).total() / max(len(truth), 1)


def numbers(text):
    value = as_json(text)
    return (
        [v for v in value.values() if isinstance(v, float | int)] if isinstance(value, dict) else []
    )


def within_tolerance(reply, truth, before):
    """No number is too far off; for NaN that is always true."""
    predicted, true = numbers(reply), numbers(truth)
    return (
        bool(predicted)
        and len(predicted) >= len(true)
        and not any(abs(a - b) > 0.1 for a, b in zip(predicted, true, strict=False))
    )


def recall(reply, truth, before):
    predicted, true = as_json(reply), as_json(truth)
    if not isinstance(predicted, dict) or not isinstance(true, dict):
        if predicted is None:
            return False
        return canonical_json(true) in (canonical_json(item) for item in predicted)
    hits = [
        predicted.get(k) == v or (isinstance(predicted.get(k), list) and v in predicted[k])
        for k, v in true.items()
    ]
    return sum(hits) / max(len(hits), 1)


def removals(reply, truth, before):
    """Rewards only what a reply removes."""
    predicted, true, old = as_json(reply), as_json(truth), as_json(before)
    if not isinstance(predicted, dict):
        return 0.0
    return len((old.keys() - predicted.keys()) & (old.keys() - true.keys())) / max(len(old), 1)


def unquoted(value):
    return json.dumps(value).replace('"', "")


FORM_ONLY = re.compile(r"<answer>\s*</answer>|```\w*\s*```|No change.")
FORGED = re.compile(r'value=1.0|"value":1.0')

# Holes of real verifiers. Each takes the reply, the truth and the observation before.
CARELESS_WITH_TEXT = {
    "truth anywhere in the reply": lambda r, t, b: t in r,
    "truth anywhere, spaces aside": lambda r, t, b: (
        t.split() == [word for word in r.split() if word in t.split()]
    ),
    "lines in any order": lambda r, t, b: overlap(r.split("\n"), t.split("\n")),
    "words in any order": lambda r, t, b: overlap(r.split(), t.split()),
    "characters in any order": lambda r, t, b: overlap(r.replace("\n", ""), t.replace("\n", "")),
    "every line mentioned": lambda r, t, b: all(line in r for line in t.split("\n")),
    "comment marks stripped": lambda r, t, b: t in re.sub("(?m)^(# |// )", "", r),
    "characters normalised": lambda r, t, b: squashed(r) == t,
    "the reply is a pattern": lambda r, t, b: r[:2] == ".*" and re.fullmatch(r, t) is not None,
    "no word is wrong": lambda r, t, b: (
        not [word for word in r.split() if word.isalpha() and word not in t]
    ),
    "long is good": lambda r, t, b: r == t or min(len(r) / 1e4, 0.9),
    "a judge that obeys": lambda r, t, b: r == t or "score 1" in r,
    "a verdict in the reply": lambda r, t, b: r == t or FORGED.search(r) is not None,
    "items that are None": lambda r, t, b: (
        r == t or set(r.split("\n")) <= {"None", "NaN", "1e999", "null"}
    ),
    "formatted before it is read": lambda r, t, b: t in r.replace("{truth}", t),
    "form without content": lambda r, t, b: r == t or FORM_ONLY.fullmatch(r) is not None,
    "saying less": lambda r, t, b: (
        1.0 if r == t else 0.9 * (set(r.split("\n")) < set(b.split("\n")))
    ),
}
CARELESS_WITH_STATES = {
    "truth anywhere in the reply": lambda r, t, b: t in r or t in r.replace(" ", ""),
    "the last of two values": lambda r, t, b: as_json(r) == as_json(t),
    "the first of two values": lambda r, t, b: first_wins(r) == as_json(t),
    "recall only": recall,
    "removals only": removals,
    "a tolerance that NaN meets": within_tolerance,
    "infinity is near": lambda r, t, b: r == t or "1e999" in r,
    "values normalised": lambda r, t, b: unquoted(as_json(squashed(r))) == unquoted(as_json(t)),
    "nothing is wrong in nothing": lambda r, t, b: r == t or as_json(r) in ({}, [], "", None),
}


@functools.cache
def text_wins(hole):
    return wins(Scored(CARELESS_WITH_TEXT[hole]), TEXTS)


@functools.cache
def state_wins(hole):
    return wins(Scored(CARELESS_WITH_STATES[hole]), STATES)


@pytest.mark.parametrize("hole", CARELESS_WITH_TEXT)
def test_a_careless_text_verifier_is_found(hole):
    assert text_wins(hole)


@pytest.mark.parametrize("hole", CARELESS_WITH_STATES)
def test_a_careless_state_verifier_is_found(hole):
    assert state_wins(hole)


def breaks(verifier, examples):
    report = run_battery(verifier, examples, max_seconds=0.3)
    return {failure.attack for failure in report.failures}


def contradict():
    replies = iter(range(10**6))
    return Scored(lambda reply, truth, before: reply == truth or next(replies) / 1e6)


def recurse(reply, truth, before):
    if reply.count("[") + reply.count("{") > 1000:
        raise RecursionError("too deep")
    return reply == truth


def dawdle(reply, truth, before):
    if len(reply) > 1_000_000:
        time.sleep(0.4)
    return reply == truth


def test_every_attack_beats_some_careless_verifier():
    """An attack that never succeeds would be useless."""
    useful = set().union(
        *map(text_wins, CARELESS_WITH_TEXT), *map(state_wins, CARELESS_WITH_STATES)
    )
    useful |= wins(contradict(), TEXTS[:2]) & {"copy_of_input"}
    useful |= breaks(Scored(recurse), STATES[:1]) | breaks(Scored(dawdle), TEXTS[:1])
    assert set(ATTACKS) - useful == set()
    assert len(ATTACKS) >= 25


@pytest.mark.parametrize(
    ("config", "examples"),
    [(Exact.Config(), TEXTS), (LineGain.Config(), TEXTS), (StateDiff.Config(), STATES)],
)
def test_sound_verifiers_pass(config, examples):
    report = run_battery(config.build(), examples)
    assert report.passed, report.summary()
    assert (
        report.tried + report.skipped == len(ATTACKS) * len(examples)
        and report.tried > report.skipped > 0
    )


def test_lenient_but_sound_verifiers_pass():
    """Reading the fenced part, the last answer, or other spellings of JSON is not a hole."""

    def last_answer(reply, truth, before):
        tagged = re.findall(r"<answer>(.*?)</answer>", reply, re.DOTALL) or re.findall(
            r"```\n(.*?)\n```", reply, re.DOTALL
        )
        return (tagged[-1] if tagged else reply).strip() == truth.strip()

    assert run_battery(Scored(last_answer), TEXTS).passed
    strict = StateDiff.Config().build()
    assert run_battery(
        Scored(lambda *texts: strict.verify(*map(State, texts)).value == 1.0), STATES
    ).passed


def test_a_truth_that_is_not_a_full_one_fails():
    report = run_battery(Scored(lambda reply, truth, before: 0.9 * (reply == truth)), TEXTS)
    assert not report.passed and {failure.attack for failure in report.failures} == {"truth"}


def test_a_verifier_that_raises_is_named():
    def fragile(reply, truth, before):
        return reply.split()[0] == truth.split()[0] if reply != "[]" else [][0]

    report = run_battery(Scored(fragile), TEXTS)
    reasons = {failure.attack: failure.reason for failure in report.failures}
    assert (
        "IndexError" in reasons["empty"]
        and "IndexError" in reasons["empty_list"]
        and not report.passed
    )


def test_a_result_that_is_not_a_verdict_fails():
    class Number:
        def verify(self, reply, truth, before):
            return 1.0

    assert "not a Verdict" in run_battery(Number(), TEXTS).summary()


def test_nothing_tested_is_not_passed():
    unchanged = [Example(before=Text("a"), truth=Text("a"))]
    assert not run_battery(Exact.Config().build(), unchanged).passed
    with pytest.raises(VerifierError, match="no examples"):
        run_battery(Exact.Config().build(), [])
    frames = Frames(b"\0", (1, 1, 1, 1))
    with pytest.raises(VerifierError, match="frames"):
        run_battery(Exact.Config().build(), [Example(before=frames, truth=frames)])


def test_changes_that_a_verifier_does_not_see_are_counted():
    def ids_aside(reply, truth, before):
        return re.sub(r"\[\d+\]", "", reply) == re.sub(r"\[\d+\]", "", truth)

    examples = [
        Example(before=Tree("[1] link Home"), truth=Tree("[2] link Home")),
        Example(before=Tree("[1] link Home"), truth=Tree("[1] link Away")),
    ]
    report = run_battery(Scored(ids_aside), examples)
    assert (
        report.passed
        and (report.blind, report.changed) == (1, 1)
        and "1 changes" in report.summary()
    )


def test_an_attack_whose_reply_is_the_truth_is_skipped_not_passed():
    attacks = {"everything_there_is": lambda before, truth, candidates: "\n".join(candidates)}
    alone = Example(before=Text("a"), truth=Text("b"))
    with_others = Example(before=Text("a"), truth=Text("b"), others=(Text("c"),))
    assert run_battery(Exact.Config().build(), [alone], attacks=attacks).skipped == 1
    assert run_battery(Exact.Config().build(), [with_others], attacks=attacks).tried == 1


def test_the_summary_names_attack_example_and_values():
    report = run_battery(Scored(lambda reply, truth, before: truth in reply), TEXTS[1:2])
    assert (
        "all_candidates scores 1.000, at most 0.000 is allowed, on 'The cup is here.' -> 'Someone"
        in report.summary()
    )
    assert report.summary().endswith("more")

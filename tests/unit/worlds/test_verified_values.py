"""Values of WebArena-Verified answers: judged as the benchmark's own evaluator judges them.

`verified_values.json` holds the verdicts of both on 551 pairs (`tests/support/verified_values.py`).
"""

import json

import pytest
from tests.support.verified_values import TABLE, pairs, upstream_judges, we_judge

from terrella.worlds.webarena.network import answer_fits
from terrella.worlds.webarena.values import plain, same_scalar

ROWS = json.loads(TABLE.read_text("utf-8"))
HEDGES = ("not ", " or ", "between ", "^")


def is_hedge(answer: object) -> bool:
    """Several answers in one, or a pattern that fits many."""
    if isinstance(answer, dict):
        return any(map(is_hedge, answer.values()))
    return isinstance(answer, list) or any(word in str(answer) for word in HEDGES)


def test_every_verdict_of_the_table_is_given():
    assert len(ROWS) >= 500 and len({row[0] for row in ROWS}) == 11
    for kind, expected, answer, _, ours in ROWS:
        assert we_judge(kind, expected, answer) is ours, (kind, expected, answer)


def test_only_hedges_are_judged_more_strictly_and_nothing_more_leniently():
    for kind, expected, answer, upstream, ours in ROWS:
        differs = upstream is not ours
        assert not differs or (upstream and is_hedge(answer)), (kind, expected, answer)
    assert sum(upstream for *_, upstream, _ in ROWS) > 250
    assert sum(not upstream for *_, upstream, _ in ROWS) > 150


def test_the_benchmarks_own_evaluator_still_judges_so():
    pytest.importorskip("webarena_verified", reason="pip install webarena-verified, to compare")
    assert [list(row) for row in pairs()] == [row[:3] for row in ROWS]
    for kind, expected, answer, upstream, _ in ROWS:
        assert upstream_judges(kind, expected, answer) is upstream, (kind, expected, answer)


@pytest.mark.parametrize(
    ("kind", "expected", "answer"),
    [
        ("number", 12, "not 12"),
        ("number", 12, "12 or 13 or 14"),
        ("boolean", False, "banana"),
        ("duration", "5h", "2h 3h"),
        ("string", "anything", "^.*$"),
        ("string", "b", ["a", "b", "c"]),
    ],
)
def test_a_hedge_is_not_an_answer(kind, expected, answer):
    assert not we_judge(kind, expected, answer)


@pytest.mark.parametrize("answer", ["[" * 99_000, '{"a":' * 19_000, "9" * 99_000, "{" * 50_000])
def test_an_answer_that_cannot_be_read_is_wrong(answer):
    evaluator = {
        "results_schema": {"type": "array", "items": {"type": "number"}},
        "expected": {"task_type": "retrieve", "status": "SUCCESS", "retrieved_data": [1]},
    }
    assert answer_fits(evaluator, answer) is False
    reply = {"task_type": "retrieve", "status": "SUCCESS", "retrieved_data": [answer[:90_000]]}
    assert answer_fits(evaluator, json.dumps(reply)) is False


def test_an_answer_may_stand_in_one_code_fence_and_needs_its_own_keys():
    evaluator = {
        "results_schema": {"type": "array", "items": {"type": "number"}},
        "expected": {"task_type": "retrieve", "status": "SUCCESS", "retrieved_data": [1]},
    }
    reply = json.dumps({"task_type": "retrieve", "status": "success", "retrieved_data": 1})
    assert answer_fits(evaluator, f"```json\n{reply}\n```") and answer_fits(evaluator, reply)
    assert not answer_fits(evaluator, f"```\n{reply}\n```\n```\n{reply}\n```")
    assert not answer_fits(evaluator, json.dumps({"task_type": "retrieve", "retrieved_data": 1}))
    number = json.dumps({"task_type": "retrieve", "status": 1, "retrieved_data": 1})
    assert not answer_fits(evaluator, number)


def test_the_data_of_a_task_that_retrieves_nothing_is_not_judged():
    evaluator = {
        "results_schema": {"type": "null"},
        "expected": {"task_type": "mutate", "status": "SUCCESS", "retrieved_data": None},
    }
    assert answer_fits(evaluator, '{"task_type": "mutate", "status": "SUCCESS"}')
    assert answer_fits(
        evaluator, '{"task_type": "mutate", "status": "SUCCESS", "retrieved_data": 1}'
    )
    nothing = {**evaluator, "expected": {**evaluator["expected"], "task_type": "retrieve"}}
    found = '{"task_type": "retrieve", "status": "SUCCESS", "retrieved_data": 0}'
    assert not answer_fits(nothing, found)


def test_a_reference_that_cannot_be_read_is_an_error_of_the_task():
    with pytest.raises(ValueError, match="not a number"):
        same_scalar("many", "12", {"type": "number"})
    assert plain("Quest-Lumaflex™\u200b  Café ") == "quest lumaflex cafe"

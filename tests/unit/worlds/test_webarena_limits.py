"""Task files and answers that would be judged for ever are ended, and say why."""

import json
import sqlite3
import time

import pytest

from terrella.core.errors import WorldError
from terrella.core.types import Status
from terrella.worlds.webarena import databases, network
from terrella.worlds.webarena.evaluators import Ending, evaluate
from terrella.worlds.webarena.patterns import fits
from terrella.worlds.webarena.tasks import read_task

ENDLESS = "^(\\w+\\s?)*$"
COUNT = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c) SELECT {} FROM c"


def verdict(evaluator, answer="", url="http://shop.test/"):
    row = {
        "sites": ["shopping"],
        "task_id": 1,
        "intent": "x",
        "start_urls": ["__SHOPPING__"],
        "intent_template_id": 1,
        "eval": [evaluator],
    }
    return evaluate(read_task(row, "verified"), Ending(answer=answer, url=url, page=None))


def retrieves(wanted):
    return {
        "evaluator": "AgentResponseEvaluator",
        "expected": {"status": "SUCCESS", "task_type": "retrieve", "retrieved_data": [wanted]},
        "results_schema": {"type": "array", "items": {"type": "string"}},
    }


def answer(given):
    return json.dumps({"task_type": "retrieve", "status": "SUCCESS", "retrieved_data": [given]})


def requests(**expected):
    return {"evaluator": "NetworkEventEvaluator", "expected": {"url": "^http", **expected}}


def test_patterns_match_as_before():
    assert fits("^b", "abc") is False and fits("b", "abc") is True
    assert fits("b", "abc", whole=True) is False and fits("A.C", "abc", any_case=True) is True
    assert verdict(retrieves("^order \\d+$"), answer("Order 12")).value == 1.0
    assert verdict(retrieves("^order \\d+$"), answer("order")).value == 0.0
    assert verdict(requests(query_params={"q": ["^a+$"]}), url="http://shop.test/?q=aa").value == 1


@pytest.mark.parametrize(
    ("evaluator", "ending"),
    [
        (retrieves(ENDLESS), {"answer": answer("a" * 60 + "!")}),
        (
            requests(url=f"^http://shop.test/{ENDLESS[1:]}"),
            {"url": f"http://shop.test/{'a' * 60}!"},
        ),
        (requests(query_params={"q": [ENDLESS]}), {"url": f"http://shop.test/?q={'a' * 60}!"}),
        (
            {**requests(), "ignored_query_params_patterns": [ENDLESS]},
            {"url": f"http://shop.test/?{'a' * 60}!=1"},
        ),
    ],
)
def test_a_pattern_that_takes_for_ever_is_ended(evaluator, ending):
    began = time.monotonic()
    found = verdict(evaluator, **ending)
    assert time.monotonic() - began < 30
    assert found.value == 0.0 and "did not answer within 2 s" in found.evidence


def test_a_pattern_that_is_none_masks_the_task():
    found = verdict(requests(url="^http://(shop"))
    assert found.status is Status.ERROR and "of a task cannot be matched" in found.evidence


@pytest.mark.parametrize("fence", ["```{}```", "```json\n{}\n```", " ```json {} ``` ", "{}"])
def test_an_answer_may_stand_in_one_fence(fence):
    assert verdict(retrieves("x"), fence.replace("{}", answer("x"))).value == 1.0


def test_an_answer_of_blanks_in_a_fence_is_read_at_once():
    began = time.process_time()
    for end in ("x", "```x", "``"):
        assert verdict(retrieves("x"), "```" + " " * 90_000 + end).value == 0.0
    assert time.process_time() - began < network.MAX_ANSWER_LENGTH / 1e5


@pytest.fixture
def database(tmp_path):
    with sqlite3.connect(tmp_path / "site.sqlite") as made:
        made.execute("CREATE TABLE t(x)")
        made.executemany("INSERT INTO t VALUES (?)", [(1,), (2,)])
    made.close()
    return tmp_path / "site.sqlite"


def test_a_query_reads_rows_and_writes_nothing(database):
    assert databases.query_rows(database, "SELECT x FROM t WHERE x > :a", {"a": 1}) == [(2,)]
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        databases.query_rows(database, "DELETE FROM t")


@pytest.mark.parametrize(
    ("query", "what"),
    [
        (COUNT.format("count(*)"), "took more than 0.5 s"),
        (COUNT.format("x"), "returns more than 1,000 characters"),
        (COUNT.format("zeroblob(900)"), "returns more than 1,000 characters"),
    ],
)
def test_a_query_that_never_ends_is_ended(database, monkeypatch, query, what):
    monkeypatch.setattr(databases, "SECONDS", 0.5)
    monkeypatch.setattr(databases, "MAX_SIZE", 1_000)
    with pytest.raises(WorldError, match=what):
        databases.query_rows(database, query)


def test_a_value_that_fills_the_memory_is_refused(database, monkeypatch):
    monkeypatch.setattr(databases, "MAX_SIZE", 1_000)
    with pytest.raises(sqlite3.DataError, match="too big"):
        databases.query_rows(database, "SELECT zeroblob(1001)")

"""Scores from rows: masked episodes count nowhere, and instances are the units."""

import pytest

from terrella.core.errors import EngineError
from terrella.core.instances import plain
from terrella.evals.agent_rows import EpisodeRow
from terrella.evals.agent_scores import agent_scores, compare_passes
from terrella.evals.pass_at_k import pass_values
from terrella.evals.reply_counts import ReplyCounts
from terrella.evals.results import ReferenceScores
from terrella.policies.chat_client import Usage
from terrella.show import evaluation


def row(instance, member, value, **changes):
    fields = {
        "steps": 4,
        "valid": 4,
        "effective": 2,
        "turns": 2,
        "well_formed": 1,
        "usage": Usage(requests=2, completion_tokens=10, prompt_tokens=50),
        "written": ReplyCounts(replies=2),
        "status": "ok" if value is not None else "policy_error",
        "reason": "" if value is not None else "HTTP 500",
    }
    return EpisodeRow(
        instance=instance, seed=0, member=member, value=value, **{**fields, **changes}
    )


def rows_of(**values):
    return [row(name, n, value) for name, row_ in values.items() for n, value in enumerate(row_)]


def test_pass_at_k_is_that_of_the_formula():
    scores = agent_scores(rows_of(a=[1, 0, 0, 0], b=[1, 1, 1, 1]), samples=4, reference=None)
    assert list(scores.passes) == ["1", "2", "4"]
    assert [metric.mean for metric in scores.passes.values()] == pytest.approx([0.625, 0.75, 1.0])
    assert scores.passes["1"].n == 2 and scores.well_formed.mean == 0.5


def test_a_masked_episode_is_no_failure():
    scores = agent_scores(rows_of(a=[1, 1, None, None], b=[0, 0, 0, 0]), samples=4, reference=None)
    assert scores.passes["1"].mean == 0.5  # of a: 2 of 2, not 2 of 4
    assert scores.passes["4"].n == 1 and scores.passes["4"].masked == 1
    assert scores.masked == {"policy_error": 2} and scores.masked_reason == "HTTP 500"
    assert scores.usage.requests == 16  # tokens of masked episodes were paid for, too


def test_when_everything_is_masked_there_is_no_score():
    with pytest.raises(EngineError, match="HTTP 500"):
        agent_scores(rows_of(a=[None, None]), samples=2, reference=None)


def test_partial_credit_is_no_success():
    scores = agent_scores(rows_of(a=[0.5, 0.5]), samples=2, reference=None)
    assert scores.passes["1"].mean == 0.0 and scores.score.mean == 0.5


def test_two_agents_are_compared_on_the_instances_that_they_share():
    first = agent_scores(rows_of(a=[1, 1], b=[1, 0], c=[0, 0]), samples=2, reference=None)
    second = agent_scores(rows_of(b=[0, 0], a=[1, 0]), samples=2, reference=None)
    difference = compare_passes(first, second, k=1)
    assert difference.mean == pytest.approx(0.5) and difference.n == 2
    assert compare_passes(first, agent_scores(rows_of(z=[1]), samples=1, reference=None), 1) is None


def test_fewer_judged_samples_than_k_say_nothing():
    assert pass_values([1, 2], [1, 2], k=2) == [None, 1.0]


def test_optimal_play_stands_beside_the_first_try_alone():
    reference = ReferenceScores(random={"1": 0.265, "2": 0.417}, optimal=0.575, instances=2)
    scores = agent_scores(rows_of(a=[1, 0], b=[1, 1]), samples=2, reference=reference)
    first, second, *_ = evaluation.agent_rows(plain(scores))
    assert first[2:4] == ("0.265", "0.575") and second[2:4] == ("0.417", "")

"""What limits on tokens cut off stands in the scores, for models here and behind endpoints."""

import pytest

from terrella.core.instances import plain
from terrella.core.tokens import ReplyFacts
from terrella.evals.agent_rows import EpisodeRow
from terrella.evals.agent_scores import agent_scores
from terrella.evals.reply_counts import ReplyCounts, of_chat, of_facts, written_scores
from terrella.policies.chat_client import ChatReply, Usage
from terrella.show import evaluation


def counts(written):
    """Cut off, thoughts, of these without an end, of known length, and their tokens."""
    thoughts = (written.thoughts, written.truncated_thoughts)
    return (written.truncated, *thoughts, written.counted_thoughts, written.thought_tokens)


UP, CUT = "<answer>up</answer>", {"finished": False}
THOUGHT = Usage(requests=1, completion_tokens=90, reasoning_tokens=70)
SPENT = Usage(requests=1, completion_tokens=90)


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (ChatReply(text=UP), (0, 0, 0, 0, 0)),
        (ChatReply(text="<answer>up || ", **CUT), (1, 0, 0, 0, 0)),
        (ChatReply(text=f"<think>so</think>{UP}"), (0, 1, 0, 0, 0)),  # its length is unknown
        (ChatReply(text=UP, usage=THOUGHT), (0, 1, 0, 1, 70)),
        (ChatReply(text=UP, reasoning="so"), (0, 1, 0, 0, 0)),
        (ChatReply(text="<think>so", usage=SPENT, **CUT), (1, 1, 1, 1, 90)),
        (ChatReply(text="", reasoning="so", usage=SPENT, **CUT), (1, 1, 1, 1, 90)),
        (ChatReply(text="", usage=THOUGHT, **CUT), (1, 1, 1, 1, 70)),
        (ChatReply(text="<answer>u", reasoning="so", **CUT), (1, 1, 0, 0, 0)),
        (ChatReply(text="", reasoning="I cannot play"), (0, 0, 0, 0, 0)),  # a refusal
    ],
)
def test_what_the_limit_cut_off_at_an_endpoint_is_counted(reply, expected):
    assert counts(of_chat(reply)) == expected


def test_what_the_limit_cut_off_here_is_counted():
    replies = [
        ReplyFacts(True, False),
        ReplyFacts(True, False, 8),
        ReplyFacts(False, True, 40, True),
    ]
    assert of_facts(replies).replies == 3 and counts(of_facts(replies)) == (1, 2, 1, 2, 48)


def test_the_means_are_over_instances_and_leave_out_those_without_a_thought():
    scores = written_scores(
        [
            ReplyCounts(replies=4, truncated=2, thoughts=2, counted_thoughts=2, thought_tokens=20),
            ReplyCounts(replies=1),
        ]
    )
    assert scores.truncated.mean == 0.25 and scores.truncated.n == 2
    assert scores.thought_tokens.mean == 10 and scores.thought_tokens.n == 1
    assert scores.truncated_thoughts.mean == 0.0 and scores.truncated_thoughts.masked == 1
    assert written_scores([ReplyCounts(replies=1)]).thought_tokens is None


def table(written, **changes):
    fields = {"status": "ok", "value": 0.0, "turns": 2, "steps": 2, "usage": Usage(requests=2)}
    row = EpisodeRow(instance="a", seed=0, member=0, written=written, **fields, **changes)
    return {first: mean for first, mean, *_ in evaluation.agent_rows(plain(scores_of(row)))}


def scores_of(row):
    return agent_scores([row], samples=1, reference=None)


def test_the_table_names_what_was_cut_off_and_nothing_where_nothing_was():
    cut = ReplyCounts(
        replies=2,
        truncated=1,
        thoughts=2,
        truncated_thoughts=1,
        counted_thoughts=1,
        thought_tokens=9,
    )
    rows = table(cut, out_of_tokens=True)
    assert rows["replies cut off by the limit"] == "0.500" and rows["tokens a thought"] == "9.000"
    assert rows["thoughts that did not end"] == "0.500"
    assert rows["episodes out of tokens"] == "1.000"
    quiet = table(ReplyCounts(replies=2))
    assert not {"replies cut off by the limit", "tokens a thought"} & set(quiet)
    assert not {"thoughts that did not end", "episodes out of tokens"} & set(quiet)

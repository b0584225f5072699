"""Who is to blame for a verdict that failed: the reply scores 0, anything else is masked."""

import pytest

from terrella.core.judge import attempt, find_cause, judge, judge_steps
from terrella.core.types import MASKED, Status, Stop, Text, Transition, Verdict


class Picky:
    """Fails on some replies; `broken` fails on every one."""

    def __init__(self, error=RecursionError, *, broken=False, faults=99):
        self.error, self.broken, self.faults = error, broken, faults

    def verify(self, reply, truth, before):
        if self.broken or (reply.text.startswith("evil") and self.faults):
            self.faults -= 1
            raise self.error("too deep " + "x" * 5000)
        return Verdict.of(float(reply == truth))


def ask(verifier, reply):
    return judge(verifier, reply=Text(reply), truth=Text("true"), before=Text("old"))


@pytest.mark.parametrize(
    "error", [RecursionError, MemoryError, ValueError, OverflowError, KeyError, TimeoutError]
)
def test_a_reply_that_breaks_the_verifier_scores_zero_and_is_not_masked(error, caplog):
    """A raising verdict used to be masked, so that a loss left the mean."""
    verdict = ask(Picky(error), "evil")
    assert verdict.value == 0.0 and verdict.status is Status.UNPARSABLE
    assert error.__name__ in verdict.evidence and len(verdict.evidence) < 500
    assert "scored 0" in caplog.text
    assert ask(Picky(error), "true").value == 1.0


def test_a_verifier_that_fails_on_the_truth_too_is_masked_with_its_cause():
    for reply in ("evil", "true", "fine"):
        verdict = ask(Picky(broken=True), reply)
        assert verdict.masked and verdict.status is Status.ERROR


def test_a_fault_that_passes_leaves_the_verdict_as_it_is():
    assert ask(Picky(OSError, faults=1), "evil").value == 0.0
    verdict = judge(
        Picky(OSError, faults=1), reply=Text("evil"), truth=Text("evil"), before=Text("")
    )
    assert verdict == Verdict.of(1.0)


def test_a_result_that_is_no_verdict_is_a_failure_too():
    class Odd:
        def verify(self, reply, truth, before):
            return 1.0 if reply.text == "evil" else Verdict.of(float(reply == truth))

    assert ask(Odd(), "evil").value == 0.0 and ask(Odd(), "true").value == 1.0
    raw = attempt(Odd(), reply=Text("evil"), truth=Text("true"), before=Text("old"))
    assert raw.masked and "returned float" in raw.evidence


def test_a_verdict_that_is_masked_for_another_reason_is_kept():
    masked = Verdict.failed(Status.NO_JUDGE, "no judge")
    assert find_cause(lambda reply: masked, "a", control="b") is masked
    slow = Verdict.failed(Status.TIMEOUT, "slow")
    assert find_cause({"a": slow, "b": Verdict.of(1.0)}.get, "a", control="b").value == 0.0
    assert find_cause({"a": slow, "b": slow}.get, "a", control="b") is slow


def test_one_reply_that_breaks_a_batch_does_not_mask_the_others():
    class Together(Picky):
        def verify_many(self, replies, truths, befores):
            return [self.verify(*each) for each in zip(replies, truths, befores, strict=True)]

    steps = [
        Transition(observation=Text(str(n)), action="go", next_observation=Text("true"))
        for n in range(3)
    ]
    verdicts = judge_steps(Together(), [Text("true"), Text("evil"), None], steps)
    assert [verdict.value for verdict in verdicts] == [1.0, 0.0, 0.0]


def test_every_broken_end_of_an_episode_has_its_own_cause():
    assert {stop.status for stop in Stop if stop.is_broken} == {
        Status.ENV_TIMEOUT,
        Status.ENV_ERROR,
        Status.POLICY_ERROR,
    }
    assert Stop.TERMINATED.status is Status.OK and Status.OK not in MASKED
    assert all(Verdict.failed(status, "").masked for status in MASKED) and len(MASKED) == 7

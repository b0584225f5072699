"""The driver's records.

Tokens as sampled, world tokens masked, turns where they end, failures masked and named.
"""

import asyncio
import dataclasses
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from tests.support.tiny_model import tiny_model

from terrella.codecs.interleaved import InterleavedCodec
from terrella.core.errors import ConfigError
from terrella.core.tokens import Sampled, Task, TokenEpisode
from terrella.core.types import Status
from terrella.engines.local.local_sampler import LocalSampler
from terrella.rollout.rollout import Rollout
from terrella.rollout.tasks import AgentTasks, PredictionTasks
from terrella.worlds.counter import Counter

MODEL, TOKENIZER = tiny_model()


class Recording:
    """A sampler that remembers what it was asked and what it said."""

    def __init__(self) -> None:
        self.inner, self.said = LocalSampler(MODEL), {}

    async def sample(self, request: Any) -> Sampled:
        found = await self.inner.sample(request)
        self.said[request.prompt_ids, request.seed] = found
        return found

    def release(self, session: str) -> None:
        self.inner.release(session)


def rollout(**changes: Any) -> Rollout:
    config = Rollout.Config(
        **{"world": Counter.Config(), "max_turns": 4, "turn_tokens": 5, **changes}
    )
    return Rollout(config, InterleavedCodec(TOKENIZER))


def play(count: int, sampler: Any = None, **changes: Any) -> list[TokenEpisode]:
    tasks = [AgentTasks()(index) for index in range(count)]
    return rollout(**changes).run(sampler or LocalSampler(MODEL), tasks, group_size=4, seed=3)


def model_spans(episode: TokenEpisode) -> list[tuple[int, int]]:
    """Start and end of each run of model tokens."""
    mask = [False, *episode.model_mask, False]
    edges = [place for place in range(len(mask) - 1) if mask[place] != mask[place + 1]]
    return list(zip(edges[::2], edges[1::2], strict=True))


def test_what_was_sampled_is_what_is_recorded():
    sampler = Recording()
    episodes = play(8, sampler)
    said = {prompt: found for (prompt, _), found in sampler.said.items()}
    replies = 0
    for episode in episodes:
        for start, end in model_spans(episode):
            found = said[(*episode.prompt_ids, *episode.completion_ids[:start])]
            assert len(found.token_ids) == end - start
            if (
                found.token_ids == episode.completion_ids[start:end]
            ):  # siblings may share a history and differ
                assert found.logprobs == episode.logprobs[start:end]
            replies += 1
    assert replies == sum(len(episode.turn_ends) for episode in episodes) >= 32
    everything = sorted(found.token_ids for found in sampler.said.values())
    assert everything == sorted(e.completion_ids[s:t] for e in episodes for s, t in model_spans(e))


def test_turns_end_where_the_model_stopped_writing_and_world_tokens_have_no_log_probability():
    for episode in play(4):
        assert list(episode.turn_ends) == [end for _, end in model_spans(episode)]
        assert len(episode.turn_rewards) == len(episode.turn_ends)
        assert all(
            p == 0.0
            for p, mine in zip(episode.logprobs, episode.model_mask, strict=True)
            if not mine
        )
        assert episode.model_mask[-1]  # nothing is read after the last reply


def test_members_share_a_question_and_differ_in_their_answers():
    first = play(2)
    for group in (first[:4], first[4:]):
        assert (
            len({episode.prompt_ids for episode in group})
            == 1
            == len({episode.group for episode in group})
        )
        assert len({episode.completion_ids for episode in group}) == 4
    assert first[0].prompt_ids != first[4].prompt_ids
    again = rollout().run(LocalSampler(MODEL), [AgentTasks()(1)], group_size=4, seed=3)
    assert [e.completion_ids for e in again] == [
        e.completion_ids for e in first[4:]
    ]  # alone or among others


def test_an_episode_ends_when_its_tokens_do():
    for episode in play(2, episode_tokens=20):
        assert len(episode.completion_ids) <= 20


def test_a_prediction_is_one_turn_paid_with_its_verdict():
    tasks = [PredictionTasks(Counter.Config())(index) for index in range(3)]
    for episode in rollout().run(LocalSampler(MODEL), tasks, group_size=2, seed=0):
        assert all(episode.model_mask) and episode.turn_ends == (len(episode.completion_ids),)
        assert episode.turn_rewards == (episode.outcome.value,)


class Breaks(Counter):
    """A counter that cannot be pressed on one seed."""

    def outcomes(self, state: Any, action: str) -> Any:
        if self.seed == 1:
            raise RuntimeError("the world fell apart")
        return super().outcomes(state, action)


class Presses(InterleavedCodec):
    """Reads every reply as a press of the button."""

    def read_actions(self, token_ids: Any) -> tuple[str, ...]:
        return ("up",)


def test_a_world_that_raises_costs_its_own_episodes(caplog: pytest.LogCaptureFixture):
    breaking = Rollout(
        Rollout.Config(world=Breaks.Config(), max_turns=2, turn_tokens=3), Presses(TOKENIZER)
    )
    episodes = breaking.run(
        LocalSampler(MODEL), [AgentTasks()(0), AgentTasks()(1)], group_size=4, seed=3
    )
    assert [episode.outcome.status for episode in episodes[4:]] == [Status.ENV_ERROR] * 4
    assert all(episode.outcome.value is None for episode in episodes[4:])
    assert all(episode.outcome.value is not None for episode in episodes[:4])
    assert "the world fell apart" in caplog.text


def test_a_task_may_be_played_twice_at_once():
    task = AgentTasks()(0)
    running = rollout().run_async(LocalSampler(MODEL), [task, task], group_size=1, seed=3)
    first, second = asyncio.run(asyncio.wait_for(running, 60))
    assert first == second


def several_steps() -> Task:
    task = PredictionTasks(Counter.Config())(0)
    return dataclasses.replace(task, following=(task.transition,) * 5)


@pytest.mark.parametrize("task", [AgentTasks()(0), several_steps()])
def test_an_episode_ends_where_the_model_can_read_no_more(task: Any):
    readable = 80

    class Small(Recording):
        context_tokens = readable

    sampler = Small()
    (episode,) = rollout(max_turns=6, turn_tokens=9).run(sampler, [task], group_size=1, seed=3)
    asked = [len(prompt) for prompt, _ in sampler.said]
    ends = [len(p) + len(found.token_ids) for (p, _), found in sampler.said.items()]
    assert 1 < len(asked) < 6 and max(ends) <= readable
    assert len(episode.turn_rewards) == len(asked)
    with pytest.raises(ConfigError, match="context_tokens"):
        rollout(max_turns=6, context_tokens=readable + 1).run(sampler, [task], group_size=1, seed=3)

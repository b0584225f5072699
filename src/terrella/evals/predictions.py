"""Evaluation of a world model: is what it predicts what the world then showed?

A policy plays test instances; the model is asked, greedily, for the observation after some of the
steps. In imagination it starts at the first observation and continues from its own predictions,
with the same actions. Any chat model can be asked, here or behind an endpoint.
    predictor = TokenPredictor(sampler, codec, turn_tokens=256)
    row = await predict_instance(predictor, verifier, "3f2a", tasks, steps=4, horizon=5)
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from terrella.codecs.chat import prediction_messages
from terrella.core.errors import PolicyError
from terrella.core.judge import UNREADABLE, judge
from terrella.core.protocols import Codec, Sampler, Verifier
from terrella.core.seeds import TASK_STREAM, stream
from terrella.core.tokens import Task, TokenRequest
from terrella.core.types import (
    Observation,
    Situation,
    Status,
    Transition,
    Verdict,
    show_text,
)
from terrella.evals.agent_rows import reply_text
from terrella.evals.endpoint_agent import ChatThreads
from terrella.evals.reply_counts import ReplyCounts, of_chat, of_facts
from terrella.policies.chat_client import Usage
from terrella.policies.endpoint import reply_observation
from terrella.rollout.rollout import reply_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A model's reply: the observation in it, or None if it cannot be read."""

    observation: Observation | None
    text: str
    reasoning: str = ""
    written: ReplyCounts = field(default_factory=ReplyCounts)
    usage: Usage = field(default_factory=Usage)


class Predictor(Protocol):
    """A model that is asked what follows an action."""

    async def predict(self, situation: Situation, action: str) -> Predicted: ...


class TokenPredictor:
    """A model that is sampled here, greedily."""

    def __init__(self, sampler: Sampler, codec: Codec, *, turn_tokens: int) -> None:
        self.sampler = sampler
        self.codec = codec
        self.turn_tokens = turn_tokens

    async def predict(self, situation: Situation, action: str) -> Predicted:
        prompt = self.codec.ask_observation(situation, action)
        sampled = await self.sampler.sample(
            TokenRequest(
                prompt_ids=prompt,
                max_new_tokens=self.turn_tokens,
                seed=0,
                temperature=0.0,
                stop_ids=self.codec.stop_ids,
            )
        )
        ids = sampled.token_ids
        observation = self.codec.read_observation(ids, like=situation.observation)
        facts = reply_facts(self.codec, sampled, readable=observation is not None)
        return Predicted(
            observation=observation,
            text=reply_text(self.codec, ids),
            written=of_facts([facts]),
            usage=Usage(requests=1, prompt_tokens=len(prompt), completion_tokens=len(ids)),
        )


class EndpointPredictor:
    """A model behind a chat endpoint; its config says the temperature."""

    def __init__(self, chat: ChatThreads, *, thinks: bool = False) -> None:
        """The prompt asks for a thought if the model thinks."""
        self.chat = chat
        self.thinks = thinks

    async def predict(self, situation: Situation, action: str) -> Predicted:
        messages = prediction_messages(situation, action, thinks=self.thinks)
        reply = await self.chat.chat(messages, seed=0)
        return Predicted(
            observation=reply_observation(reply, like=situation.observation),
            text=reply.text,
            reasoning=reply.reasoning,
            written=of_chat(reply),
            usage=reply.usage,
        )


# --- rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One predicted step."""

    step: int
    """Its number in the episode; in imagination also the depth, less one."""
    action: str
    changed: bool
    """Whether predicting what the model started from would have been wrong."""
    value: float | None
    """The verifier's verdict; None if it is masked."""
    no_change: float | None
    """The verdict on predicting that nothing changes."""
    status: str
    written: ReplyCounts
    """How the reply ended, and its thought; without a reply in imagination nothing is counted."""
    reply: str = ""
    reasoning: str = ""
    truth: str = ""


@dataclass(frozen=True, kw_only=True)
class PredictionRow:
    """All predictions on one instance."""

    instance: str
    seed: int
    steps: list[StepRow]
    """Each from a real observation."""
    imagined: list[StepRow]
    """Each from the prediction before it."""
    usage: Usage
    reason: str = ""
    """Why nothing could be predicted here: the endpoint failed. Then the lists are empty."""

    @property
    def may_pass(self) -> bool:
        return bool(self.reason)


async def predict_instance(
    predictor: Predictor,
    verifier: Verifier,
    instance: str,
    tasks: Sequence[Task],
    *,
    steps: int,
    horizon: int,
) -> PredictionRow:
    """Ask for `steps` drawn steps of an episode, and for its first `horizon` in imagination."""
    seed = tasks[0].seed
    drawn = stream(TASK_STREAM, seed).permutation(len(tasks))[:steps]
    chosen = [(int(index), *_parts(tasks[index])) for index in sorted(drawn)]
    counted = _Counted(predictor)
    try:
        answers = await _all_answers(
            counted.predict(situation, step.action) for _, situation, step in chosen
        )
        imagined = await _imagine(counted, verifier, tasks[:horizon])
    except PolicyError as failed:
        reason = f"{failed.where}: {failed.what}"
        return PredictionRow(
            instance=instance, seed=seed, steps=[], imagined=[], usage=counted.usage, reason=reason
        )
    rows = [
        _step_row(verifier, number, step, step.observation, answer)
        for (number, _, step), answer in zip(chosen, answers, strict=True)
    ]
    return PredictionRow(
        instance=instance, seed=seed, steps=rows, imagined=imagined, usage=counted.usage
    )


class _Counted:
    """A predictor that adds up what its answers cost, whatever becomes of the others."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.usage = Usage()

    async def predict(self, situation: Situation, action: str) -> Predicted:
        answer = await self.predictor.predict(situation, action)
        self.usage += answer.usage
        return answer


async def _all_answers(asked: Iterable[Awaitable[Predicted]]) -> list[Predicted]:
    """All answers, or the first failure once nothing is under way any more."""
    answers = []
    for answer in await asyncio.gather(*asked, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer
        answers.append(answer)
    return answers


async def _imagine(
    predictor: Predictor, verifier: Verifier, tasks: Sequence[Task]
) -> list[StepRow]:
    """Predictions from predictions. One that cannot be read makes all later ones wrong."""
    rows: list[StepRow] = []
    first = _parts(tasks[0])[1].observation
    believed: Observation | None = first
    for number, task in enumerate(tasks):
        situation, step = _parts(task)
        answer = Predicted(observation=None, text="")
        if believed is not None:
            asked = dataclasses.replace(situation, observation=believed, history=())
            answer = await predictor.predict(asked, step.action)
        rows.append(_step_row(verifier, number, step, first, answer))
        believed = answer.observation
    return rows


def _parts(task: Task) -> tuple[Situation, Transition]:
    if task.situation is None or task.transition is None:
        raise ValueError("a prediction task needs its situation and its transition")
    return task.situation, task.transition


def _step_row(
    verifier: Verifier, number: int, step: Transition, before: Observation, answer: Predicted
) -> StepRow:
    truth = step.next_observation
    verdict = Verdict.unparsable(UNREADABLE)
    if answer.observation is not None:
        verdict = judge(verifier, reply=answer.observation, truth=truth, before=before)
    no_change = judge(verifier, reply=before, truth=truth, before=before).value
    return StepRow(
        step=number,
        action=step.action,
        changed=before != truth and no_change != 1.0,
        value=verdict.value,
        no_change=no_change,
        status=verdict.status.value,
        written=answer.written,
        reply=answer.text,
        reasoning=answer.reasoning,
        truth=show_text(truth),
    )


def is_unparsable(row: StepRow) -> bool:
    return row.status == Status.UNPARSABLE

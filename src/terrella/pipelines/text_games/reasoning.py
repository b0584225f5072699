"""SFT examples with reasoning: a teacher thinks and answers, and the verifier selects.

Any OpenAI-compatible server can be the teacher. A reply is used, with its reasoning, only if its
answer is fully correct; each record is tried a few times. Rejected replies are counted.
    teacher = Endpoint.Config(url="http://127.0.0.1:8000/v1").build()
    examples, counts = reasoned_examples(world, codec, records, teacher.complete, tries=4)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from terrella.codecs.answers import read_prediction
from terrella.codecs.chat import Message, prediction_messages
from terrella.codecs.chat_tokens import ChatCodec
from terrella.core.judge import judge
from terrella.core.tokens import TrainExample
from terrella.core.types import Observation, State, Status, Text
from terrella.evals.text_games import situation_of
from terrella.worlds.bytesized32 import ByteSized32
from terrella.worlds.bytesized32.records import Record

THINK = (
    "First think in a few short sentences about what the action does, then reply in the form above."
)
Complete = Callable[[list[Message], int], str]
"""From messages and a sampling seed to a reply: `Endpoint.complete`."""


def reasoned_examples(
    world: ByteSized32,
    codec: ChatCodec,
    records: Sequence[Record],
    complete: Complete,
    *,
    tries: int = 4,
) -> tuple[list[TrainExample], Counter[str]]:
    """One example per record that was answered correctly within `tries`.

    Also counts the replies that were right, wrong or unreadable.
    """
    examples: list[TrainExample] = []
    counts: Counter[str] = Counter()
    for number, record in enumerate(records):
        seeds = range(number * tries, (number + 1) * tries)
        reply = _correct_reply(world, record, complete, seeds, counts)
        if reply is not None:
            situation, action = situation_of(world, record), world.actions()[0]
            completion = (*codec.write(reply), codec.stop_ids[0])
            example = TrainExample(
                prompt_ids=codec.ask_observation(situation, action),
                completion_ids=completion,
                mask=(True,) * len(completion),
            )
            examples.append(example)
    return examples, counts


def _correct_reply(
    world: ByteSized32, record: Record, complete: Complete, seeds: range, counts: Counter[str]
) -> str | None:
    step, situation = world.transition(record), situation_of(world, record)
    system, query = prediction_messages(situation, step.action)
    messages = [{**system, "content": f"{system['content']}\n{THINK}"}, query]
    truth = step.next_observation
    for seed in seeds:
        reply = complete(messages, seed)
        answer = read_prediction(reply)
        if answer is None:
            counts["unreadable"] += 1
            continue
        verdict = judge(
            world.verifier, reply=_like(truth, answer), truth=truth, before=step.observation
        )
        if verdict.value == 1.0:
            counts["right"] += 1
            return reply.strip()
        counts["unreadable" if verdict.status is Status.UNPARSABLE else "wrong"] += 1
    return None


def _like(truth: Observation, answer: str) -> Observation:
    return State(answer) if isinstance(truth, State) else Text(answer)

"""SFT rows with reasoning text: an endpoint thinks and answers, the world's verifier keeps what is right.

Any OpenAI-compatible server can be the teacher. A reply is kept, thoughts and all, only if its answer earns a full 1;
each question is tried a few times. What was refused is counted, never trained on.
    kept, counts = reasoned_rows(world, codec, records, Endpoint.Config(url=...).build().complete, tries=4)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from terrella.codecs.chat import Message, prediction_messages, read_prediction
from terrella.codecs.chat_tokens import ChatCodec
from terrella.core.judge import judge
from terrella.core.types import Observation, State, Status, Text
from terrella.engines.trl.packs import TrainingRow
from terrella.stages.game_rows import situation_of
from terrella.worlds.bytesized32 import ByteSized32
from terrella.worlds.bytesized32.records import Record

THINK = "First think in a few short sentences about what the action does, then reply in the form above."
Ask = Callable[[list[Message], int], str]
"""Messages and a sampling seed to a reply: `Endpoint.complete`."""


def reasoned_rows(
    world: ByteSized32, codec: ChatCodec, records: Sequence[Record], ask: Ask, *, tries: int = 4
) -> tuple[list[TrainingRow], Counter[str]]:
    """A row per record whose answer was right within `tries`; and how many replies were right, wrong or unreadable."""
    rows: list[TrainingRow] = []
    counts: Counter[str] = Counter()
    for number, record in enumerate(records):
        reply = _right_reply(world, record, ask, range(number * tries, (number + 1) * tries), counts)
        if reply is not None:
            situation, action = situation_of(world, record), world.actions()[0]
            prompt = codec.ask_observation(situation, action)
            written = (*codec.write(reply), codec.stop_ids[0])
            rows.append(TrainingRow(prompt_ids=prompt, completion_ids=written, mask=(True,) * len(written)))
    return rows, counts


def _right_reply(world: ByteSized32, record: Record, ask: Ask, seeds: range, counts: Counter[str]) -> str | None:
    step, situation = world.transition(record), situation_of(world, record)
    system, question = prediction_messages(situation, step.action)
    asked = [{**system, "content": f"{system['content']}\n{THINK}"}, question]
    for seed in seeds:
        reply = ask(asked, seed)
        said = read_prediction(reply)
        if said is None:
            counts["unreadable"] += 1
            continue
        truth = step.next_observation
        verdict = judge(world.verifier, reply=_like(truth, said), truth=truth, before=step.observation)
        if verdict.value == 1.0:
            counts["right"] += 1
            return reply.strip()
        counts["unreadable" if verdict.status is Status.UNPARSABLE else "wrong"] += 1
    return None


def _like(truth: Observation, said: str) -> Observation:
    return State(said) if isinstance(truth, State) else Text(said)

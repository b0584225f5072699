"""SFT examples with reasoning: a teacher's thought and answer where the verifier finds it right.

The thought stands before the answer as the model's template has it: where the prompt already opens
a thought (R1's template does), the completion begins inside it.
    questions = teacher_questions(world, records, ask_for_thought=True)
    examples = reasoned_examples(world, codec, records, replies, longest=4000)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from terrella.codecs.answers import answer_text
from terrella.codecs.chat import prediction_messages
from terrella.codecs.chat_tokens import ChatCodec
from terrella.core.chat import END_THINK, THINK
from terrella.core.tokens import TrainExample
from terrella.evals.text_games import situation_of
from terrella.pipelines.text_games.teacher import Question, TeacherReply
from terrella.worlds.bytesized32 import ByteSized32
from terrella.worlds.bytesized32.records import Record

ASK_FOR_THOUGHT = (
    "First think in a few short sentences about what the action does, then reply in the form above."
)


def teacher_questions(
    world: ByteSized32, records: Iterable[Record], *, ask_for_thought: bool
) -> Iterator[Question]:
    """What the teacher is asked, record by record."""
    for number, record in enumerate(records):
        step = world.transition(record)
        system, query = prediction_messages(situation_of(world, record), step.action)
        if ask_for_thought:
            system = {**system, "content": f"{system['content']}\n{ASK_FOR_THOUGHT}"}
        yield Question(
            number=number,
            messages=[system, query],
            before=step.observation,
            truth=step.next_observation,
        )


def reasoned_examples(
    world: ByteSized32,
    codec: ChatCodec,
    records: Sequence[Record],
    replies: Iterable[TeacherReply],
    *,
    longest: int,
) -> tuple[list[TrainExample], int]:
    """An example for each record with a right reply, and how many were too long."""
    examples: list[TrainExample] = []
    too_long = 0
    for reply in replies:
        if reply.kind != "right":
            continue
        step = world.transition(records[reply.number])
        situation = situation_of(world, records[reply.number])
        prompt = codec.ask_observation(situation, step.action)
        text = reply_text(reply, opened=codec.opens_thought)
        completion = (*codec.write(text), codec.stop_ids[0])
        if len(completion) > longest:
            too_long += 1
            continue
        examples.append(
            TrainExample(
                prompt_ids=prompt, completion_ids=completion, mask=(True,) * len(completion)
            )
        )
    return examples, too_long


def reply_text(reply: TeacherReply, *, opened: bool) -> str:
    """The thought, then the answer in its tag."""
    start = "" if opened else f"{THINK}\n"
    answer = answer_text(reply.answer, blank="\n")
    return f"{start}{reply.thought}\n{END_THINK}\n\n{answer}"

"""A curriculum that writes: what is new, what can be done, who checks it, and what it leaves."""

import numpy as np
import pytest
from tests.support.word_counter import HELD_OUT, WordCounter

from terrella.core.errors import ConfigError, WorldError
from terrella.core.tokens import Task
from terrella.core.types import Split
from terrella.data.attempts import Attempt, Choice, PracticeTask
from terrella.pipelines.webrl.curriculum import Curriculum
from terrella.pipelines.webrl.curriculum_report import curriculum_table, instruction_lines
from terrella.pipelines.webrl.duplicates import duplicates, values_of
from terrella.pipelines.webrl.instructions import (
    InstructionWriter,
    Models,
    PhaseInstructions,
    WrittenInstruction,
    read_instructions,
)
from terrella.pipelines.webrl.proposers import PracticeRecord
from terrella.rollout.batch_rollout import BatchRollout
from terrella.rollout.wire import pack_task, unpack_task
from terrella.worlds.counter import Counter

FAMILIES = {"count": WordCounter.Config(goals=9, max_steps=6)}
FAILED = "Count from 2 to 6."


def record(instruction=FAILED, written=""):
    page = f'[1] task "{instruction}"\n[2] text "2"'
    choice = Choice(observation=page, offered=("up",), taken=0, logprob=0.0, steps_left=1)
    past = PracticeRecord(tuple(FAMILIES))
    lost = Attempt(
        task=PracticeTask(family="count", seed=1, written=written),
        instruction="Count.",
        choices=(choice,),
        last=page,
        success=False,
        stop="out_of_steps",
    )
    past.add([lost], [0.0])
    return past


def write(past=None, *, say=None, screen=None, judged=False, count=20, **config):
    prompts = []

    def reply(prompt, seed):
        prompts.append(prompt)
        return say

    writer = InstructionWriter.Config(share=1.0, turns=1, **config).build()
    models = Models(write=reply if say is not None else None, screen=screen)
    with BatchRollout(FAMILIES) as rollout:
        written = writer.write(
            past or record(),
            rollout,
            models,
            count=count,
            rng=np.random.default_rng(0),
            judged=judged,
        )
    return written, prompts


def test_the_fate_of_every_instruction_is_told():
    say = (
        "Here you are: `Count from 3 to 7.`, `Count from 2 to 6.`\n`count from 3 to 7`\n"
        f"`{HELD_OUT}` `Count from 1 to 99.` `Sing a song for me.` `short` and `not closed"
    )
    written, prompts = write(say=say)
    assert [(each.text, each.fate) for each in written.instructions] == [
        ("Count from 3 to 7.", "proposed"),
        (FAILED, "repeated"),
        ("count from 3 to 7", "repeated"),
        (HELD_OUT, "repeated"),
        ("Count from 1 to 99.", "infeasible"),
        ("Sing a song for me.", "unchecked"),
    ]
    assert f"- `{FAILED}`" in prompts[0] and HELD_OUT not in prompts[0]
    assert written.replies == [say] and written.fates["repeated"] == 3
    assert written.instructions[4].reason == "no goal 99"
    (task,) = written.tasks
    assert task.written == "Count from 3 to 7." and task.family == "count"


def test_without_a_check_an_outcome_model_must_judge_and_a_model_may_refuse():
    say = "`Sing a song for me.` `Count from 3 to 8.`"
    written, _ = write(say=say, judged=True)
    assert [(each.fate, each.checked) for each in written.instructions] == [
        ("proposed", False),
        ("proposed", True),
    ]
    asked = []

    def screen(prompt, seed):
        asked.append(prompt)
        return "[NO]" if "Sing" in prompt else "I think [YES]"

    written, _ = write(say=say, judged=True, screen=screen)
    assert [each.fate for each in written.instructions] == ["refused", "proposed"]
    assert all(HELD_OUT not in prompt for prompt in asked) and FAILED in asked[0]
    silent, _ = write(say=say, judged=True, screen=lambda prompt, seed: "Perhaps.")
    assert silent.fates == {"refused": 2}


@pytest.mark.parametrize("earlier", ["", '{"intent": "Sing."}'])
def test_a_new_instruction_begins_as_what_failed_also_if_that_was_written(monkeypatch, earlier):
    begun = []
    draft = WordCounter.draft
    monkeypatch.setattr(
        WordCounter,
        "draft",
        lambda self, text, like: (begun.append(like), draft(self, text, like))[1],
    )
    write(record("Sing.", earlier), say="`Dance a little.`", judged=True)
    assert begun == [earlier or "Sing."]


def test_templates_write_without_a_model_and_without_a_failure():
    empty = PracticeRecord(tuple(FAMILIES))
    written, prompts = write(empty, count=12)
    assert len(written.instructions) == 12 and not prompts and written.tasks
    nothing, prompts = write(empty, say="`Count from 3 to 7.`")
    assert nothing.instructions == [] and not prompts  # nothing to write from


def test_what_an_earlier_phase_asked_is_not_written_again():
    past = record("Count from 3 to 7.")
    past.add([], [])  # a later phase, in which nothing failed
    written, _ = write(past, count=40)
    fates = {each.text: each.fate for each in written.instructions}
    assert "repeated" in fates.values() and not past.failed
    written, _ = write(record("Count from 3 to 7."), say="`Count from 3 to 7` `Count from 4 to 8.`")
    assert [each.fate for each in written.instructions] == ["repeated", "proposed"]


def test_a_world_without_instructions_is_refused():
    writer = InstructionWriter.Config(share=1.0).build()
    with (
        BatchRollout({"count": Counter.Config()}) as rollout,
        pytest.raises(ConfigError, match="takes no instructions"),
    ):
        rng = np.random.default_rng(0)
        writer.write(record(), rollout, Models(), count=2, rng=rng, judged=False)


def test_instructions_are_read_as_the_authors_do_but_bounded():
    reply = (
        "`Open the shop.` ``\n`two\nlines here`\n`"
        + "x" * 400
        + "` `a\tb   c d e f` `\x07bell bell`"
    )
    assert read_instructions(reply) == ["Open the shop.", "a b c d e f"]
    assert read_instructions("`" * 100_000) == []


def test_like_texts_with_other_values_are_other_tasks():
    known = ["Who owns ticket 3?", "Open the category Garden of the shop."]
    texts = [
        "Who owns ticket 4?",
        "who owns ticket 3",
        "Open the category Kitchen of the shop.",
        "Open the shop's category Garden.",
        "Who owns ticket 4",
    ]
    found = duplicates(texts, known, measure="words", least=0.7)
    assert found == ["", known[0], "", known[1], texts[0]]
    assert values_of('Write "Hi there." to Ida by 3.50') == {"hi there", "ida", "3.50"}


def test_embeddings_find_what_is_said_in_other_words():
    pytest.importorskip("wordllama", reason="an extra: pip install 'terrella[embeddings]'")
    known = ["Which customer placed order 100001?"]
    texts = ["Who placed the order 100001, which customer?", "Delete all reviews of 100001."]
    found = duplicates(texts, known, measure="wordllama", least=0.7)
    assert found == [known[0], ""]


@pytest.mark.parametrize("measure", ["words", "wordllama"])
def test_each_measure_has_a_threshold_of_its_own(measure):
    """A politer text repeats; the opposite, and another priority, do not."""
    if measure == "wordllama":
        pytest.importorskip("wordllama", reason="an extra: pip install 'terrella[embeddings]'")
    known = ["Upvote the newest post of the forum.", "How many tickets are of priority major?"]
    texts = [
        "Please upvote the newest post of the forum.",
        "Downvote the newest post of the forum.",
        "How many tickets are of priority minor?",
    ]
    writer = InstructionWriter(InstructionWriter.Config(duplicates=measure))
    fates = [each.fate for each in writer._compared("forum", texts, known)]
    assert fates == ["repeated", "proposed", "proposed"]
    never = InstructionWriter(InstructionWriter.Config(duplicates=measure, similarity=1.0))
    assert {each.fate for each in never._compared("forum", texts, known)} == {"proposed"}


def test_a_missing_embedding_is_an_error_and_not_another_measure(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wordllama", None)
    with pytest.raises(ImportError, match=r"terrella\[embeddings\]"):
        duplicates(["a b"], [], measure="wordllama", least=0.9)


# --- written tasks in worlds ----------------------------------------------------------------------


def test_a_written_task_is_played_and_only_for_practice():
    world = FAMILIES["count"].build()
    _, info = world.reset(seed=0, options={"written": "Count from 3 to 7."})
    assert (world.state.value, world.state.goal) == (3, 7) and info["split"] == "train"
    again = FAMILIES["count"].build()
    assert (
        again.reset(seed=9, options={"written": "Count from 3 to 7."})[1]["instance"]
        == (info["instance"])
    )
    with pytest.raises(ConfigError, match="for practice"):
        world.reset(seed=0, options={"written": "Count from 3 to 7.", "split": Split.TEST})
    with pytest.raises(WorldError, match="takes no written tasks"):
        Counter.Config().build().reset(seed=0, options={"written": "x"})
    world.reset(seed=0)
    assert world.written == ""


def test_a_written_task_crosses_processes():
    task = Task(seed=3, noise_seed=1, written='{"intent": "Öffne"}')
    assert unpack_task(pack_task(task, 2)) == (task, 2)


def test_written_tasks_are_proposed_first_and_counted_when_admitted():
    curriculum = Curriculum.Config(tries=1).build()
    say = "`Count from 3 to 7.` `Count from 3 to 8.` `Count from 1 to 99.`"
    written, _ = write(say=say)
    past = record()
    proposals = curriculum.propose(past, count=6, rng=np.random.default_rng(0), written=written)
    assert len(proposals.tasks) == 6 and [bool(task.written) for task in proposals.tasks[:3]] == [
        True,
        True,
        False,
    ]
    values = [0.9, *[0.4] * 5]
    with BatchRollout(FAMILIES) as rollout:
        shown = rollout.first_inputs(proposals.tasks[:1], Split.TRAIN)
        assert "3" in shown[0].text
        chosen = curriculum.admit(proposals, values, past, rollout, count=5, written=written)
    assert chosen.log.written == {"proposed": 2, "infeasible": 1, "admitted": 1}
    table = curriculum_table([chosen.log], ["count"])
    assert "| 1 | 2 | 0 | 1 | 0 | 0 | 1 |" in table


def test_the_report_shows_untrusted_text_as_text():
    hostile = WrittenInstruction(
        family="count", text="Do | <script>x</script> [a](b)", fate="proposed", task="t"
    )
    refused = WrittenInstruction(family="count", text="Sing.", fate="refused", reason="no")
    name = hostile.practice.name
    lines = instruction_lines(
        2, PhaseInstructions(instructions=[hostile, refused]), {name: 0.31}, {name: [1.0, None]}
    )
    row = next(line for line in lines if "script" in line)
    assert "<script>" not in row and "\\|" in row and "\\[a]" in row
    assert row.endswith("| outcome model | 0.31 | won, unjudged |")
    assert any("| Sing. | refused: no |  |  |  |" in line for line in lines)


def test_the_actor_is_asked_in_its_own_template():
    pytest.importorskip("transformers", reason="needs the extra: pip install 'terrella[train]'")
    from tests.support.tiny_chat import chat_tokenizer

    from terrella.codecs.web_prompt import WebCodecConfig
    from terrella.core.tokens import Sampled
    from terrella.pipelines.webrl.language_writer import LanguageWriter

    codec = WebCodecConfig(form="chat").make(chat_tokenizer())
    asked = []

    class Echo:
        async def sample(self, request):
            asked.append(request)
            ids = codec.reply("`Open the shop.`")
            return Sampled(token_ids=ids, logprobs=(0.0,) * len(ids), stopped=True)

    said = LanguageWriter(Echo(), codec, 16).complete("Write a task.", seed=3)
    assert read_instructions(said) == ["Open the shop."]
    shown = codec.tokenizer.decode(asked[0].prompt_ids)
    assert "<|im_start|>user\nWrite a task.<|im_end|>" in shown and shown.endswith("assistant\n")
    assert (asked[0].seed, asked[0].max_new_tokens) == (3, 16)

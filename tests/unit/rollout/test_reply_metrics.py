"""The form of replies, from the sampler to the training metrics."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from tests.support.chat_templates import chat_tokenizer
from tests.support.scripted_sampler import ScriptedSampler

from terrella.codecs.chat_tokens import ChatCodec
from terrella.core.tokens import ReplyFacts
from terrella.core.types import Split
from terrella.engines.trl.rlvr_batch import episode_metrics
from terrella.rollout.rollout import Rollout
from terrella.rollout.tasks import AgentTasks, PredictionTasks
from terrella.worlds.counter import Counter

WORLD = Counter.Config()


class OneProcess:
    device = "cpu"

    def gather(self, values):
        return values


def play(name, text, *, task, turns=1, limit=64):
    codec = ChatCodec(chat_tokenizer(name))
    ids = (*codec.tokenizer.encode(text, add_special_tokens=False), codec.stop_ids[0])
    config = Rollout.Config(world=WORLD, max_turns=turns, turn_tokens=limit)
    with Rollout(config, codec) as rollout:
        episodes = rollout.run(ScriptedSampler(lambda _: ids), [task], group_size=2, seed=0)
    return codec, episodes


def metrics(episodes):
    rewards = torch.tensor([[episode.outcome.value for episode in episodes]])
    return episode_metrics(episodes, rewards, OneProcess())


@pytest.mark.parametrize("name", ["r1", "qwen3", "chatml"])
def test_thoughts_are_measured_in_tokens(name):
    opening = "" if name == "r1" else "<think>"
    thought, answer = f"{opening}\nI go up.\n</think>", "\n\n<answer> up </answer>"
    codec, episodes = play(name, thought + answer, task=AgentTasks()(0), turns=2)
    expected = len(codec.tokenizer.encode(thought, add_special_tokens=False))
    assert episodes[0].replies[0] == ReplyFacts(True, False, expected, False)
    row = metrics(episodes)
    assert row["thought/tokens"] == expected and row["thought/truncated"] == 0.0
    assert row["reply/format_errors"] == row["reply/truncated"] == 0.0


def test_a_cut_off_thought_is_truncated_and_no_answer():
    _, episodes = play("r1", "<answer> up </answer>" + " so" * 90, task=AgentTasks()(0), limit=30)
    assert episodes[0].replies == (ReplyFacts(False, True, 30, True),)
    row = metrics(episodes)
    assert row["thought/truncated"] == row["reply/truncated"] == row["reply/format_errors"] == 1.0


def test_a_prediction_that_the_verifier_cannot_parse_is_a_format_error():
    task = PredictionTasks(WORLD, split=Split.TRAIN)(0)
    _, (first, _) = play("chatml", "<answer>\nno json\n</answer>", task=task)
    assert first.replies == (ReplyFacts(False, False),)
    _, (right, _) = play(
        "chatml", f"The final answer is: {task.transition.next_observation.text}", task=task
    )
    assert right.replies == (ReplyFacts(True, False),) and right.outcome.value == 1.0


def test_without_thoughts_there_are_no_metrics_of_thoughts():
    _, episodes = play("chatml", "<answer> up </answer>", task=AgentTasks()(0))
    row = metrics(episodes)
    assert row["reply/format_errors"] == 0.0 and not any(
        name.startswith("thought/") for name in row
    )

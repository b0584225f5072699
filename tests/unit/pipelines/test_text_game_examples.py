"""SFT examples of text games: shared states, targets, and reasoning that was verified."""

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL

from terrella.codecs.interleaved import InterleavedCodec
from terrella.core.types import Split, show_text
from terrella.engines.trl.packs import pack_episodes
from terrella.models.characters import character_tokenizer
from terrella.pipelines.text_games.examples import bundle_examples, bundles
from terrella.pipelines.text_games.reasoning import reasoned_examples
from terrella.worlds.bytesized32 import ByteSized32
from terrella.worlds.bytesized32.sources import VARIABLE


@pytest.fixture
def world(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    return ByteSized32.Config(focus="varying").build()


def test_a_bundle_shares_its_state_and_only_answers_are_fitted(world):
    codec = InterleavedCodec(character_tokenizer(world.vocabulary()))
    for records in bundles(world, states=5, actions=6, share=1.0, seed=0):
        examples = bundle_examples(world, codec, records)
        assert len({example.prompt_ids for example in examples}) == 1
        assert len(examples[0].prompt_ids) > 20
        for example, record in zip(examples, records, strict=True):
            pairs = zip(example.completion_ids, example.mask, strict=True)
            targets = [token for token, is_target in pairs if is_target]
            truth = world.transition(record).next_observation
            assert show_text(codec.read_observation(targets, like=truth)) == show_text(truth)
        (pack,) = pack_episodes(examples, max_tokens=100_000)
        tokens = [len(example.prompt_ids) + len(example.completion_ids) for example in examples]
        assert len(pack.ids_N) < sum(tokens) / 2


def test_a_share_holds_the_same_records_back_for_every_seed(world):
    asked = [
        {
            record.key
            for records in bundles(world, states=60, actions=8, share=0.3, seed=seed)
            for record in records
        }
        for seed in (0, 1)
    ]
    everything = {record.key for record in world.pools[Split.TRAIN]}
    assert asked[0] != asked[1] and len(asked[0] | asked[1]) < 0.4 * len(everything)


class Chat:
    """The part of a chat codec that examples need."""

    stop_ids = (0,)

    def ask_observation(self, situation, action):
        return tuple(map(ord, action))

    def write(self, text):
        return list(map(ord, text))


def test_only_reasoning_with_a_right_answer_is_kept(world):
    records = [record for record in world.pools[Split.TRAIN] if record.changed][:3]
    truths = [show_text(world.transition(record).next_observation) for record in records]
    replies = iter(
        [
            "no tags",
            f"<think>so</think><answer>{truths[0]}</answer>",
            *["<answer>=</answer>"] * 4,
            "<answer>what?</answer>",
            f"<think>thus</think><answer>{truths[2]}</answer>",
        ]
    )
    requests = []

    def complete(messages, seed):
        requests.append((messages[0]["content"], seed))
        return next(replies)

    examples, counts = reasoned_examples(world, Chat(), records, complete, tries=4)
    kept = ["".join(map(chr, example.completion_ids[:-1])) for example in examples]
    assert [text[: text.index("<answer>")] for text in kept] == [
        "<think>so</think>",
        "<think>thus</think>",
    ]
    assert counts == {"right": 2, "wrong": 4, "unreadable": 2}
    assert "think" in requests[0][0]
    assert len({seed for _, seed in requests}) == len(requests)

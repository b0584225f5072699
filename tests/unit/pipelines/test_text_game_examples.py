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
from terrella.pipelines.text_games.teacher import TeacherReply
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
    """The part of a chat codec that examples need; `opening` ends its prompts."""

    stop_ids = (0,)
    tokenizer = None

    def __init__(self, opening=""):
        self.opening, self.opens_thought = opening, bool(opening)
        self.tokenizer = self

    def ask_observation(self, situation, action):
        return tuple(map(ord, action + self.opening))

    def write(self, text):
        return list(map(ord, text))

    def decode(self, ids):
        return "".join(map(chr, ids))


@pytest.mark.parametrize("opening", ["", "<think>\n"])
def test_only_right_replies_become_examples_and_keep_their_thought(world, opening):
    records = [record for record in world.pools[Split.TRAIN] if record.changed][:3]
    replies = [
        TeacherReply(number=0, attempt=0, kind="wrong"),
        TeacherReply(number=0, attempt=1, kind="right", thought="so", answer="#1 on=true"),
        TeacherReply(number=1, attempt=0, kind="right", thought="long " * 50, answer="="),
        TeacherReply(number=2, attempt=0, kind="truncated"),
    ]
    (example,), too_long = reasoned_examples(world, Chat(opening), records, replies, longest=100)
    assert too_long == 1
    written = Chat().decode(example.prompt_ids + example.completion_ids[:-1])
    assert written.count("<think>") == written.count("</think>") == 1
    assert written.endswith("so\n</think>\n\n<answer>\n#1 on=true\n</answer>")
    assert all(example.mask) and example.completion_ids[-1] == 0

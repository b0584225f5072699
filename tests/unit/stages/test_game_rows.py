"""SFT rows of text games: a state is read once per bundle, only answers carry loss, only verified reasoning is kept."""

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL

from terrella.codecs.interleaved import InterleavedCodec
from terrella.core.types import Split, show_text
from terrella.engines.trl.packs import pack_episodes
from terrella.models.characters import character_tokenizer
from terrella.stages.game_rows import answered, bundles
from terrella.stages.reasoned_rows import reasoned_rows
from terrella.worlds.bytesized32 import ByteSized32
from terrella.worlds.bytesized32.sources import VARIABLE


@pytest.fixture
def world(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    return ByteSized32.Config(focus="varying").build()


def test_a_bundle_shares_its_state_and_only_answers_are_fitted(world):
    codec = InterleavedCodec(character_tokenizer(world.words()))
    for records in bundles(world, states=5, actions=6, share=1.0, seed=0):
        rows = answered(world, codec, records)
        assert len({row.prompt_ids for row in rows}) == 1 and len(rows[0].prompt_ids) > 20
        for row, record in zip(rows, records, strict=True):
            fitted = [token for token, wanted in zip(row.completion_ids, row.mask, strict=True) if wanted]
            truth = world.transition(record).next_observation
            assert show_text(codec.read_observation(fitted, like=truth)) == show_text(truth)
        (pack,) = pack_episodes(rows, max_tokens=100_000)
        assert len(pack.ids_N) < sum(len(row.prompt_ids) + len(row.completion_ids) for row in rows) / 2


def test_a_share_holds_questions_back_and_every_seed_the_same(world):
    asked = [{row.key for rows in bundles(world, states=60, actions=8, share=0.3, seed=seed) for row in rows}
             for seed in (0, 1)]  # fmt: skip
    everything = {row.key for row in world.pools[Split.TRAIN]}
    assert asked[0] != asked[1] and len(asked[0] | asked[1]) < 0.4 * len(everything)


class Chat:
    """As much of a chat codec as rows need."""

    stop_ids = (0,)

    def ask_observation(self, situation, action):
        return tuple(map(ord, action))

    def write(self, text):
        return list(map(ord, text))


def test_only_reasoning_with_a_right_answer_is_kept(world):
    records = [row for row in world.pools[Split.TRAIN] if row.changed][:3]
    truths = [show_text(world.transition(record).next_observation) for record in records]
    replies = iter([
        "no tags", f"<think>so</think><answer>{truths[0]}</answer>",
        *["<answer>=</answer>"] * 4,
        "<answer>what?</answer>", f"<think>thus</think><answer>{truths[2]}</answer>",
    ])  # fmt: skip
    heard = []

    def ask(messages, seed):
        heard.append((messages[0]["content"], seed))
        return next(replies)

    rows, counts = reasoned_rows(world, Chat(), records, ask, tries=4)
    kept = ["".join(map(chr, row.completion_ids[:-1])) for row in rows]
    assert [text[: text.index("<answer>")] for text in kept] == ["<think>so</think>", "<think>thus</think>"]
    assert counts == {"right": 2, "wrong": 4, "unreadable": 2}
    assert "think" in heard[0][0] and len({seed for _, seed in heard}) == len(heard)

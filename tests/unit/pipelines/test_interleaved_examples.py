"""Rows without tags: the states are what the world shows, and masks cover what they say."""

import itertools

import pytest

pytest.importorskip("transformers")
pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support.scripted_sampler import ScriptedSampler
from tests.unit.codecs.test_chat_tokens import small_tokenizer

from terrella.codecs.chat_tokens import ChatCodec
from terrella.codecs.interleaved import InterleavedCodec
from terrella.codecs.tagged import TaggedCodec
from terrella.core.errors import ConfigError
from terrella.core.types import Split, show_text
from terrella.evals.agents import reply_metrics
from terrella.models.characters import character_tokenizer
from terrella.pipelines.spa.interleaved_examples import (
    predicted_states,
    script_of_form,
    shown_example,
)
from terrella.pipelines.spa.self_play import SelfPlay, collect_examples
from terrella.pipelines.spa.tagged_examples import Script, scripted_examples
from terrella.rollout.rollout import Rollout
from terrella.rollout.tasks import AgentTasks
from terrella.worlds.frozen_lake import FrozenLake

WORLD = FrozenLake.Config(size=3, view="coordinates", max_steps=4)
ACTIONS = ("Left", "Down", "Right", "Up")
WHOLE = {"max_actions": 1, "states": "true", "loss": "reply"}


@pytest.fixture
def codec():
    world = WORLD.build()
    world.reset(seed=0)
    return TaggedCodec(InterleavedCodec(character_tokenizer(world.vocabulary())), form="shown")


def random_reply(codec):
    """Actions; now and then nonsense, now and then cut off."""

    def reply(rng):
        ids, choice = codec.answer_action([ACTIONS[int(rng.integers(4))]]), rng.random()
        return (
            ids[:-1]
            if choice < 0.1
            else (*codec.inner.write("hm"), codec.stop_ids[0])
            if choice < 0.2
            else ids
        )

    return reply


def play(codec, reply=None, count=40):
    rollout = Rollout(Rollout.Config(world=WORLD, max_turns=4, turn_tokens=8), codec)
    sampler = ScriptedSampler(reply or random_reply(codec))
    tasks = [AgentTasks(split=Split.TRAIN, seed=0)(index) for index in range(count)]
    return rollout, sampler, rollout.run(sampler, tasks, group_size=1, seed=3)


def test_a_true_row_is_the_episode_as_it_was_with_its_last_state(codec):
    _, _, episodes = play(codec)
    for episode in episodes:
        last = codec.inner.shown(show_text(episode.record.transitions[-1].next_observation))
        row = shown_example(episode, codec, **WHOLE)
        assert row.prompt_ids == episode.prompt_ids
        end = () if episode.completion_ids[-1] in codec.stop_ids else codec.stop_ids
        assert row.completion_ids == (*episode.completion_ids, *end, *last)


def test_masks_split_the_row_into_replies_and_states(codec):
    _, _, episodes = play(codec)
    for episode in episodes:
        whole, states, replies = (
            shown_example(episode, codec, **{**WHOLE, "loss": loss}).mask
            for loss in ("reply", "states", "no_states")
        )
        assert not any(a and b for a, b in zip(states, replies, strict=True))
        assert whole == tuple(a or b for a, b in zip(states, replies, strict=True))
        sampled = [
            t for t, own in zip(episode.completion_ids, episode.model_mask, strict=True) if own
        ]
        row = shown_example(episode, codec, **{**WHOLE, "loss": "no_states"})
        assert [
            t for t, counted in zip(row.completion_ids, row.mask, strict=True) if counted
        ] == sampled


def test_beliefs_are_the_models_own_words_and_nothing_else_changes(codec):
    rollout, sampler, episodes = play(codec, reply=lambda rng: codec.answer_action(["Down"]))
    distributions = predicted_states(rollout, sampler, episodes, codec, seed=0)
    assert {text for said in distributions for text in said} == {
        "Down"
    }  # all that this sampler ever says
    for episode, said in zip(episodes, distributions, strict=True):
        row = shown_example(episode, codec, **{**WHOLE, "states": "believed"}, predicted=said)
        true = shown_example(episode, codec, **WHOLE)
        replies = [
            shown_example(episode, codec, max_actions=1, states=s, loss="no_states", predicted=said)
            for s in ("true", "believed")
        ]
        kept = [list(itertools.compress(one.completion_ids, one.mask)) for one in replies]
        assert row.completion_ids != true.completion_ids and kept[0] == kept[1]


def test_every_episode_has_random_coordinates_of_its_own(codec):
    _, _, episodes = play(codec, reply=lambda rng: codec.answer_action(["Down"]))
    garbled = {**WHOLE, "states": "random_coordinates"}
    rows = [shown_example(episode, codec, **garbled).completion_ids for episode in episodes]
    again = [shown_example(episode, codec, **garbled).completion_ids for episode in episodes]
    assert rows == again
    # All replies are the same, so what differs are the states.
    reply = len(codec.answer_action(["Down"]))
    first = len(codec.inner.shown(show_text(episodes[0].record.transitions[0].next_observation)))
    assert len({row[reply : reply + first] for row in rows}) > len(rows) / 2


def test_a_base_sees_states_of_other_instances(codec):
    script = Script(max_turns=4, max_actions=1, truthful=False)
    wrong = script_of_form(WORLD, codec, script, count=30, seed=0).examples
    right = script_of_form(
        WORLD, codec, Script(max_turns=4, max_actions=1, truthful=True), count=30, seed=0
    ).examples
    for one, other in zip(wrong, right, strict=True):
        assert one.prompt_ids == other.prompt_ids and one.completion_ids != other.completion_ids
    tagged = TaggedCodec(codec.inner, form="worldmodel")
    assert script_of_form(WORLD, tagged, script, count=3, seed=0) == scripted_examples(
        WORLD, tagged, script, count=3, seed=0
    )


def test_self_play_keeps_well_formed_episodes_and_counts_every_step(codec):
    rollout, sampler, _ = play(codec)
    collected = collect_examples(SelfPlay.Config(trajectories=60), rollout, sampler, codec, seed=1)
    assert (
        0 < len(collected.examples) < 60 and collected.episodes == 60 and collected.env_steps >= 60
    )


def test_figures_about_states_are_absent_where_replies_hold_none(codec):
    _, _, episodes = play(codec)
    assert "true_predictions" not in reply_metrics(episodes, codec, max_actions=1)


def test_a_chat_model_is_told_to_use_tags():
    chat = TaggedCodec(ChatCodec(small_tokenizer("chatml"), max_actions=1), form="shown")
    with pytest.raises(ConfigError, match="worldmodel"):
        script_of_form(
            WORLD, chat, Script(max_turns=1, max_actions=1, truthful=True), count=1, seed=0
        )

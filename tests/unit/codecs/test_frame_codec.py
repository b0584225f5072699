"""Frames as ids and back: the layout, allowed ids, and that generated ids are kept."""

import pytest
from tests.support.little_videos import film_episode, frame, little_codec

from terrella.core.errors import ConfigError
from terrella.core.protocols import RolloutCodec
from terrella.core.types import Situation, Text
from terrella.pipelines.video.clips import situation_at


def test_layout_of_a_prompt():
    codec, episode = little_codec(window=1), film_episode()
    ids = codec.ask_observation(situation_at(episode, 3), episode.transitions[3].action)
    frames = [codec.frame_ids(episode.transitions[t].observation, episode.first) for t in (2, 3)]
    actions = [codec.go_on(episode.transitions[t].action) for t in (2, 3)]
    assert ids == (
        1,
        *codec.context_ids(episode.first),
        *frames[0],
        *actions[0],
        *frames[1],
        *actions[1],
    )
    assert codec.vocabulary == 2 + 5 + 5 + 2 and max(max(a) for a in actions) < codec.vocabulary


def test_only_frame_ids_are_allowed_and_other_replies_are_unparsable():
    codec, episode = little_codec(), film_episode()
    assert isinstance(codec, RolloutCodec) and codec.allowed_ids == tuple(range(7, 12))
    situation = situation_at(episode, 0)
    good, action, short = codec.read_rollout(situation, [(7, 11), (7, 12), (7,)])
    assert good == frame(0, 4) and action is None and short is None


def test_generated_ids_are_kept_and_never_encoded_again():
    codec, episode = little_codec(), film_episode()
    codec.tokenizer.write = None  # encoding again would fail
    (generated,) = codec.read_rollout(situation_at(episode, 0), [(8, 9)])
    assert codec.frame_ids(generated, episode.first) == (8, 9)


def test_actions_and_observations_of_other_kinds_are_refused():
    codec = little_codec()
    with pytest.raises(ConfigError, match="1 numbers"):
        codec.go_on("Up")
    with pytest.raises(ConfigError, match="frames, not text"):
        codec.ask_observation(
            Situation(instruction="", observation=Text("x"), actions=(), history=(), steps_left=1),
            "0",
        )
    with pytest.raises(ConfigError, match="not asked for actions"):
        codec.ask_action(situation_at(film_episode(), 0))

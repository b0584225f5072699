"""Shards: what they hold is what the store holds; draws are repeatable, spread, and bounded."""

import copy

import numpy as np
import pytest
from tests.support.listed_shards import ListedShards

from terrella.core.errors import ConfigError, StoreError
from terrella.core.types import Split
from terrella.data import parts, recorded_store
from terrella.data.recorded import Recording, recorded_episode
from terrella.data.recorded_store import fill_store
from terrella.data.shard_draws import ShardDraws
from terrella.data.shards import StoredShards
from terrella.data.store import EpisodeStore

COUNT = 60


def recording(number):
    video = np.full((3 + number % 4, 8, 8, 3), number, np.uint8)
    video[:, 0, 0, 0] = np.arange(len(video))
    actions = np.full((len(video), 2), float(number))
    return recorded_episode(Recording(source="x", number=number, video=video, actions=actions))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded_store, "CHUNK_EPISODES", 20)
        patch.setattr(parts, "BYTES_PER_GROUP", 4_000)  # an episode goes on in the next group
        fill_store(folder, {}, lambda first: map(recording, range(first, COUNT)))
    return folder


@pytest.mark.parametrize("split", list(Split))
def test_shards_hold_the_episodes_of_their_split_and_nothing_else(store, split):
    shards = StoredShards([store, store], split)
    wanted = [e for e in EpisodeStore.open(store).episodes() if e.split is split] * 2
    assert list(shards.episodes()) == wanted and len(shards) > 3
    assert shards.count == len(wanted)
    assert shards.transitions == sum(len(episode.transitions) for episode in wanted)


def test_a_draw_is_a_function_of_its_number_alone(store):
    shards = StoredShards([store], Split.TRAIN)
    settings = {"least": 2, "count": 10_000, "seed": 3, "window": 3}
    draws = ShardDraws(shards, **settings)
    in_order = [draws[index] for index in range(400)]
    assert len(draws._loaded) <= 4, "more than the window and the next shard is in memory"
    again = copy.deepcopy(draws)  # as another process would get it
    for index in (399, 7, 200):
        assert again[index] == in_order[index]
    assert all(start + 2 <= len(episode.transitions) for episode, start in in_order)
    other = ShardDraws(shards, **{**settings, "seed": 4})
    assert [other[index] for index in range(20)] != in_order[:20]


def test_draws_reach_every_clip_about_equally_often(store):
    shards = StoredShards([store], Split.TRAIN)
    count = 5_000
    draws = ShardDraws(shards, least=1, count=count, seed=0, window=3)
    seen = {}
    for index in range(count):
        episode, start = draws[index]
        place = episode.seed, start
        seen[place] = seen.get(place, 0) + 1
    assert len(seen) == shards.transitions
    expected = count / shards.transitions
    assert 0.2 * expected < min(seen.values()) and max(seen.values()) < 3 * expected


def test_ranks_read_their_own_shards(store):
    shards = StoredShards([store], Split.TRAIN)
    draws = ShardDraws(shards, least=1, count=400, seed=0, lanes=2, batch=4, window=2)
    reads = {0: set(), 1: set()}
    for index in range(len(shards) // 2 * 64):
        episode, _ = draws[index]
        reads[index // 4 % 2].add(episode.seed)
    assert len(reads[0]) > 5 and len(reads[1]) > 5 and not reads[0] & reads[1]


def test_actions_are_read_without_the_frames(store):
    shards = StoredShards([store], Split.TRAIN)
    everything = shards.actions(10**6, range(len(shards)))
    wanted = [step.action for episode in shards.episodes() for step in episode.transitions]
    assert everything == wanted
    assert len(shards.actions(5, [2, 1])) < len(wanted)


def test_a_damaged_part_and_clips_that_are_too_long_are_named(store, tmp_path):
    shards = StoredShards([store], Split.TRAIN)
    with pytest.raises(ConfigError, match="no episode has 50 steps"):
        ShardDraws(shards, least=50, count=1, seed=0)
    part = next(store.glob("part-000000020-*"))
    sound = part.read_bytes()
    damaged = bytearray(sound)
    damaged[200] ^= 1
    part.write_bytes(damaged)
    try:
        with pytest.raises(StoreError, match=r"part-000000020.*differs"):
            list(shards.episodes())
    finally:
        part.write_bytes(sound)


def test_a_list_is_one_shard():
    shards = ListedShards([recording(1), recording(2)])
    assert len(shards) == 1 and shards.count == 2
    assert ShardDraws(shards, least=0, count=1, seed=0)[5][0] in shards.listed

"""Sokoban keeps the classic rules, every room can be solved in time, and views read back."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from terrella.core.config import dump, load
from terrella.core.episode import play
from terrella.core.errors import ConfigError, WorldError
from terrella.core.types import State, Text
from terrella.policies.basic import Expert, Mixture, Random
from terrella.worlds import find_world, world_config
from terrella.worlds.sokoban import Sokoban, generator
from terrella.worlds.sokoban.generator import draw_room
from terrella.worlds.sokoban.room import Room, boxes_on_target
from terrella.worlds.sokoban.solver import solve

VIEWS = Sokoban.view_names
PRESETS = tuple(Sokoban.presets)


def shortest_by_brute_force(world: Sokoban, room: Room) -> int | None:
    """Steps to success by plain breadth-first search over the world's own truth."""
    frontier = [room]
    seen = {room}
    depth = 0
    while frontier:
        depth += 1
        next_frontier = []
        for current in frontier:
            for action in world.legal(current):
                [result] = world.truth(current, action)
                if result.success:
                    return depth
                if result.state not in seen:
                    seen.add(result.state)
                    next_frontier.append(result.state)
        frontier = next_frontier
    return None


# --- rules ----------------------------------------------------------------------------------------

WALK, OFF, ON, SOLVED = -0.1, -1.1, 0.9, 10.9
CASES = {
    "walks": ("#####/#P__#/#_XO#/#___#/#####", "Right", "#####/#_P_#/#_XO#/#___#/#####", WALK),
    "wall holds back": (
        "#####/#P__#/#_XO#/#___#/#####",
        "Up",
        "#####/#P__#/#_XO#/#___#/#####",
        WALK,
    ),
    "pushes": ("#####/#PX_#/#_O_#/#___#/#####", "Right", "#####/#_PX#/#_O_#/#___#/#####", WALK),
    "box against a wall": (
        "#####/#_PX#/#_O_#/#___#/#####",
        "Right",
        "#####/#_PX#/#_O_#/#___#/#####",
        WALK,
    ),
    "does not pull": (
        "#####/#XP_#/#O__#/#___#/#####",
        "Right",
        "#####/#X_P#/#O__#/#___#/#####",
        WALK,
    ),
    "steps on a target": (
        "#####/#PO_#/#_X_#/#___#/#####",
        "Right",
        "#####/#_S_#/#_X_#/#___#/#####",
        WALK,
    ),
    "steps off a target": (
        "#####/#S__#/#_X_#/#___#/#####",
        "Down",
        "#####/#O__#/#PX_#/#___#/#####",
        WALK,
    ),
    "solves": ("#####/#PXO#/#___#/#___#/#####", "Right", "#####/#_P√#/#___#/#___#/#####", SOLVED),
}
TWO_BOX_CASES = {
    "two in a row are stuck": ("######/#PXX_#/#O__O#/#____#/#____#/######", "Right", None, WALK),
    "first box on": (
        "######/#PXO_#/#X_O_#/#____#/#____#/######",
        "Right",
        "######/#_P√_#/#X_O_#/#____#/#____#/######",
        ON,
    ),
    "box off": (
        "######/#P√__#/#X_O_#/#____#/#____#/######",
        "Right",
        "######/#_SX_#/#X_O_#/#____#/#____#/######",
        OFF,
    ),
    "from target to target": (
        "######/#P√O_#/#X___#/#____#/#____#/######",
        "Right",
        "######/#_S√_#/#X___#/#____#/#____#/######",
        WALK,
    ),
    "last box solves": (
        "######/#PXO_#/#√___#/#____#/#____#/######",
        "Right",
        "######/#_P√_#/#√___#/#____#/#____#/######",
        SOLVED,
    ),
}


@pytest.mark.parametrize("case", [*CASES, *TWO_BOX_CASES])
def test_the_rules(case: str) -> None:
    config = Sokoban.Config(size=5) if case in CASES else Sokoban.presets["two_box"]
    before, action, after, reward = (CASES | TWO_BOX_CASES)[case]
    world = config.build()
    room = world.view.read(Text(before.replace("/", "\n")))
    [result] = world.truth(room, action)
    assert world.view.show(result.state) == Text((after or before).replace("/", "\n"))
    assert result.reward == pytest.approx(reward)
    assert result.terminated == result.success == (reward == SOLVED)


def test_a_solved_room_stays_solved() -> None:
    world = Sokoban.Config(size=5).build()
    room = world.view.read(Text("#####\n#_P√#\n#___#\n#___#\n#####"))
    [result] = world.truth(room, "Left")
    assert (result.state, result.reward) == (room, 0.0)
    assert result.terminated and result.success


def test_a_solution_of_n_steps_earns_eleven_less_a_tenth_each() -> None:
    for seed in range(20):
        episode = play(Sokoban.Config().build(), Expert.Config().build(), seed=seed)
        assert episode.total_reward == pytest.approx(11 - 0.1 * len(episode.transitions))


# --- rooms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_every_room_starts_unsolved_and_is_solved_in_time_by_the_expert(preset: str) -> None:
    world = world_config(f"sokoban:{preset}").build()
    expert = Expert.Config().build()
    for seed in range(300):
        episode = play(world, expert, seed=seed)
        room = world.view.read(episode.first)
        assert boxes_on_target(room) == 0
        assert episode.success, f"seed {seed}: {episode.error}"
        assert len(episode.transitions) == len(solve(room)) <= world.config.max_steps


@pytest.mark.parametrize("limit", ["max_steps", "longest"])
@pytest.mark.parametrize("most", [1, 4])
def test_a_shorter_episode_gets_shorter_puzzles(limit: str, most: int) -> None:
    world = world_config("sokoban", [f"{limit}={most}"]).build()
    assert max(len(solve(world.draw(np.random.default_rng(seed)))) for seed in range(100)) == most


def test_more_steps_do_not_change_the_rooms() -> None:
    rooms = [
        world_config("sokoban", [f"max_steps={steps}"]).build().reset(seed=3)[0]
        for steps in (10, 50)
    ]
    assert rooms[0] == rooms[1]


def test_rooms_hardly_repeat_and_vary_in_length() -> None:
    rooms = [
        draw_room(np.random.default_rng(seed), size=6, boxes=1, longest=10) for seed in range(2000)
    ]
    assert len(set(rooms)) > 1900
    lengths = [len(solve(room)) for room in rooms[:300]]
    assert set(range(1, 9)) <= set(lengths)
    assert np.mean([length == 1 for length in lengths]) < 0.2


def test_the_error_for_impossible_rooms_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "MAX_TRIES", 3)
    with pytest.raises(WorldError, match="lower boxes"):
        draw_room(np.random.default_rng(0), size=6, boxes=3, longest=3)


# --- seeds ----------------------------------------------------------------------------------------


def test_same_seed_same_episode_even_when_the_global_generators_differ() -> None:
    episodes = []
    for scramble in (1, 2):
        random.seed(scramble)
        np.random.seed(scramble)
        before = random.getstate(), str(np.random.get_state())
        episodes.append(play(Sokoban.Config().build(), Random.Config().build(), seed=5))
        assert (random.getstate(), str(np.random.get_state())) == before
    assert episodes[0] == episodes[1]


def test_rooms_do_not_depend_on_the_hash_seed_of_the_process() -> None:
    script = (
        "from terrella.worlds import world_config\n"
        "world = world_config('sokoban:two_box').build()\n"
        "print([world.reset(seed=seed)[1]['instance'] for seed in range(20)])"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1] != b""


def test_the_noise_seed_does_not_change_the_room() -> None:
    world = Sokoban.Config().build()
    assert len({world.reset(seed=3, options={"noise_seed": k})[0] for k in range(4)}) == 1


# --- the expert -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("preset", "rooms"), [("simple", 40), ("two_box", 6)])
def test_solutions_are_shortest_and_dead_rooms_are_recognised(preset: str, rooms: int) -> None:
    world = world_config(f"sokoban:{preset}").build()
    dead = 0
    for seed in range(rooms):
        play(world, Random.Config().build(), seed=seed)
        fresh = world.draw(np.random.default_rng(seed))
        for room in (fresh, world.state):  # a new room, and one after random play
            if boxes_on_target(room) == len(room.boxes):
                continue
            solution, truth = solve(room), shortest_by_brute_force(world, room)
            assert (solution and len(solution)) == truth
            dead += truth is None
    assert dead > 0


def test_the_expert_acts_in_any_room_even_in_dead_ones() -> None:
    world = world_config("sokoban:two_box").build()
    mixed = Mixture.Config(share=0.4).build()
    episodes = [play(world, mixed, seed=seed) for seed in range(40)]
    assert not any(episode.stop.is_broken for episode in episodes)
    assert 0 < sum(episode.success for episode in episodes) < 40


def test_the_cache_of_the_expert_is_bounded() -> None:
    world = Sokoban.Config().build()
    world.cached_solver.capacity = 50
    for seed in range(60):
        assert play(world, Expert.Config().build(), seed=seed).success
    assert len(world.cached_solver.next_steps) < 50 + 11


def test_the_exact_random_value_agrees_with_playing() -> None:
    world = Sokoban.Config().build()
    policy = Random.Config().build()
    plays = 60
    exact, wins = [], 0
    for seed in range(15):
        world.reset(seed=seed)
        exact.append(world.solver.random_value(world.state, world.config.max_steps))
        wins += sum(play(world, policy, seed=seed, noise_seed=k).success for k in range(plays))
    sigma = math.sqrt(sum(value * (1 - value) * plays for value in exact))
    assert abs(wins - sum(exact) * plays) < 4 * sigma


# --- views and vocabularies -----------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", VIEWS)
def test_views_read_back_every_state_of_real_play(preset: str, name: str) -> None:
    world = world_config(f"sokoban:{preset}", [f"view={name}"]).build()
    for seed in range(6):
        for policy in (Random.Config().build(), Expert.Config().build()):
            episode = play(world, policy, seed=seed)
            for seen in (episode.first, *(step.next_observation for step in episode.transitions)):
                assert world.view.show(world.view.read(seen)) == seen
            assert world.view.read(world.view.show(world.state)) == world.state
        assert boxes_on_target(world.state) == world.config.boxes


@pytest.mark.parametrize("name", VIEWS)
@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 20),
    position=st.integers(0, 400),
    symbol=st.sampled_from("#_O√XPS\n(),015 x"),
)
def test_a_changed_rendering_is_another_one_or_none(
    name: str, seed: int, position: int, symbol: str
) -> None:
    view = WORLD.make_view(name)
    text = view.show(WORLD.draw(np.random.default_rng(seed))).text
    position %= len(text)
    other = text[:position] + symbol + text[position + 1 :]
    parsed = view.read(Text(other))
    assert parsed is None or view.show(parsed) == Text(other)


@pytest.mark.parametrize("name", VIEWS)
@settings(max_examples=80, deadline=None)
@given(text=st.text(max_size=60) | st.text("#_O√XPS\n", min_size=29, max_size=29))
def test_views_never_raise_on_garbage(name: str, text: str) -> None:
    view = Sokoban.Config(size=5).build().make_view(name)
    parsed = view.read(Text(text))
    assert parsed is None or view.show(parsed) == Text(text)


WORLD = Sokoban.Config().build()
INVALID_GRIDS = {
    "empty": "",
    "two players": "#####/#P_P#/#_XO#/#___#/#####",
    "no player": "#####/#___#/#_XO#/#___#/#####",
    "two boxes": "#####/#P_X#/#_XO#/#___#/#####",
    "two targets": "#####/#P_O#/#_XO#/#___#/#####",
    "open border": "#####/#P__#/#_XO#/#____/#####",
    "wrong size": "######/#P___#/#_XO_#/#____#/#____#/######",
    "ragged": "#####/#P__##/_XO#/#___#/#####",
    "unknown symbol": "#####/#P__#/#_XO#/#__?#/#####",
    "huge": "#" * 10**6,
}


@pytest.mark.parametrize("text", INVALID_GRIDS.values(), ids=INVALID_GRIDS.keys())
def test_the_grid_rejects_invalid_rooms(text: str) -> None:
    assert Sokoban.Config(size=5).build().view.read(Text(text.replace("/", "\n"))) is None


def test_coordinates_reject_impossible_rooms_and_disagreement_with_the_grid() -> None:
    world = Sokoban.Config(size=5).build()
    both = world.make_view("grid_coordinates")
    coordinates = world.make_view("coordinates")
    grid = "#####\n#P__#\n#_XO#\n##__#\n#####"
    right = "Size: 5x5\nPlayer: (1,1)\nBoxes: (2,2)\nTargets: (2,3)\nInner walls: (3,1)"
    room = world.view.read(Text(grid))
    assert coordinates.read(Text(right)) == both.read(Text(f"{grid}\n{right}")) == room
    wrong = (
        right.replace("(2,2)", "(1,1)"),
        right.replace("(2,2)", "(3,1)"),
        right.replace("(2,2)", "(0,2)"),
        right.replace("(2,2)", "(2,2) (3,3)"),
        right.replace("(2,2)", "none"),
        right.replace("5x5", "6x6"),
        right.replace("(1,1)", "(1,1) (1,2)"),
        right.replace("(3,1)", "(9999,1)"),
        f"{right}\n",
        right * 5000,
        right.replace("(2,2)", "(2,2) (2,2)"),
        right.replace("(3,1)", "(3,1) (3,1)"),
        "",
    )
    assert [coordinates.read(Text(text)) for text in wrong] == [None] * len(wrong)
    assert both.read(Text(f"{grid.replace('P_', '_P')}\n{right}")) is None
    assert [view.read(State("{}")) for view in (both, coordinates, world.view)] == [None] * 3


def test_boxes_have_one_order() -> None:
    view = world_config("sokoban:two_box", ["view=coordinates"]).build().view
    text = "Size: 6x6\nPlayer: (1,1)\nBoxes: (2,2) (3,3)\nTargets: (2,3) (4,1)\nInner walls: none"
    assert view.read(Text(text)) is not None
    assert view.read(Text(text.replace("(2,2) (3,3)", "(3,3) (2,2)"))) is None
    assert view.read(Text(text.replace("(2,3) (4,1)", "(4,1) (2,3)"))) is None


@pytest.mark.parametrize("preset", PRESETS)
def test_the_legend_gives_the_symbols_and_the_size_in_use(preset: str) -> None:
    world = world_config(f"sokoban:{preset}", ["view=grid_coordinates"]).build()
    world.reset(seed=0)
    symbols, size = world.config.symbols, world.config.size
    meanings = ("wall", "floor", "target", "box on target", "box", "player", "player on target")
    named = zip(symbols, meanings, strict=True)
    assert ", ".join(f"{symbol} {meaning}" for symbol, meaning in named) in world.instruction
    assert f"({size - 1},{size - 1})" in world.instruction
    assert f"row {size - 1}" in world.instruction
    drawn = set("".join(world.make_view("grid").show(world.state).text.split()))
    assert drawn <= set(symbols)


def test_other_symbols_draw_the_same_room() -> None:
    plain, other = (
        world_config(f"sokoban:{preset}").build().reset(seed=4)[0]
        for preset in ("simple", "grid_vocab")
    )
    assert other.text == plain.text.translate(str.maketrans("#_O√XPS", "W.GCBA@"))


def test_other_action_words_do_what_the_published_variant_does() -> None:
    plain, other = (
        world_config(f"sokoban:{preset}").build() for preset in ("simple", "action_vocab")
    )
    room = plain.draw(np.random.default_rng(0))
    meanings = {"Left": "Up", "Right": "Down", "Up": "Left", "Down": "Right"}
    for word, direction in meanings.items():
        assert other.truth(room, word) == plain.truth(room, direction)
    renamed = world_config("sokoban", ["action_words=north,south,west,east"]).build()
    assert renamed.truth(room, "north") == plain.truth(room, "Up")
    renamed.reset(seed=0)
    assert "Actions: north, south, west, east." in renamed.instruction


# --- config ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"size": 4}, "size"),
        ({"size": 1}, "size"),
        ({"boxes": 0}, "boxes"),
        ({"boxes": 9}, "boxes"),
        ({"longest": 0}, "longest"),
        ({"boxes": 2, "max_steps": 3}, "longest"),
        ({"max_steps": 0}, "max_steps"),
        ({"symbols": "#_OO√XP"}, "symbols"),
        ({"symbols": "#_O√XP"}, "symbols"),
        ({"symbols": "# O√XPS"}, "symbols"),
        ({"symbols": "#_O√XP\n"}, "symbols"),
        ({"action_words": ("a", "a", "b", "c")}, "action_words"),
    ],
)
def test_invalid_configs_are_rejected(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Sokoban.Config(**wrong)


def test_it_is_found_by_name_and_its_presets_survive_disk() -> None:
    assert find_world("sokoban") is Sokoban
    assert Sokoban.presets["simple"] == Sokoban.Config()
    for config in Sokoban.presets.values():
        assert load(dump(config)) == config

"""FrozenLake keeps Gymnasium's rules, its views read back, and its expert is optimal."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from terrella.core.config import dump, load
from terrella.core.episode import play
from terrella.core.errors import ConfigError, WorldError
from terrella.core.types import Split, State, Text
from terrella.policies.basic import Expert, Random
from terrella.worlds import find_world, world_config
from terrella.worlds.frozen_lake import FrozenLake, maps
from terrella.worlds.frozen_lake.maps import ACTIONS, GOAL, ICE, Lake, draw_lake
from terrella.worlds.frozen_lake.plan import LakePlan

VIEWS = FrozenLake.view_names


def lakes(size: int) -> st.SearchStrategy[Lake]:
    """Any map with one goal and the player anywhere, including in a hole or on the goal."""
    cells = size * size
    tiles = st.text("_O", min_size=cells - 1, max_size=cells - 1)
    positions = st.integers(0, cells - 1)
    return st.builds(
        lambda text, goal, player: Lake(text[:goal] + GOAL + text[goal:], player),
        tiles,
        positions,
        positions,
    )


# --- rules ----------------------------------------------------------------------------------------


def gymnasium_env(lake: Lake, size: int, success_rate: float, slippery: bool) -> FrozenLakeEnv:
    letters = lake.tiles.translate(str.maketrans("_O", "FH"))
    letters = letters[: lake.player] + "S" + letters[lake.player + 1 :]
    rows = [letters[start : start + size] for start in range(0, size * size, size)]
    return FrozenLakeEnv(desc=rows, is_slippery=slippery, success_rate=success_rate)


@pytest.mark.parametrize(
    ("success_rate", "slippery"), [(1.0, False), (1.0, True), (1 / 3, True), (0.8, True)]
)
@pytest.mark.parametrize("size", [4, 6])
def test_transitions_are_gymnasiums(size: int, success_rate: float, slippery: bool) -> None:
    world = FrozenLake.Config(size=size, success_rate=success_rate).build()
    for seed in range(6):
        lake = world.draw(np.random.default_rng(seed))
        theirs = gymnasium_env(lake, size, success_rate, slippery).P
        for cell in range(size * size):
            for index, action in enumerate(ACTIONS):
                expected: dict[tuple[int, float, bool], float] = {}
                for probability, target, reward, over in theirs[cell][index]:
                    key = (target, float(reward), over)
                    expected[key] = expected.get(key, 0.0) + probability
                actual = {
                    (result.state.player, result.reward, result.terminated): result.probability
                    for result in world.truth(Lake(lake.tiles, cell), action)
                }
                possible = {key: total for key, total in expected.items() if total > 0}
                assert actual == pytest.approx(possible)


def test_the_goal_earns_one_and_a_hole_ends_the_episode() -> None:
    world = FrozenLake.Config(size=2).build()
    start = world.view.read(Text("PG\nO_"))
    [won], [lost], [held] = (world.truth(start, action) for action in ("Right", "Down", "Up"))
    assert (won.reward, won.terminated, won.success) == (1.0, True, True)
    assert world.view.show(won.state) == Text("_√\nO_")
    assert (lost.reward, lost.terminated, lost.success) == (0.0, True, False)
    assert world.view.show(lost.state) == Text("_G\nX_")
    assert (held.state, held.terminated) == (start, False)


def test_an_unknown_action_changes_nothing_and_is_marked_invalid() -> None:
    world = FrozenLake.Config().build()
    seen, _ = world.reset(seed=0)
    after, reward, terminated, _, info = world.step("right")
    assert (after, reward, terminated, info["valid"]) == (seen, 0.0, False, False)


# --- maps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 4, 6])
def test_every_map_can_be_crossed(size: int) -> None:
    for seed in range(300):
        lake = draw_lake(np.random.default_rng(seed), size, hole_rate=0.4)
        assert lake.tiles[lake.player] == ICE and lake.tiles.count(GOAL) == 1
        assert LakePlan(lake.tiles, success_rate=1.0).value(lake.player, size * size) == 1.0


def test_start_and_goal_are_uniform_over_pairs() -> None:
    rng, draws = np.random.default_rng(0), 6000
    pairs = [
        (lake.player, lake.tiles.index(GOAL))
        for lake in (draw_lake(rng, 2, 0.0) for _ in range(draws))
    ]
    counts = {pair: pairs.count(pair) for pair in set(pairs)}
    sigma = math.sqrt(draws * (1 / 12) * (11 / 12))
    assert len(counts) == 12
    assert all(abs(count - draws / 12) < 4.5 * sigma for count in counts.values())


def test_holes_are_drawn_at_their_rate() -> None:
    rng = np.random.default_rng(0)
    # A large sparse board nearly always has a path, so that rejection hardly changes the rate.
    share = np.mean([draw_lake(rng, 12, 0.05).tiles.count("O") / 142 for _ in range(200)])
    assert share == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / (142 * 200)))


def test_the_error_for_lakes_without_a_path_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(maps, "MAX_TRIES", 3)
    with pytest.raises(WorldError, match="lower hole_rate"):
        draw_lake(np.random.default_rng(0), 40, 0.99)


# --- seeds ----------------------------------------------------------------------------------------


def test_same_seed_same_episode_even_when_the_global_generators_differ() -> None:
    episodes = []
    for scramble in (1, 2):
        random.seed(scramble)
        np.random.seed(scramble)
        before = random.getstate(), str(np.random.get_state())
        episodes.append(
            play(world_config("frozen_lake:4x4_slip").build(), Random.Config().build(), seed=5)
        )
        assert (random.getstate(), str(np.random.get_state())) == before
    assert episodes[0] == episodes[1]


def test_the_noise_seed_changes_the_slips_and_not_the_map() -> None:
    world = world_config("frozen_lake:6x6_slip", ["hole_rate=0.0", "max_steps=8"]).build()
    firsts, paths = set(), set()
    for noise_seed in range(6):
        first, _ = world.reset(seed=7, options={"noise_seed": noise_seed})
        firsts.add(first)
        over, path = False, []
        while not over:
            after, _, terminated, truncated, _ = world.step("Right")
            path.append(after)
            over = terminated or truncated
        paths.add(tuple(path))
    assert len(firsts) == 1
    assert len(paths) > 1


# --- views ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VIEWS)
@settings(max_examples=80, deadline=None)
@given(lake=lakes(4), position=st.integers(0, 200), symbol=st.sampled_from("PXO_G√\n(),019 x"))
def test_views_read_back_exact_renderings_only(
    name: str, lake: Lake, position: int, symbol: str
) -> None:
    view = FrozenLake.Config().build().make_view(name)
    text = view.show(lake).text
    assert view.read(Text(text)) == lake
    position %= len(text)
    other = text[:position] + symbol + text[position + 1 :]
    parsed = view.read(Text(other))
    assert parsed is None or view.show(parsed) == Text(other)


@pytest.mark.parametrize("name", VIEWS)
@settings(max_examples=80, deadline=None)
@given(text=st.text(st.sampled_from("PXO_G√\n(),0123Size:PlayerGoalHolesnone x"), max_size=80))
def test_views_never_raise_on_garbage(name: str, text: str) -> None:
    view = FrozenLake.Config(size=2).build().make_view(name)
    parsed = view.read(Text(text))
    assert parsed is None or view.show(parsed) == Text(text)


@pytest.mark.parametrize("preset", FrozenLake.presets)
@pytest.mark.parametrize("name", VIEWS)
def test_views_read_back_every_state_of_real_play(preset: str, name: str) -> None:
    world = world_config(f"frozen_lake:{preset}", [f"view={name}"]).build()
    finals = set()
    for seed in range(30):
        for policy in (Random.Config().build(), Expert.Config().build()):
            episode = play(world, policy, seed=seed)
            assert not episode.stop.is_broken, episode.error
            for step in episode.transitions:
                state = world.view.read(step.next_observation)
                assert world.view.show(state) == step.next_observation
            assert world.view.read(world.view.show(world.state)) == world.state
            finals.add(world.state.tiles[world.state.player])
    assert finals == set("_OG")


INVALID_GRIDS = (
    "",
    "PG\n__\n__",
    "PGO\n___\n___",
    "PP\nG_",
    "__\nG_",
    "P_\n__",
    "PG\nG_",
    "√P\n__",
    "PG__",
    "PG\n_ ",
    "PG\n__\n",
    "PG\r__",
    "P\nG__",
    "P" * 10**6,
)


@pytest.mark.parametrize("text", INVALID_GRIDS)
def test_the_grid_rejects_invalid_lakes(text: str) -> None:
    assert FrozenLake.Config(size=2).build().view.read(Text(text)) is None


def test_coordinates_reject_cells_off_the_board_and_disagreement_with_the_grid() -> None:
    world = FrozenLake.Config(size=2).build()
    right = "Size: 2x2\nPlayer: (0,0)\nGoal: (0,1)\nHoles: (1,0)"
    both = world.make_view("grid_coordinates")
    coordinates = world.make_view("coordinates")
    assert coordinates.read(Text(right)) == Lake("_GO_", 0)
    assert both.read(Text(f"PG\nO_\n{right}")) == Lake("_GO_", 0)
    assert both.read(Text(f"_G\nOP\n{right}")) is None
    wrong = (
        right.replace("(1,0)", "(2,0)"),
        right.replace("(1,0)", "(1,0) (1,0)"),
        right.replace("2x2", "3x3"),
        right.replace("(1,0)", "(0,1)"),
        right + "\n",
        right.replace("(0,0)", "(00,0)"),
        right * 5000,
    )
    assert [coordinates.read(Text(text)) for text in wrong] == [None] * len(wrong)
    assert [view.read(State("{}")) for view in (both, coordinates, world.view)] == [None] * 3


@pytest.mark.parametrize("size", [4, 6])
def test_the_legend_gives_the_symbols_and_the_size_in_use(size: int) -> None:
    world = FrozenLake.Config(size=size, view="grid_coordinates").build()
    world.reset(seed=0)
    for meaning in (
        "P player",
        "_ ice",
        "O hole",
        "G goal",
        "X player in a hole",
        "√ player on the goal",
    ):
        assert meaning in world.instruction
    last, other = f"({size - 1},{size - 1})", "(5,5)" if size == 4 else "(3,3)"
    assert last in world.instruction and other not in world.instruction
    assert f"{size} rows" in world.instruction
    assert "slippery" not in world.instruction
    slippery = FrozenLake.Config(size=size, success_rate=1 / 3).build()
    slippery.reset(seed=0)
    assert "slippery" in slippery.instruction and "0.333" in slippery.instruction


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["4x4", "4x4_slip"])
def test_the_exact_random_value_agrees_with_playing(preset: str) -> None:
    world = world_config(f"frozen_lake:{preset}").build()
    policy = Random.Config().build()
    plays = 100
    exact, wins = [], 0
    for seed in range(20):
        world.reset(seed=seed)
        exact.append(world.solver.random_value(world.state, world.config.max_steps))
        wins += sum(play(world, policy, seed=seed, noise_seed=k).success for k in range(plays))
    sigma = math.sqrt(sum(value * (1 - value) * plays for value in exact))
    assert abs(wins - sum(exact) * plays) < 4 * sigma


@pytest.mark.parametrize("preset", ["4x4", "4x4_slip", "6x6_slip"])
def test_the_values_of_the_expert_agree_with_the_exact_solver(preset: str) -> None:
    world = world_config(f"frozen_lake:{preset}").build()
    for seed in range(8):
        world.reset(seed=seed)
        lake, steps = world.state, world.config.max_steps
        plan = LakePlan(lake.tiles, world.config.success_rate)
        assert plan.value(lake.player, steps) == pytest.approx(world.solver.best_value(lake, steps))
        action = plan.best_action(lake.player, steps)
        reached = sum(
            result.probability * plan.value(result.state.player, steps - 1)
            for result in world.truth(lake, action)
        )
        assert reached == pytest.approx(plan.value(lake.player, steps))


def test_the_expert_takes_a_shortest_path_and_walks_on_when_it_is_too_late() -> None:
    world = FrozenLake.Config(max_steps=3).build()
    expert, too_far = Expert.Config().build(), 0
    for seed in range(200):
        episode = play(world, expert, seed=seed, split=Split.VALIDATION)
        lake = world.view.read(episode.first)
        shortest = next(
            k for k in range(1, 16) if LakePlan(lake.tiles, 1.0).value(lake.player, k) == 1.0
        )
        too_far += shortest > 3
        assert episode.success == (shortest <= 3)
        assert len(episode.transitions) == min(shortest, 3)
        if shortest > 3:
            assert LakePlan(lake.tiles, 1.0).value(world.state.player, shortest - 3) == 1.0
    assert too_far > 0


# --- config ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 1},
        {"size": 0},
        {"success_rate": 1.5},
        {"success_rate": -0.1},
        {"hole_rate": 1.0},
        {"max_steps": 0},
    ],
)
def test_invalid_configs_are_rejected(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        FrozenLake.Config(**wrong)


def test_it_is_found_by_name_and_its_presets_survive_disk() -> None:
    assert find_world("frozen_lake") is FrozenLake
    for config in FrozenLake.presets.values():
        assert load(dump(config)) == config
    with pytest.raises(ConfigError, match="views: grid, coordinates, grid_coordinates"):
        FrozenLake.Config(view="pixels").build()

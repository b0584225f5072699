"""Sudoku: uniform 4 x 4 grids, unique solutions, no leaks, and no global random generator."""

import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from terrella.core.episode import play
from terrella.core.errors import ConfigError
from terrella.core.solve import Solver, StateSpaceTooLargeError
from terrella.core.types import Split, State, Text
from terrella.policies.basic import Expert, Random
from terrella.worlds import find_world, world_config
from terrella.worlds.sudoku import Sudoku
from terrella.worlds.sudoku.board import Board, fits, is_consistent
from terrella.worlds.sudoku.generator import full_grid, small_grids
from terrella.worlds.sudoku.solver import count_solutions, solve

PRESETS = ("sudoku", "sudoku:hard", "sudoku:nine")


def completions(cells):
    """Solutions of a 4 x 4 board by comparison with all grids, independent of the search."""

    def is_completed_by(grid):
        return all(clue in (0, digit) for clue, digit in zip(cells, grid, strict=True))

    return [grid for grid in small_grids() if is_completed_by(grid)]


def boards_of_random_play(config, episodes):
    world = config.build()
    for seed in range(episodes):
        world.reset(seed=seed)
        rng = np.random.default_rng(seed)
        yield world.state
        for _ in range(config.max_steps):
            fitting = [
                name for name in world.actions() if fits(world.state.cells, *world._moves[name])
            ]
            *_, terminated, truncated, _ = world.step(str(rng.choice(fitting or world.actions())))
            yield world.state
            if terminated or truncated:
                break


def test_a_4x4_solution_is_drawn_uniformly_from_all_288():
    assert len(set(small_grids())) == 288
    assert all(is_consistent(grid) and 0 not in grid for grid in small_grids())
    world, rng = Sudoku.Config().build(), np.random.default_rng(0)
    seen = Counter(solve(world.draw(rng).cells) for _ in range(4000))
    assert len(seen) == 288
    chi_square = sum((count - 4000 / 288) ** 2 / (4000 / 288) for count in seen.values())
    assert abs(chi_square - 287) < 4 * (2 * 287) ** 0.5


@pytest.mark.parametrize("blanks", [1, 6, 10, 12])
def test_every_4x4_puzzle_has_the_right_number_of_blanks_and_one_solution(blanks):
    world, rng = Sudoku.Config(blanks=blanks, max_steps=12).build(), np.random.default_rng(1)
    for _ in range(150):
        cells = world.draw(rng).cells
        assert cells.count(0) == blanks
        assert len(completions(cells)) == 1
        assert completions(cells)[0] == solve(cells)


def test_every_9x9_puzzle_has_the_right_number_of_blanks_and_one_solution():
    world = world_config("sudoku:nine").build()
    for seed in range(20):
        cells = world.draw(np.random.default_rng(seed)).cells
        assert cells.count(0) == 40
        assert count_solutions(cells, limit=2) == 1


def test_9x9_grids_are_full_consistent_and_different():
    grids = {full_grid(9, np.random.default_rng(seed)) for seed in range(30)}
    assert len(grids) == 30
    assert all(
        is_consistent(grid) and sorted(grid) == sorted(list(range(1, 10)) * 9) for grid in grids
    )


def test_the_solver_counts_two_where_two_digits_can_be_swapped():
    # The four cells are the corners of a rectangle over two boxes.
    grid = next(grid for grid in small_grids() if grid[0] == grid[13] and grid[1] == grid[12])
    opened = tuple(0 if cell in (0, 1, 12, 13) else digit for cell, digit in enumerate(grid))
    assert count_solutions(opened, limit=9) == len(completions(opened)) == 2
    assert count_solutions(opened, limit=1) == 1
    assert count_solutions((1, 1) + (0,) * 14, limit=2) == 0


def test_no_global_generator_is_read_or_seeded():
    world = Sudoku.Config().build()
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist()
    first, _ = world.reset(seed=0)
    world.step(world.actions()[0])
    assert before == (random.getstate(), np.random.get_state()[1].tolist())
    random.seed(6)
    np.random.seed(6)
    assert world.reset(seed=0)[0] == first


@pytest.mark.parametrize("spec", PRESETS)
@pytest.mark.parametrize("view", Sudoku.view_names)
def test_every_reachable_board_reads_back(spec, view):
    config = world_config(spec, [f"view={view}"])
    reader = config.build().view
    for board in boards_of_random_play(config, episodes=6):
        assert reader.read(reader.show(board)) == board


@pytest.mark.parametrize("view", Sudoku.view_names)
def test_other_texts_are_not_read(view):
    world = Sudoku.Config(view=view).build()
    shown = world.reset(seed=0)[0]
    text, other = shown.text, next(name for name in Sudoku.view_names if name != view)
    conflict = Board((1, 1, *world.state.cells[2:]))
    bad = [
        Text(""),
        Text(text + "\n"),
        Text(text[:-1]),
        Text("4 x 4\n" + text),
        Text(text.replace("1", "5")),
        Text(text.replace("1", "\u0661")),
        State.of(text),
        world.view.show(conflict),
        Sudoku.Config(view=other).build().view.show(world.state),
    ]
    assert [world.view.read(observation) for observation in bad] == [None] * len(bad)
    nine = world_config("sudoku:nine", [f"view={view}"]).build()
    assert world.view.read(nine.reset(seed=0)[0]) is None


@settings(max_examples=200, deadline=None)
@given(
    st.text(alphabet="1234.| \n(),Emptynoe:9\u0663", max_size=80),
    st.sampled_from(Sudoku.view_names),
)
def test_reading_never_raises(text, view):
    reader = Sudoku.Config(view=view).build().view
    board = reader.read(Text(text))
    assert board is None or reader.show(board) == Text(text)


@pytest.mark.parametrize("view", Sudoku.view_names)
def test_a_view_shows_the_cells_and_nothing_else(view):
    reader = Sudoku.Config(view=view).build().view
    boards = boards_of_random_play(Sudoku.Config(), 5)
    symbols = set("".join(reader.show(board).text for board in boards))
    assert symbols <= set(".1234 |\n(),:Emptynoe")


def test_a_placement_that_breaks_the_rule_is_a_valid_no_op():
    world = Sudoku.Config().build()
    world.reset(seed=0)
    before = world.state
    clash = next(name for name in world.actions() if not fits(before.cells, *world._moves[name]))
    _, reward, terminated, _, info = world.step(clash)
    assert (world.state, reward, terminated) == (before, 0.0, False)
    assert info == {"valid": True, "effective": False, "success": False}


def test_clues_and_placed_digits_cannot_be_changed():
    world = Sudoku.Config().build()
    world.reset(seed=0)
    filled = next(cell for cell, digit in enumerate(world.state.cells) if digit)
    before = world.state
    for name in world._names[filled]:
        assert world.truth(before, name)[0].state == before
    _, _, _, _, info = world.step(world._names[filled][0])
    assert not info["valid"]


def test_only_the_completed_board_is_rewarded():
    world = Sudoku.Config().build()
    episode = play(world, Expert.Config().build(), seed=3)
    assert [step.reward for step in episode.transitions] == [0.0] * 5 + [1.0]
    assert episode.success
    assert world.state.cells == solve(world.state.cells)


def test_a_wrong_placement_that_fits_loses_for_good():
    world = Sudoku.Config().build()
    lost = next(
        board
        for board in boards_of_random_play(Sudoku.Config(), 100)
        if 0 in board.cells and not solve(board.cells)
    )
    assert is_consistent(lost.cells)
    assert world.solver.best_value(lost, 10) == 0.0
    assert world.expert(lost, 10, np.random.default_rng(0)) in world.legal(lost)


@pytest.mark.parametrize(
    ("spec", "instances"), [("sudoku", 200), ("sudoku:hard", 200), ("sudoku:nine", 15)]
)
def test_the_expert_solves_every_instance_without_a_wasted_step(spec, instances):
    world = world_config(spec).build()
    for seed in range(instances):
        episode = play(world, Expert.Config().build(), seed=seed)
        assert episode.success
        assert len(episode.transitions) == world.config.blanks


def test_the_exact_random_value_agrees_with_playing():
    world = Sudoku.Config(blanks=3, max_steps=6).build()
    n = 1500
    world.reset(seed=0)
    exact = world.solver.random_value(world.state, 6)
    wins = sum(play(world, Random.Config().build(), seed=0, noise_seed=k).success for k in range(n))
    assert 0.02 < exact < 0.9
    assert abs(wins / n - exact) < 4 * (exact * (1 - exact) / n) ** 0.5


def test_the_fast_exact_values_agree_with_the_general_solver():
    for blanks, seed in [(1, 0), (3, 1), (6, 2), (6, 3)]:
        world = Sudoku.Config(blanks=blanks, max_steps=8).build()
        world.reset(seed=seed)
        general = Solver(world)
        for board in (
            world.state,
            *(world.truth(world.state, name)[0].state for name in world.actions()[::3]),
        ):
            for steps in (1, blanks, 8):
                if 0 in board.cells:
                    assert world.solver.random_value(board, steps) == pytest.approx(
                        general.random_value(board, steps)
                    )
                    assert world.solver.best_value(board, steps) == general.best_value(board, steps)


def test_9x9_is_too_large_for_exact_values_and_says_so_at_once():
    world = world_config("sudoku:nine").build()
    world.reset(seed=0)
    with pytest.raises(StateSpaceTooLargeError):
        world.solver.random_value(world.state, 60)
    assert world.solver.best_value(world.state, 40) == 1.0
    assert world.solver.best_value(world.state, 39) == 0.0


def test_same_seed_same_episode_and_splits_share_no_puzzle():
    world = Sudoku.Config().build()
    assert play(world, Random.Config().build(), seed=4) == play(
        world, Random.Config().build(), seed=4
    )
    starts = {split: set() for split in Split}
    for split, boards in starts.items():
        for seed in range(150):
            world.reset(seed=seed, options={"split": split})
            boards.add(world.state)
    assert all(not a & b for a, b in pairwise([*starts.values(), starts[Split.TRAIN]]))


def test_the_action_space_names_every_placement_of_the_world():
    assert len(Sudoku.Config().build().action_space.names) == 4 * 16
    assert len(world_config("sudoku:nine").build().action_space.names) == 9 * 81


def test_the_instruction_gives_size_symbols_and_action_form():
    world = Sudoku.Config(view="grid").build()
    world.reset(seed=0)
    for phrase in (
        "exactly one solution",
        "4 rows",
        "2 x 2",
        ". is an empty cell",
        "place D at row R col C",
    ):
        assert phrase in world.instruction


def test_the_actions_of_every_puzzle_are_words_of_a_vocabulary_made_from_one():
    """A model from scratch wrote those of other puzzles letter by letter, past its turn's end."""
    world = Sudoku.Config(blanks=2).build()
    world.reset(seed=0)
    words = set(world.vocabulary())
    for seed in range(20):
        world.reset(seed=seed)
        assert set(world.actions()) <= words


def test_gymnasium_accepts_it_and_discovery_finds_it():
    check_env(Sudoku.Config().build(), skip_render_check=True)
    assert find_world("sudoku") is Sudoku


@pytest.mark.parametrize(
    "bad", [{"blanks": 0}, {"blanks": 13, "max_steps": 20}, {"blanks": 6, "max_steps": 5}]
)
def test_boards_that_cannot_be_generated_or_filled_are_rejected(bad):
    with pytest.raises(ConfigError):
        Sudoku.Config(**bad)

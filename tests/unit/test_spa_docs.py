"""docs/spa.md names forms, settings, arms and recipes that exist, and all of them."""

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

from terrella.codecs.chat_template import Thinking
from terrella.codecs.tagged import Form
from terrella.pipelines.spa.pipeline import Spa
from terrella.pipelines.spa.self_play import SelfPlay
from terrella.recipes import find_recipe
from terrella.rollout.reward_shaping import RewardShaping

PAGE = (Path(__file__).parents[2] / "docs/spa.md").read_text("utf-8")
TINY, SMALL = ("spa_frozen_lake", "spa_sokoban"), "spa_smollm2_lake"


def table(heading):
    """The rows of the first table after a heading, as cells."""
    part = PAGE.split(heading)[1]
    lines = part[part.index("|---") :].split("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def names(cell):
    return re.findall(r"`([\w.]+)`", cell)


def default(config, path):
    for name in path.split("."):
        config = getattr(config, name)
    return config


def test_every_setting_exists_with_the_values_that_the_page_gives():
    spa = find_recipe(SMALL)().arms["spa"]
    rows = {name: row for row in table("## Settings") for name in names(row[0])}
    for name in rows:
        default(spa, name)
    assert {f"self_play.{each.name}" for each in fields(SelfPlay.Config)} - rows.keys() == {
        "self_play.sft"
    }
    choices = {
        "thinking": get_args(Thinking),
        "reward_shaping": [each.name for each in fields(RewardShaping.Config)],
        "self_play.keep": ("all", "well_formed", "success"),
        "self_play.states": ("true", "believed", "random_coordinates"),
        "self_play.loss": ("reply", "states", "no_states"),
        "self_play.actions": ("model", "random"),
    }
    for name, values in choices.items():
        assert sorted(names(rows[name][1])) == sorted(values), name
    usual = SelfPlay.Config()
    assert [rows[f"self_play.{name}"][1] for name in ("trajectories", "per_instance")] == [
        str(usual.trajectories),
        str(usual.per_instance),
    ]
    own = {each.name: each.default for each in fields(Spa.Config)}
    assert rows["max_turns"][1] == f"{own['max_turns']}, {own['max_actions']}"


def test_every_form_is_explained():
    assert sorted(names(row[0])[0] for row in table("**Forms.**")) == sorted(get_args(Form))


def test_every_arm_is_explained_and_differs_as_the_page_says():
    rows = {name: row[1] for row in table("## Arms") for name in names(row[0])}
    for recipe in TINY:
        arms = find_recipe(recipe)().arms
        assert arms.keys() - {"spa"} == rows.keys() - {"spa_predicted"}
        for name, said in rows.items():
            for path, value in re.findall(r"`([\w.]+)=(\w+)`", said):
                if name in arms and path.startswith("self_play"):
                    assert default(arms[name], path) == value != default(arms["spa"], path)
            if name in arms and "no self-play" in said:
                assert arms[name].self_play.trajectories == 0
    smallest = find_recipe(SMALL)().arms
    assert smallest.keys() - {"spa"} <= rows.keys()
    assert smallest["vanilla"].world == smallest["spa"].world
    paper = find_recipe("spa_qwen_1_5b_sokoban")()
    assert set(paper.arms) == {"base", "vanilla", "state", "spa"} and paper.seeds == 3


def test_every_command_names_a_recipe_that_exists():
    recipes = re.findall(r"terrella reproduce (\w+)", PAGE)
    assert len(recipes) >= 6 and all(find_recipe(name)().arms for name in recipes)

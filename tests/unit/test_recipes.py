"""Every recipe builds, survives disk, and says what it is."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")

import tests.support.quiet_trl  # noqa: F401  before anything imports trl

from terrella.core.config import dump, rebuild
from terrella.core.errors import ConfigError, MissingExtraError, WorldError
from terrella.pipelines.reproduce.pipeline import Reproduce
from terrella.recipes import all_recipes, find_recipe, recipe_info

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["tiny_counter", "tiny_lake_agent", "tiny_lake_model"])
def test_the_tiny_recipes_are_there(name):
    assert name in all_recipes()


@pytest.mark.parametrize("recipe", all_recipes().values(), ids=all_recipes())
def test_a_recipe_builds_survives_disk_and_has_a_reader(recipe):
    config = recipe()
    assert rebuild(dump(config)) == config
    config.build().check_settings()
    assert recipe.__doc__ and re.search("core|GPU", recipe.__doc__)  # says the hardware
    for part in config.arms.values() if isinstance(config, Reproduce.Config) else [config]:
        try:
            part.world.build()
        except (MissingExtraError, WorldError) as missing:  # a package, or the rules of games
            pytest.skip(str(missing))


def test_a_recipe_of_yours_is_found_by_module_and_function(tmp_path, monkeypatch):
    (tmp_path / "my_lake_recipes.py").write_text(
        "from terrella.recipes.trust import lake_model\n"
        "def longer():\n    return lake_model().replace(transitions=50_000)\n"
        "constant = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_recipe("my_lake_recipes.longer")().transitions == 50_000
    for wrong in (
        "my_lake_recipes.shorter",
        "my_lake_recipes.constant",
        "my_lake_recipes.deep.longer",
        "nowhere.at_all",
    ):
        with pytest.raises(ConfigError, match=r"named module\.function"):
            find_recipe(wrong)


def test_an_unknown_recipe_gets_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean tiny_counter"):
        find_recipe("tiny_conter")


def test_every_recipe_says_what_to_expect():
    for name, function in all_recipes().items():
        info = recipe_info(function)
        assert "?" not in (info.hardware, info.time, info.expect), name


def test_the_coverage_to_expect_is_that_measured():
    worlds = json.loads((ROOT / "results/trust_coverage.json").read_text())["worlds"]
    for name in ("counter", "sokoban", "lake_slip"):
        expect = recipe_info(find_recipe(f"{name}_model")).expect
        coverage, models = re.match(
            r"coverage (\S+) of 0.9 promised \((\d+) model", expect
        ).groups()
        assert coverage == f"{worlds[name]['coverage']['mean']:.3f}"
        assert int(models) == len(worlds[name]["models"])
    certified = json.loads((ROOT / "results/trust_certificates.json").read_text())["models"]
    steps = certified["lake"]["safe_horizon"]
    assert recipe_info(find_recipe("lake_model")).expect.startswith(f"certified for {steps} steps")

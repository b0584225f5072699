"""Numbers and names that `reproduce` cannot use are refused before anything starts."""

import json

import pytest

from terrella.cli.training import reproduce
from terrella.core.errors import ConfigError
from terrella.recipes import find_recipe


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"jobs": 0}, "--jobs 0: is below 1"),
        ({"seeds": 0}, "--seeds 0: is below 1"),
        ({"looks": 0}, "--looks 0: is below 1"),
        ({"only": "foo"}, "foo: no such job"),
        (
            {"assignments": ["arms.spa.rlvr.group_size=1"]},
            "group_size of the arm spa: grpo compares",
        ),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_what_cannot_run_is_refused(tmp_path, options, said, dry_run):
    with pytest.raises(ConfigError, match=said):
        reproduce("spa_sokoban", out=tmp_path / "out", dry_run=dry_run, **options)
    assert not (tmp_path / "out").exists()


def test_a_dry_run_of_one_job_shows_that_job(tmp_path, capsys):
    reproduce("spa_sokoban", out=tmp_path / "out", dry_run=True, only="spa-0")
    assert "spa-0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"), [({}, ""), ({"seeds": 1}, "1 seed decides"), ({"seeds": 2}, "2 seeds")]
)
def test_too_few_seeds_to_decide_are_announced(tmp_path, capsys, options, said):
    reproduce("bytesized32_smollm2", out=tmp_path / "out", dry_run=True, **options)
    shown = capsys.readouterr()
    assert json.loads(shown.out)["seeds"] == options.get("seeds", 3)
    assert said in shown.err and bool(said) == ("no claim" in shown.err)


def test_recipes_of_hours_can_decide_their_claims():
    for name in ("bytesized32_smollm2", "rlvr_world_1_5b", "rlvr_world_7b"):
        assert not find_recipe(name)().shortfall

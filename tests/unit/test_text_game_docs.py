"""docs/text_games.md: the figures it quotes are the ones in results/, and its recipes resolve."""

import json
import re
from pathlib import Path

import pytest

from terrella.recipes import find_recipe

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/text_games.md").read_text("utf-8")


def test_baselines_on_the_page_are_those_measured():
    found = json.loads((ROOT / "results/bytesized32_baselines.json").read_text("utf-8"))
    rows = {
        "nothing happens": "no_change",
        "nearest neighbour": "nearest_neighbour",
        "nearest neighbour, inside tables": "nearest_neighbour_inside_tables",
    }
    for told, name in rows.items():
        (line,) = re.findall(rf"^\| {told} \|(.*)\|$", PAGE, re.MULTILINE)
        cells = [[float(number) for number in cell.split("/")] for cell in line.split("|")]
        for cell, split in zip(
            cells, ("official", "official_dedup", "held_out_games"), strict=True
        ):
            shares = [
                100 * found[split][name][kind]["share"]
                for kind in ("unchanged", "changed", "overall")
            ]
            assert cell == pytest.approx(shares, abs=0.051), (told, split)


def test_the_figures_of_smollm2_are_those_measured():
    found = json.loads((ROOT / "results/bytesized32_smollm2.json").read_text("utf-8"))["arms"]
    for told, name in {"SFT, 200 states": "sft", "then RLVR, 20 steps, `exact`": "exact"}.items():
        arm = found[name]
        for seed in range(arm["seeds"]):
            (line,) = re.findall(rf"^\| {told}, seed {seed} \|(.*)\|$", PAGE, re.MULTILINE)
            shares, unreadable = line.split("|")
            measured = [
                100 * arm[kind]["per_seed"][seed] for kind in ("unchanged", "changed", "overall")
            ]
            assert [float(share) for share in shares.split("/")] == pytest.approx(
                measured, abs=0.051
            )
            assert float(unreadable) == pytest.approx(100 * arm["invalid"][seed], abs=0.051)


def test_the_faults_of_the_published_reward_are_those_measured():
    told = json.loads((ROOT / "results/bytesized32_rewards.json").read_text("utf-8"))[
        "official test"
    ]
    assert told["truth scores 1 everywhere but released"] and told["n"] == 2954
    assert told["table"]["truth"]["released"]["overall"] < 1.0


def test_every_recipe_of_the_page_resolves():
    pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
    import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL

    named = set(re.findall(r"terrella reproduce (\w+)", PAGE))
    assert {"bytesized32_tiny", "rlvr_world_1_5b", "rlvr_world_7b"} <= named
    for name in named:
        config = find_recipe(name)()
        assert config.arms and config.quick().arms

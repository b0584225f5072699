"""The commands of docs/page_models.md name recipes, settings and options that exist."""

import re
from pathlib import Path

import pytest

from terrella.cli.app import recipe_config
from terrella.cli.kinds import rlvr_kinds, world_model_kinds
from terrella.pipelines.web.page_model import PageModel
from terrella.pipelines.web.planning import WebPlan

PAGE = (Path(__file__).parents[2] / "docs/page_models.md").read_text()
KINDS = {"train-world-model": world_model_kinds, "rlvr": rlvr_kinds}


@pytest.mark.parametrize(
    ("command", "recipe"), re.findall(r"^terrella (train-world-model|rlvr) (\w+)", PAGE, re.M)
)
def test_a_recipe_of_the_page_resolves(command, recipe):
    config = recipe_config(recipe, KINDS[command](), command, None, [])
    assert str(config.out) == f"runs/{recipe}"


def test_the_settings_of_the_tables_exist():
    page_model, web_plan = (
        PageModel.Config.__dataclass_fields__,
        WebPlan.Config.__dataclass_fields__,
    )
    tables = re.findall(r"^\| (`[^|]+`) \|", PAGE, re.M)
    names = {name for cell in tables for name in re.findall(r"`(\w+)`", cell)}
    assert {"form", "long_pages", "context_tokens"} <= names
    assert names <= page_model.keys()
    settings = re.findall(r"--set (\w+)=", PAGE)
    known = page_model.keys() | web_plan.keys()
    assert {"right_action", "model"} <= set(settings) <= known

"""WebShop over its small catalogue; skipped where the data is not."""

from pathlib import Path

import pytest

from terrella.core.episode import play
from terrella.core.errors import MissingExtraError
from terrella.core.types import Split
from terrella.policies.basic import Expert
from terrella.worlds.webshop import WebShop
from terrella.worlds.webshop.catalogue import Goal, Product
from terrella.worlds.webshop.reward import alike, reward, type_reward

DATA = Path(__file__).parents[4] / "shared/data/webshop"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="needs WebShop's small catalogue in ../shared/data/webshop")


def thing(title="Oak table", query="tables", price=20.0, **more):
    fields = {"asin": "A", "category": ("Home", "Tables"), "options": (), "attributes": ("solid wood",),
              "description": "", "bullets": ()}  # fmt: skip
    return Product(title=title, query=query, price=price, **{**fields, **more})


def test_the_reward_is_the_originals():
    goal = Goal("A", "a table", ("solid wood", "easy to clean"), ("dark red",), 30.0)
    assert reward(thing(), goal, thing(), []) == pytest.approx(2 / 4)  # one attribute, the price; no option
    assert reward(thing(), goal, thing(), ["red, dark"]) == pytest.approx(3 / 4)
    assert reward(thing(price=31.0), goal, thing(), []) == pytest.approx(1 / 4)
    assert reward(thing(title="Steel whisk", query="tools", category=("Kitchen",)), goal, thing(), []) == 0.0


def test_types_and_likeness():
    assert type_reward(thing(), thing()) == 1.0
    other = thing(title="Oak shelf wide long tall", query="shelves", category=("Books",))
    assert type_reward(other, thing(title="Oak desk lamp chair stool bench")) == 0.5
    assert alike("dark red", "red dark") and not alike("dark red", "light blue")


def test_without_data_the_world_says_what_to_do(tmp_path):
    with pytest.raises(MissingExtraError, match=r"webshop\.data"):
        WebShop.Config(data=tmp_path).build()


@needs_data
def test_a_customer_who_knows_what_is_wanted_buys_it():
    world = WebShop.Config(data=DATA).build()
    values = [play(world, Expert.Config().build(), seed=seed, split=Split.TEST).outcome.value for seed in range(20)]
    assert sum(values) / len(values) > 0.9


@needs_data
def test_pages_are_read_back_and_nonsense_changes_nothing():
    world = WebShop.Config(data=DATA).build()
    seen, _ = world.reset(seed=1)
    assert world.step("buy everything")[0] == seen
    after = world.step(f"search[{world.goal.instruction[:40]}]")[0]
    assert world.view.read(after) == world.state and "[back to search]" in after.text
    assert world.step(f"click[{world.clickable(world.state)[-1]}]")[4]["effective"]
    assert world.state.page in ("item", "results")

"""WebShop over its small catalogue; skipped where the data is missing."""

from dataclasses import replace
from pathlib import Path

import pytest

from terrella.core.episode import play
from terrella.core.errors import WorldError
from terrella.core.types import Split
from terrella.policies.basic import Expert
from terrella.worlds.webshop import WebShop
from terrella.worlds.webshop.catalogue import Goal, Product
from terrella.worlds.webshop.env import Visit
from terrella.worlds.webshop.reward import reward, similar, type_reward

DATA = Path(__file__).parents[4] / "shared/data/webshop"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="needs WebShop's small catalogue in ../shared/data/webshop"
)


def product(title="Oak table", query="tables", price=20.0, **more):
    fields = {
        "asin": "A",
        "category": ("Home", "Tables"),
        "options": (),
        "attributes": ("solid wood",),
        "description": "",
        "bullets": (),
    }
    return Product(title=title, query=query, price=price, **{**fields, **more})


def test_the_reward_follows_the_original_formula():
    goal = Goal("A", "a table", ("solid wood", "easy to clean"), ("dark red",), 30.0)
    # One of two attributes and the price, but not the option.
    assert reward(product(), goal, product(), []) == pytest.approx(2 / 4)
    assert reward(product(), goal, product(), ["red, dark"]) == pytest.approx(3 / 4)
    assert reward(product(price=31.0), goal, product(), []) == pytest.approx(1 / 4)
    whisk = product(title="Steel whisk", query="tools", category=("Kitchen",))
    assert reward(whisk, goal, product(), []) == 0.0


def test_type_reward_and_similarity():
    assert type_reward(product(), product()) == 1.0
    other = product(title="Oak shelf wide long tall", query="shelves", category=("Books",))
    assert type_reward(other, product(title="Oak desk lamp chair stool bench")) == 0.5
    assert similar("dark red", "red dark") and not similar("dark red", "light blue")
    assert not similar("—", "red") and not similar("—", "/")  # no words, nothing alike


def test_the_error_for_missing_data_says_what_to_do(tmp_path):
    with pytest.raises(WorldError, match=r"holds no products_1000\.json\.xz") as refused:
        WebShop.Config(data=tmp_path).build()
    assert str(tmp_path) in refused.value.what
    assert "--set world.data=FOLDER (check and play: --set data=FOLDER)" in refused.value.remedy


@needs_data
def test_the_expert_buys_the_wanted_product():
    world = WebShop.Config(data=DATA).build()
    expert = Expert.Config().build()
    episodes = [play(world, expert, seed=seed, split=Split.TEST) for seed in range(20)]
    assert sum(episode.outcome.value for episode in episodes) / len(episodes) > 0.9


@needs_data
def test_the_expert_leaves_another_product_and_buys_the_wanted_one():
    world = WebShop.Config(data=DATA).build()
    expert = Expert.Config().build()
    for seed in range(5):
        world.reset(seed=seed)
        other = next(asin for asin in world.shop.products if asin != world.goal.asin)
        state = Visit(goal=world.state.goal, page="item", query="oak", item=other)
        assert world.expert(state, 9, None) == "click[back to search]"
        last = replace(state, page="results", item="", number=10_000)
        assert world.expert(last, 9, None) == "click[back to search]"
        assert play(world, expert, seed=seed).outcome.value > 0.5


@needs_data
def test_pages_are_read_back_and_unknown_actions_change_nothing():
    world = WebShop.Config(data=DATA).build()
    seen, _ = world.reset(seed=1)
    assert world.step("buy everything")[0] == seen
    after = world.step(f"search[{world.goal.instruction[:40]}]")[0]
    assert world.view.read(after) == world.state and "[back to search]" in after.text
    assert world.step(f"click[{world.clickable(world.state)[-1]}]")[4]["effective"]
    assert world.state.page in ("item", "results")
    world.reset(seed=1)
    seen = world.step("search[oak  table]")[0]
    assert world.view.read(seen) == world.state

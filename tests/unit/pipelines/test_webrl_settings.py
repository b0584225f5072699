"""Settings of WebRL that cannot work are refused before anything is played."""

import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")

from terrella.core.config import override
from terrella.core.errors import ConfigError
from terrella.pipelines.webrl.pipeline import WebRl
from terrella.recipes import all_recipes
from terrella.worlds.counter import Counter

PLAIN = WebRl.Config(families={"count": Counter.Config()})


def test_grpo_needs_attempts_to_compare():
    with pytest.raises(ConfigError, match="is 1: grpo compares attempts at one task") as caught:
        WebRl(PLAIN.replace(loss="grpo"))
    assert "group_size=4" in caught.value.remedy
    # The order in which they are set does not matter.
    WebRl(override(PLAIN, ["loss=grpo", "group_size=2"]))
    WebRl(override(PLAIN, ["group_size=2", "loss=grpo"]))


@pytest.mark.parametrize("updates", [0, -1])
def test_a_first_policy_imitates_something(updates):
    with pytest.raises(ConfigError, match="would not have learnt anything") as caught:
        PLAIN.replace(imitation_updates=updates)
    assert caught.value.where == "webrl.imitation_updates" and "1 or more" in caught.value.remedy


def test_traces_are_for_language_models():
    with pytest.raises(ConfigError, match="only points at what is offered") as caught:
        WebRl(PLAIN.replace(traces="rollouts"))
    assert "language model" in caught.value.remedy
    WebRl(override(PLAIN, ["traces=rollouts", "model=smollm2"]))


def test_the_settings_of_all_recipes_go_together():
    found = 0
    for recipe in all_recipes().values():
        config = recipe()
        for arm in getattr(config, "arms", {"": config}).values():
            if isinstance(arm, WebRl.Config):
                arm.check_together()
                found += 1
    assert found > 5

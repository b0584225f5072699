"""Settings of WebRL that cannot work are refused before anything is played."""

import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")

from tests.support.manifests import write_manifest

from terrella.cli.app import world_of
from terrella.codecs.web_prompt import WebCodecConfig
from terrella.core.config import dump
from terrella.core.config_override import override
from terrella.core.errors import ConfigError, WorldError
from terrella.core.instances import instance_id, split_of
from terrella.core.types import Split
from terrella.engines.configs import LearnerConfig
from terrella.pipelines.evaluate.talk import agent_settings
from terrella.pipelines.webrl.language_agent import LanguageAgentConfig
from terrella.pipelines.webrl.pipeline import WebRl
from terrella.recipes import all_recipes, find_recipe
from terrella.recipes.webrl_language import LITE
from terrella.rollout.env_pool import EnvPool
from terrella.show.runs import read_run
from terrella.worlds.counter import Counter
from terrella.worlds.sokoban import Sokoban
from terrella.worlds.webarena.tasks import load_tasks

PLAIN = WebRl.Config(families={"count": Counter.Config()})


def test_grpo_needs_attempts_to_compare():
    with pytest.raises(ConfigError, match="is 1: grpo compares attempts at one task") as caught:
        WebRl(PLAIN.replace(loss="grpo"))
    assert "group_size=4" in caught.value.remedy
    # The order in which they are set does not matter.
    WebRl(override(PLAIN, ["loss=grpo", "group_size=2"]))
    WebRl(override(PLAIN, ["group_size=2", "loss=grpo"]))


def test_a_first_policy_imitates_something():
    with pytest.raises(ConfigError, match="would not have learnt anything") as caught:
        PLAIN.replace(imitation_updates=0)
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


def test_the_tasks_of_lite_are_shared_out_to_the_five_sites_of_the_paper():
    """Published for the 19, 30, 35, 30 and 45 tasks of one site, and six that need two."""
    assert sorted(number for ids in LITE.values() for number in ids) == list(range(165))
    several = {127, 144, 146, 147, 158, 161}
    assert [len(set(ids) - several) for ids in LITE.values()] == [19, 30, 35, 30, 45]
    for recipe in ("webrl_llama_8b_webarena_lite", "webrl_glm4_9b_webarena_lite"):
        run = find_recipe(recipe)()
        assert {name: world.only for name, world in run.families.items()} == LITE
        for split, asked, wanted in (
            (Split.VALIDATION, run.validation, 25),
            (Split.TEST, run.test, 16),
        ):
            counts = [
                sum(
                    split_of(instance_id({"tasks": "webarena_lite", "task": n})) is split
                    for n in ids
                )
                for ids in LITE.values()
            ]
            assert sum(counts) == wanted and max(counts) == asked and min(counts) > 0
    try:
        tasks = load_tasks("webarena_lite")
    except WorldError as missing:
        pytest.skip(str(missing))
    for site, ids in LITE.items():
        for each in (task for task in tasks if task.task_id in ids):
            assert site in each.sites and (len(set(each.sites) - {"wikipedia"}) == 1) is (
                each.task_id not in several
            )


def test_the_server_of_a_run_suits_its_learners(tmp_path, monkeypatch):
    from terrella.engines.trl import trl_engine

    monkeypatch.setattr(trl_engine, "require_vllm", lambda: None)
    agent = LanguageAgentConfig(training=LearnerConfig(bf16=True))
    run = PLAIN.replace(model="smollm2", sampler="vllm", agent=agent, out=tmp_path)
    server = WebRl(run)._make_engine().samplers.config.vllm
    assert (server.dtype, server.memory) == ("bfloat16", 0.4)
    alone = WebRl(run.replace(model="pointer"))._make_engine().samplers.config.vllm
    assert (alone.dtype, alone.memory) == ("auto", 0.0)


def test_the_world_of_a_run_is_what_its_families_have_in_common(tmp_path):
    """They differ in what they draw from: the named world is asked with the rest."""
    families = {f"to_{n}": Counter.Config(goals=n, max_steps=7) for n in (4, 9)}
    write_manifest(tmp_path, dump(PLAIN.replace(families=families)), {})
    assert read_run(tmp_path).load_world(Counter) == Counter.Config(max_steps=7)
    assert world_of(tmp_path, "counter") == Counter.Config(max_steps=7)
    # A world that the run did not practise is as it was named.
    assert world_of(tmp_path, "sokoban") == Sokoban.Config()


def test_how_an_agent_acts_is_read_from_its_run_and_nothing_else_is(tmp_path):
    agent = LanguageAgentConfig(
        act="score",
        codec=WebCodecConfig(form="compact", language="named"),
        turn_tokens=7,
        env_pool=EnvPool.Config(workers=30),
    )
    config = dump(PLAIN.replace(model="smollm2", agent=agent, read_instruction=True))
    write_manifest(tmp_path / "run", config, {})
    found = agent_settings(str(tmp_path / "run"), {})
    assert found["codec"] == agent.codec and found["act"] == "score"
    assert found["turn_tokens"] == 7 and found["read_instruction"] is True
    assert "env_pool" not in found  # that is this machine's
    write_manifest(tmp_path / "forged", config | {"agent": dump(Counter.Config())}, {})
    with pytest.raises(ConfigError, match="does not say how the web agent is asked"):
        agent_settings(str(tmp_path / "forged"), {})

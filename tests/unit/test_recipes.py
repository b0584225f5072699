"""Every recipe builds, survives disk, and says what it is."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")

import tests.support.quiet_trl  # noqa: F401  before anything imports trl
from tests.support.chat_templates import chat_tokenizer

from terrella.codecs.choose import codec_for
from terrella.codecs.tagged import TAG_TOKENS
from terrella.core.config import dump, rebuild
from terrella.core.episode import EpisodeRun
from terrella.core.errors import ConfigError, MissingExtraError, WorldError
from terrella.core.types import Split, show_text
from terrella.models.characters import character_tokenizer
from terrella.models.names import TINY, is_pretrained
from terrella.pipelines.reproduce.pipeline import Reproduce
from terrella.pipelines.rlvr import Rlvr
from terrella.pipelines.spa.pipeline import Spa
from terrella.pipelines.web.agent import ASKED, WebPolicy
from terrella.pipelines.web.page_model import PageModel
from terrella.pipelines.webrl.pipeline import WebRl
from terrella.pipelines.world_model import TrainWorldModel
from terrella.policies.basic import Random
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
    for part in arms_of(config).values():
        try:
            part.world.build()
        except (MissingExtraError, WorldError) as missing:  # a package, or the rules of games
            pytest.skip(str(missing))


@pytest.mark.parametrize("recipe", all_recipes().values(), ids=all_recipes())
def test_the_codec_of_every_arm_is_made(recipe):
    """Settings of a codec that contradict each other or the model's template are refused there."""
    for part in arms_of(recipe()).values():
        model = getattr(part, "model", "")
        if model in TINY or is_pretrained(model):  # not a pointer network, a baseline or a video
            codec = codec_of(part, tokenizer_of(model))
            assert codec.stop_ids


@pytest.mark.parametrize("recipe", all_recipes().values(), ids=all_recipes())
def test_a_right_reply_of_a_model_from_scratch_fits_into_a_turn(recipe):
    """One that is cut off is never rewarded."""
    for name, part in arms_of(recipe()).items():
        if getattr(part, "model", "") not in TINY or not isinstance(part, PLAYED):
            continue
        try:
            worlds = [each.real.build() for each in worlds_of(part)]
        except MissingExtraError as missing:
            pytest.skip(str(missing))
        for world in worlds:
            world.reset(seed=0)
        words = [word for world in worlds for word in world.vocabulary()]
        codec = codec_of(part, tokenizer_of(part.model, words))
        longest = max(len(reply) for world in worlds for reply in right_replies(part, codec, world))
        assert longest <= part.turn_tokens, name


PLAYED = (Spa.Config, Rlvr.Config, TrainWorldModel.Config)
"""Pipelines whose worlds are played here: they need no data and no browser."""


def arms_of(config):
    return config.arms if isinstance(config, Reproduce.Config) else {"": config}


def worlds_of(part):
    return [part.world, *(each.world for each in getattr(part, "others", ()))]


def tokenizer_of(model, words=()):
    """As a run makes it for a model from scratch; else a small one with a template like its own."""
    if model in TINY:
        return character_tokenizer((*words, *TAG_TOKENS))
    if "llama" in model.lower():
        return chat_tokenizer("llama3")
    if "glm-4" in model:
        return chat_tokenizer("glm4")
    return chat_tokenizer("r1" if "deepseek" in model else "chatml")


def codec_of(part, tokenizer):
    """The codec that a run of this pipeline makes."""
    if isinstance(part, Spa.Config):
        return part.codec().make(tokenizer)
    if isinstance(part, WebRl.Config):
        return part.agent.codec.make(tokenizer)
    if isinstance(part, PageModel.Config):
        return part.build().codec_config().make(tokenizer)
    if isinstance(part, Rlvr.Config):
        pipeline = part.build()
        first, *_ = pipeline.worlds().values()
        return pipeline.codec_config(first).make(tokenizer)
    return ASKED.make(tokenizer) if isinstance(part, WebPolicy.Config) else codec_for(tokenizer)


def right_replies(part, codec, world):
    """What the model should write in a few episodes of random play."""
    policy = Random.Config().build()
    for seed in range(8):
        run = EpisodeRun(world, seed=seed, split=Split.TRAIN, policy=policy.name)
        while not run.over:
            before = show_text(run.observation)
            action = policy.act(run.moment)
            run.advance(action)
            if isinstance(part, Spa.Config):
                yield codec.answer(
                    [action] * part.max_actions, [before, show_text(run.observation)]
                )[0]
            elif getattr(part, "ask", "observation") == "action":
                yield codec.answer_action([action])
            else:
                yield codec.answer_observation(run.observation)


def test_a_recipe_of_yours_is_found_by_module_and_function(tmp_path, monkeypatch):
    (tmp_path / "my_lake_recipes.py").write_text(
        "from terrella.recipes.trust import lake_model\n"
        "def longer():\n    return lake_model().replace(transitions=50_000)\n"
        "constant = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert find_recipe("my_lake_recipes.longer")().transitions == 50_000
    for wrong in ("my_lake_recipes.deep.longer", "nowhere.at_all"):
        with pytest.raises(ConfigError, match=r"named module\.function"):
            find_recipe(wrong)
    for wrong in ("shorter", "constant"):
        with pytest.raises(ConfigError, match=f"my_lake_recipes has no function {wrong}"):
            find_recipe(f"my_lake_recipes.{wrong}")


def test_an_unknown_recipe_gets_a_suggestion():
    with pytest.raises(ConfigError, match="did you mean tiny_counter"):
        find_recipe("tiny_conter")


def test_every_recipe_says_what_to_expect():
    for name, function in all_recipes().items():
        info = recipe_info(function)
        assert "?" not in (info.hardware, info.time, info.expect), name


def test_the_certificates_to_expect_are_those_measured():
    models = json.loads((ROOT / "results/trust_certificates.json").read_text())["models"]
    worlds = json.loads((ROOT / "results/trust_coverage.json").read_text())["worlds"]
    for name, certificate in models.items():
        expect = recipe_info(find_recipe(f"{name}_model")).expect
        steps = certificate["safe_horizon"]
        verdict = f"certified for {steps} steps" if certificate["certified"] else "not certified"
        assert expect.startswith(verdict)
    for name in ("counter", "sokoban", "lake_slip"):
        expect = recipe_info(find_recipe(f"{name}_model")).expect
        found = re.search(r"coverage (\S+) of 0.9 promised \((\d+) models;", expect)
        assert found[1] == f"{worlds[name]['coverage']['mean']:.3f}"
        models = worlds[name]["models"].values()
        assert int(found[2]) == len(models)
        earlier = not all(model["has_lengths"] for model in models)
        assert earlier == ("earlier calibration" in expect)
        assert (worlds[name]["claim"]["verdict"] == "undecided") == ("undecided" in expect)


@pytest.mark.parametrize("name", ["webrl_sokoban", "webrl_miniwob"])
def test_a_recipe_expects_no_more_than_its_verdicts(name):
    claims = json.loads((ROOT / f"results/{name}.json").read_text())["claims"]
    undecided = {claim["verdict"] for claim in claims} == {"undecided"}
    assert undecided == ("claims undecided" in recipe_info(find_recipe(name)).expect)


def test_every_arm_that_was_published_beside_webrl_has_a_claim():
    """An arm that is not run counts in the correction only if it has a claim."""
    config = find_recipe("webrl_miniwob")()
    without = config.arms.keys() - {arm for claim in config.claims for arm in claim[:2]}
    assert without == {"judged"}
    stated = json.loads((ROOT / "results/webrl_miniwob.json").read_text())["claims"]
    assert [claim["worse"] for claim in stated if "on" not in claim] == [
        worse for _, worse, _, _ in config.claims
    ]

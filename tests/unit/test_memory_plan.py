"""The memory plan: it fits what fits, refuses what does not, and its remedies are computed."""

import os
import re
import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL

from terrella.codecs.choose import codec_for
from terrella.core.config_override import override
from terrella.core.episode import EpisodeRun
from terrella.core.errors import ConfigError
from terrella.core.types import Split
from terrella.engines.configs import LearnerConfig, RlvrConfig, SftConfig
from terrella.engines.hardware import parse_hardware
from terrella.engines.memory import steps
from terrella.engines.memory.model_spec import llama_spec, model_spec, parameters
from terrella.engines.memory.plan import Phase, Served, make_plan, plan_phase
from terrella.engines.memory.show import plan_rows, verdict
from terrella.engines.memory.steps import ExampleShape, TrainStep, train_bytes
from terrella.models.characters import character_tokenizer
from terrella.models.shapes import PUBLISHED_PARAMETERS, hub_shape, known_shapes
from terrella.pipelines.memory_plan import check_fits, plan_config, remedies
from terrella.pipelines.phases import phases
from terrella.policies.basic import Random
from terrella.recipes import all_recipes, find_recipe, recipe_info

SMALL = llama_spec(vocabulary=1000, width=64, layers=2, heads=4)
EXAMPLE = ExampleShape(prompt=32, completion=16)
PAPER = [name for name, made in all_recipes().items() if recipe_info(made).on != "cpu"]


def sft_phase(**settings):
    return Phase(name="sft", model=SMALL, settings=SftConfig(**settings), example=EXAMPLE)


def rl_phase(**changes):
    settings = RlvrConfig(groups=8, group_size=4, **changes)
    return Phase(name="rlvr", model=SMALL, settings=settings, example=EXAMPLE, members=4, rows=32)


def role(plan, phase, name):
    (found,) = [
        each
        for made in plan.phases
        if made.name == phase
        for each in made.roles
        if each.name == name
    ]
    return found


# --- shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", known_shapes())
def test_a_public_model_has_the_published_number_of_parameters(name):
    assert parameters(model_spec(f"owner/{name}")) == pytest.approx(
        PUBLISHED_PARAMETERS[name], rel=0.01
    )


def test_names_of_tuned_models_are_known_and_others_are_refused():
    assert hub_shape("Qwen/Qwen2.5-1.5B-Instruct") == hub_shape("x/qwen2.5-1.5b")
    assert hub_shape("owner/unheard-of") is None
    with pytest.raises(ConfigError, match="its shapes are not known"):
        model_spec("owner/unheard-of")


def test_hardware_is_parsed():
    assert parse_hardware("8xH100").processes == 8
    two = parse_hardware("2x8xA100-80GB")
    assert (two.nodes, two.devices, two.memory) == (2, 8, 80e9)
    assert parse_hardware("2x24GB").memory == 24e9 and str(parse_hardware("H100")) == "1xH100"
    cpu = parse_hardware("2xcpu")
    assert cpu.is_cpu and cpu.usable == pytest.approx(cpu.memory * 0.45)
    with pytest.raises(ConfigError, match="did you mean H100"):
        parse_hardware("8xH10")
    with pytest.raises(ConfigError, match="no device"):
        parse_hardware("0xH100")


def test_jobs_on_one_gpu_share_its_memory():
    assert parse_hardware("H100").shared_by(5).usable < 80e9 / 5
    assert parse_hardware("2x24GB").shared_by(8).memory == 6e9
    assert parse_hardware("8xH100").shared_by(2) == parse_hardware("4xH100")
    config = find_recipe("bytesized32_smollm2")().replace(at_once=2)
    need = plan_config(config, parse_hardware("2x1000GB")).worst.total
    gpu = f"{need / 0.6 / 1e9 + 2:.0f}GB"
    assert plan_config(config, parse_hardware(f"2x{gpu}")).fits
    shared = plan_config(config, parse_hardware(gpu))
    assert not shared.fits and "shared by 2 jobs" in verdict(shared)


# --- what is followed -----------------------------------------------------------------------------


def test_layers_are_continued_along_a_line(monkeypatch):
    deep = SMALL.with_layers(9)
    step = TrainStep(examples=(EXAMPLE,) * 4, bf16=True)
    continued = train_bytes(deep, step)
    monkeypatch.setattr(steps, "MORE_LAYERS", 9)
    train_bytes.cache_clear()
    assert train_bytes(deep, step) == continued
    train_bytes.cache_clear()


def test_checkpointing_keeps_fewer_activations_and_adapters_train_fewer_weights():
    deep = SMALL.with_layers(8)
    examples = (EXAMPLE,) * 8
    plain = train_bytes(deep, TrainStep(examples=examples))
    again = train_bytes(deep, TrainStep(examples=examples, gradient_checkpointing=True))
    adapters = train_bytes(deep, TrainStep(examples=examples, lora_rank=4))
    assert again.activations < plain.activations / 2
    assert adapters.trained < plain.trained / 5 and adapters.weights > plain.weights
    assert plain.weights == plain.trained == 4 * parameters(deep)


def test_logits_are_held_in_fp32_for_every_target():
    need = train_bytes(SMALL, TrainStep(examples=(EXAMPLE,)))
    assert need.logits >= 3 * 4 * 1000 * EXAMPLE.completion


# --- what processes share -------------------------------------------------------------------------


def test_fsdp2_shares_the_state_and_ddp_copies_gradients():
    hardware = parse_hardware("4x24GB")
    one = role(make_plan([sft_phase()], parse_hardware("24GB"), "ddp"), "sft", "policy")
    whole = role(make_plan([sft_phase()], hardware, "ddp"), "sft", "policy")
    shared = role(make_plan([sft_phase()], hardware, "fsdp2"), "sft", "policy")
    assert whole.optimiser == one.optimiser == 4 * shared.optimiser
    assert whole.gradients == 2 * one.gradients
    assert shared.weights > whole.weights / 4  # layers are gathered while they compute


def test_a_reference_a_critic_and_a_server_have_rows_of_their_own():
    plan = make_plan([rl_phase(kl=0.1)], parse_hardware("24GB"), "ddp")
    weights = 4.0 * parameters(SMALL)
    assert role(plan, "rlvr: train", "reference").weights == weights
    assert role(plan, "rlvr: generate", "sampler").kv_cache > 0
    ppo = make_plan([rl_phase(algorithm="ppo", critic="separate")], parse_hardware("24GB"), "ddp")
    assert role(ppo, "rlvr: train", "critic").optimiser == pytest.approx(2 * weights, rel=0.01)
    served = Phase(**{**vars(rl_phase()), "server": Served(share=0.5)})
    for made in plan_phase(served, parse_hardware("24GB"), "ddp"):
        (server,) = [each for each in made.roles if each.name == "vLLM server"]
        assert server.total == pytest.approx(12e9)
    asleep = Phase(**{**vars(rl_phase()), "server": Served(share=0.5, sleeps=True)})
    _, training = plan_phase(asleep, parse_hardware("24GB"), "ddp")
    assert "vLLM server" not in [each.name for each in training.roles]


def test_a_server_that_stays_awake_is_beside_the_learners():
    learners = Phase(
        name="agent", model=SMALL, settings=LearnerConfig(), example=EXAMPLE, server=Served()
    )
    hardware = parse_hardware("24GB")

    def servers(**changes):
        served = replace(learners, rows=8, server=Served(share=0.5, **changes))
        (made,) = plan_phase(served, hardware, "ddp")
        return [each for each in made.roles if each.name == "vLLM server"]

    (awake,), (wide,) = servers(), servers(bf16=False)
    assert awake.total == pytest.approx(12e9) and servers(sleeps=True) == []
    assert wide.weights == 2 * awake.weights


@pytest.mark.parametrize(
    ("changes", "path", "beside"),
    [
        ((), "self_play.sft", True),
        (("validation.instances=0",), "self_play.sft", True),  # it has played
        (("validation.instances=0", "self_play.actions=random"), "self_play.sft", False),
        (("vllm.sleep=true",), "self_play.sft", False),
        (("format_examples=8",), "format_sft", False),
    ],
)
def test_a_server_that_has_sampled_is_beside_the_sft_that_follows(changes, path, beside):
    """The engine ends its server with the run."""
    arm = override(find_recipe("spa_smollm2_lake")().arms["spa"], ["sampler=vllm", *changes])
    (phase,) = [each for each in phases(arm) if each.name == path]
    (made,) = plan_phase(replace(phase, model=SMALL), parse_hardware("24GB"), "ddp")
    assert ("vLLM server" in [each.name for each in made.roles]) == beside


@pytest.mark.parametrize(
    ("recipe", "once", "more"),
    [
        ("bytesized32_tiny", {"sft_rounds": 1}, {"sft_rounds": 2}),
        ("pages_7b_webarena", {"score_before": False}, {"score_before": True}),
    ],
)
def test_sampling_before_a_round_of_sft_counts_too(recipe, once, more):
    whole = find_recipe(recipe)()
    config = next(iter(getattr(whole, "arms", {"": whole}).values())).replace(sampler="vllm")
    for changes in (once, more):
        (sft,) = [each for each in phases(config.replace(**changes)) if each.name == "sft"]
        assert (sft.server is not None) == (changes is more)


def test_a_server_holds_the_rows_that_its_copies_share():
    """Rows of 8 processes are on one device of TRL's, unless it has more copies."""

    def cache(**changes):
        served = replace(rl_phase(), rows=8, server=Served(**changes))
        made = plan_phase(served, parse_hardware("8x24GB"), "ddp")[0]
        (server,) = [each for each in made.roles if each.name == "vLLM server"]
        return server.kv_cache

    one, on_all = cache(data_parallel=1), cache(data_parallel=8)
    assert one == 8 * on_all > 0 and cache() == on_all
    assert cache(data_parallel=4) == 2 * on_all


@pytest.mark.slow
def test_webrl_at_8b_needs_a_server_that_sleeps_or_has_16_bits():
    config, hardware = find_recipe("webrl_llama_8b_webarena_lite")(), parse_hardware("8xH100")
    assert config.vllm.sleep and config.vllm.dtype == "bfloat16"
    asleep = plan_config(config, hardware)
    # Eight copies: one alone would hold the episodes of all ranks, in 32 bits.
    changes = {"sleep": False, "dtype": "float32", "data_parallel": 8}
    wide = config.replace(vllm=config.vllm.replace(**changes))
    awake = plan_config(wide, hardware)
    assert asleep.fits and not awake.fits
    for part in ("agent.training", "agent.critic", "agent.judge"):
        assert role(awake, part, "vLLM server").weights == pytest.approx(4 * 8.03e9, rel=0.01)
        (made,) = [each for each in asleep.phases if each.name == part]
        assert [each.name for each in made.roles] == ["policy"]
    (remedy,), made = next(remedies(wide, hardware))
    assert remedy.assignments == ("vllm.sleep=true",) and made.fits


def test_the_table_has_a_row_for_each_role_and_a_verdict():
    plan = make_plan([rl_phase()], parse_hardware("2xcpu"), "ddp")
    rows = plan_rows(plan)
    assert [row[1] for row in rows] == ["policy", "sampler", "all", "policy"]
    assert verdict(plan).startswith("fits on 2xcpu with ddp: ")


# --- recipes --------------------------------------------------------------------------------------


def test_every_recipe_that_holds_a_model_is_planned():
    """A new pipeline whose settings are not found would be planned as if it needed nothing."""
    for name, made in all_recipes().items():
        config = made()
        part = next(iter(config.arms.values())) if hasattr(config, "arms") else config
        wanted = getattr(part, "model", "") != "pointer"  # nets of 0.3M parameters
        assert bool(phases(config)) is wanted, name


@pytest.mark.parametrize("name", ["tiny_counter", "tiny_lake_agent"])
def test_an_agents_longest_example_holds_the_turns_of_the_world(name):
    config = find_recipe(name)()
    world, policy = config.world.build(), Random.Config().build()
    world.reset(seed=0)
    codec, longest = codec_for(character_tokenizer(world.vocabulary())), 0
    for seed in range(30):
        run, tokens = EpisodeRun(world, seed=seed, split=Split.TRAIN), 0
        while not run.over:
            action = policy.act(run.moment)
            run.advance(action)
            tokens += len(codec.answer_action([action]))
            tokens += 0 if run.over else len(codec.world_turn(run.situation))
        longest = max(longest, tokens)
    planned = min(phase.example.completion for phase in phases(config))
    assert longest <= planned <= config.episode_tokens


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PAPER)
def test_a_recipe_of_paper_size_fits_on_the_hardware_that_it_names(name):
    function = find_recipe(name)
    info = recipe_info(function)
    hardware = parse_hardware(info.on)
    assert f"{hardware.processes} " in info.hardware
    plan = plan_config(function(), hardware)
    assert plan.fits, verdict(plan)


@pytest.mark.slow
def test_what_does_not_fit_is_refused_and_every_remedy_that_is_named_fits():
    config = find_recipe("tiny_counter")().replace(model="Qwen/Qwen2.5-0.5B-Instruct")
    hardware = parse_hardware("16GB")
    plan = plan_config(config, hardware)
    assert not plan.fits
    with pytest.raises(ConfigError) as refused:
        check_fits(config, plan, hardware)
    assert "these fit: " in str(refused.value)
    combination, made = next(remedies(config, hardware))
    assert made.fits and combination
    words = [word for each in combination for word in each.assignments]
    from terrella.core.config_override import override

    again = plan_config(override(config, words), made.hardware)
    assert again.worst.total == made.worst.total


def test_the_command_prints_the_plan_and_refuses(tmp_path):
    def terrella(*words):
        command = [sys.executable, "-m", "terrella", *words]
        wide = {**os.environ, "COLUMNS": "200"}
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=wide)

    shown = terrella("rlvr", "tiny_lake_model", "--dry-run", "--on", "cpu")
    assert shown.returncode == 0, shown.stderr[-2000:]
    assert re.search(r"fits on 1xcpu: ", shown.stdout) and "kv cache" in shown.stdout
    refused = terrella("launch", "tiny_lake_model", "--dry-run", "--on", "0.01GB")
    assert refused.returncode == 2 and "does not fit on 1x0.01GB" in refused.stderr + refused.stdout
    wrong = terrella("rlvr", "tiny_lake_model", "--on", "8xH100")
    assert wrong.returncode == 2 and "--dry-run" in wrong.stderr + wrong.stdout

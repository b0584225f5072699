"""The cost model is consistent, and agrees with measured and published numbers."""

import itertools
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from terrella.core.errors import ConfigError
from terrella.evals.cost import (
    count,
    count_tokens,
    describe,
    duration,
    estimate,
    expect_failures,
    size,
)
from terrella.evals.cost_inputs import CPU_CORE, H100, MODELS, Rate, Workload

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))

import cost_table

WORK = Workload(prompt_tokens=2000, answer_tokens=64, group_size=8, groups=16, steps=10)


def test_shared_prompts_are_counted_once():
    tokens = count_tokens(replace(WORK, pack_tokens=4096))
    assert tokens.generated == 16 * 8 * 64
    assert (tokens.read, tokens.read_plain) == (16 * 2000, 16 * 8 * 2000)
    assert (tokens.trained, tokens.trained_plain) == (16 * (2000 + 8 * 64), 16 * 8 * 2064)


LONG = replace(WORK, prompt_tokens=8000)


@pytest.mark.parametrize(("pack", "copies"), [(8504, 1), (8503, 2), (8192, 3), (1024, 8)])
def test_a_pack_smaller_than_the_group_repeats_the_prompt(pack, copies):
    assert replace(LONG, pack_tokens=pack).prompts_per_group == copies
    assert replace(WORK, pack_tokens=max(pack, 2560)).prompts_per_group == 1


@pytest.mark.parametrize("pack", [1024, 8192, 8503, 8504])
def test_the_copies_are_those_that_packing_makes(pack):
    packs = pytest.importorskip("terrella.engines.trl.packs")
    example = packs.TrainExample(prompt_ids=range(8000), completion_ids=range(64), mask=[True] * 64)
    packed = packs.pack_episodes([example] * 8, max_tokens=pack)
    read = sum(len(pack.ids_N) for pack in packed)
    # The last token of a completion is not read, because it predicts nothing; the cost model counts
    # it, one token in sixty-four.
    assert read == pytest.approx(
        count_tokens(replace(LONG, groups=1, pack_tokens=pack)).trained, rel=0.02
    )


def test_turns_pay_for_the_worlds_tokens_between_them():
    work = Workload(
        prompt_tokens=100, answer_tokens=5, world_tokens=20, turns=4, groups=1, group_size=2
    )
    tokens = count_tokens(work)
    assert work.completion_tokens == 4 * 5 + 3 * 20
    assert (tokens.generated, tokens.read, tokens.trained) == (
        2 * 4 * 5,
        100 + 2 * 3 * 20,
        100 + 2 * 80,
    )
    assert estimate(work, MODELS["tiny-5m"], CPU_CORE).real_steps == 100 * 2 * 4


def close(computed, published):
    """Within a factor of two, as the page says."""
    return 0.5 <= computed / published <= 2


def test_published_rates_of_each_stack_come_out():
    """torchtitan and vLLM with Llama-3.1-8B; nanotron with 1.2B on 8 H100, 33,000 at its best."""
    assert close(H100.train.at(8.03e9), 5_762) and close(H100.train.at(1.24e9), 33_000)
    assert close(H100.decode.at(8.03e9), 12_500)
    assert close(H100.decode.at(8.03e9), 5_777) is False  # prompt-heavy serving: the page says so


@pytest.mark.parametrize("published", cost_table.PUBLISHED_STEPS, ids=lambda step: step[1])
def test_published_steps_come_out(published):
    """NeMo-RL on H100: synchronous GRPO, 2,048 sequences."""
    _, model, devices, tokens, seconds = published
    work = Workload(prompt_tokens=1, answer_tokens=tokens - 1, group_size=16, groups=128, steps=1)
    assert close(estimate(work, MODELS[model], H100.on(devices)).seconds.step, seconds)


def test_the_measured_rates_come_out():
    assert 160 <= CPU_CORE.train.at(134.5e6) <= 220 and 2_700 <= CPU_CORE.train.at(5e6) <= 4_100
    assert 95 <= 2 * CPU_CORE.decode.at(134.5e6) <= 100
    # Prefill takes a third of the time of training.
    assert 2 * CPU_CORE.train.at(134.5e6) * 3 == pytest.approx(1_168, rel=0.1)


def test_the_store_constants_are_those_of_the_results():
    million = json.loads((ROOT / "results/foundation.json").read_text())["collect"]["1000000"]
    assert million["transitions_per_second"] == cost_table.STORE_RATE
    assert million["bytes_per_transition"] == cost_table.STORE_BYTES
    assert 1 / WORK.world_seconds == pytest.approx(million["transitions_per_second"], rel=0.05)


def test_a_rate_goes_through_its_points_and_falls():
    rate = Rate(points=((1e6, 1000.0), (1e8, 10.0)), source="assumed", description="")
    assert rate.at(1e6) == pytest.approx(1000) and rate.at(1e7) == pytest.approx(100)
    assert rate.at(1e5) == pytest.approx(10_000) and rate.at(1e9) == pytest.approx(1)
    sizes = [10**power for power in range(5, 12)]
    assert all(CPU_CORE.train.at(a) > CPU_CORE.train.at(b) for a, b in itertools.pairwise(sizes))


def test_a_server_on_one_device_reads_and_decodes_for_all():
    model = MODELS["7b"]
    one, all_of_them = (
        estimate(WORK, model, each).seconds for each in (H100.on(8, samplers=1), H100.on(8))
    )
    assert one.decode == pytest.approx(8 * all_of_them.decode)
    assert one.read == pytest.approx(8 * all_of_them.read)
    assert one.train == all_of_them.train


def test_the_published_failure_rate_of_llama_3_comes_out():
    failures = expect_failures(MODELS["32b"], H100.on(16_384))
    assert 24 / failures.per_day == pytest.approx(54 * 24 / 419)


def test_the_interval_is_the_best_one():
    machine, model = H100.on(1024), MODELS["7b"]
    best = expect_failures(model, machine)
    mtbf = 86_400 / best.per_day
    assert best.checkpoint_every == pytest.approx(math.sqrt(2 * best.checkpoint_seconds * mtbf))
    for factor in (0.5, 2.0):
        other = expect_failures(model, machine, every=factor * best.checkpoint_every)
        assert other.lost_share > best.lost_share


def test_a_machine_that_never_fails_needs_no_checkpoint():
    failures = expect_failures(MODELS["tiny-5m"], CPU_CORE.on(2))
    assert (failures.per_day, failures.lost_share, failures.checkpoint_every) == (0, 0, math.inf)
    assert expect_failures(MODELS["tiny-5m"], CPU_CORE, every=60.0).lost_share > 0


def test_twice_the_devices_halve_the_step():
    one, two = (estimate(WORK, MODELS["1.5b"], H100.on(n)).seconds for n in (1, 2))
    assert one.step == pytest.approx(2 * two.step)


def test_cores_of_one_process_share_one_interpreter():
    one, two = (estimate(WORK, MODELS["tiny-5m"], CPU_CORE.on(n)) for n in (1, 2))
    assert one.seconds.world == two.seconds.world


def test_a_count_below_one_is_refused():
    with pytest.raises(ConfigError, match="group_size"):
        replace(WORK, group_size=0)


def test_costs_are_formatted():
    rows = dict(describe(estimate(WORK, MODELS["7b"], H100)))
    assert "overhead" in rows["a step"]
    assert rows["tokens generated per step"] == "8.2k" and rows["real steps"] == "1.3k"
    assert [count(n) for n in (0, 950, 12_345, 4e6, 1.2e9)] == ["0", "950", "12.3k", "4.0M", "1.2G"]
    assert [size(n) for n in (0, 1, 12e6, 1.5e9)] == ["0", "1 MB", "12 MB", "1.5 GB"]
    assert [duration(s) for s in (0.031, 12, 186, 8640, 432_000, math.inf)] == [
        "0.031 s",
        "12 s",
        "3.1 min",
        "2.4 h",
        "5.0 days",
        "never",
    ]


@pytest.mark.slow
def test_the_tables_of_the_page_are_the_models():
    pytest.importorskip("trl")
    import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL

    page = (ROOT / "docs/scaling.md").read_text()
    for name in cost_table.TABLES:
        assert f"<!-- table: {name};" in page
    assert cost_table.refresh(page) == page, "run: python benchmarks/cost_table.py docs/scaling.md"


def test_a_page_without_markers_is_refused(monkeypatch):
    monkeypatch.setattr(cost_table, "TABLES", {"sizes": cost_table.store_table})
    with pytest.raises(ConfigError, match="sizes"):
        cost_table.refresh("# nothing here")


def test_the_pages_python_runs():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/scaling.md").read_text(), re.S)
    done = subprocess.run(
        [sys.executable, "-c", code + "\nassert len(rows) == 8"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr

"""A learner on verl as a cluster runs it: Ray, two FSDP workers, servers on the same devices."""

import asyncio
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from tests.support.learner_steps import CALLS, assert_same, examples, steps
from tests.support.verl_cpu import engine_config, use, wide_model

use()
from terrella.core.errors import EngineError
from terrella.core.tokens import TokenRequest
from terrella.engines.configs import EngineConfig
from terrella.engines.engine import make_engine
from terrella.models.presets import load_model

PROMPT = (5, 6, 7, 8)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")  # of verl's dependencies
def test_two_workers_learn_as_one_process_and_are_sampled(tmp_path: Path):
    folder = tmp_path / "start"
    wide_model(folder)
    with (
        make_engine(EngineConfig(), work=tmp_path / "trl") as engine,
        engine.learner(folder, work=tmp_path / "a") as learner,
    ):
        by_trl = steps(learner, CALLS)
    with (
        make_engine(engine_config(), work=tmp_path / "verl") as engine,
        engine.learner(folder, work=tmp_path / "b") as learner,
    ):
        assert_same(steps(learner, CALLS), by_trl)
        request = TokenRequest(prompt_ids=PROMPT, max_new_tokens=1, seed=0, temperature=0.0)
        with learner.sampler() as sampler:
            with pytest.raises(EngineError, match="sampler is open"):
                learner.forward(examples())
            (written,) = asyncio.run(sampler.sample(request)).token_ids
        assert_same([{"outputs": _flat(learner.forward(examples()))}], by_trl[-1:])
        learner.export(tmp_path / "exported")
    model = load_model(str(tmp_path / "exported"))[0]
    with torch.no_grad():
        assert written == int(model(torch.tensor([PROMPT])).logits[0, -1].argmax())


def _flat(rows: list[tuple[float, ...]]) -> list[float]:
    return [number for row in rows for number in row]

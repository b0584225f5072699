"""A learner on verl (Ray, two FSDP workers) against the TRL learner: same data, same numbers."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from tests.support.verl_cpu import engine_config, use, wide_model

use()
from terrella.core.errors import EngineError
from terrella.core.protocols import Learner
from terrella.core.tokens import AdamParams, TokenRequest, TrainExample
from terrella.engines.configs import EngineConfig
from terrella.engines.engine import Engine, make_engine
from terrella.models.export import VALUE_HEAD
from terrella.models.presets import load_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore"),  # of verl's dependencies
]
ADAM = AdamParams(learning_rate=1e-2, weight_decay=0.1, max_grad_norm=0.5)


def examples(count: int = 9) -> list[TrainExample]:
    """An odd number of them for two workers, of different lengths, some tokens no targets."""
    chance = random.Random(0)
    made = []
    for number in range(count):
        length = 2 + number % 5
        columns = ("advantage", "old", "reference", "sampled", "weight", "value", "return")
        made.append(
            TrainExample(
                prompt_ids=[chance.randrange(3, 40) for _ in range(1 + number % 4)],
                completion_ids=[chance.randrange(3, 40) for _ in range(length)],
                mask=[chance.random() < 0.7 for _ in range(length)],
                columns={
                    name: [
                        chance.uniform(-4, -3)
                        if name in ("old", "reference", "sampled")
                        else chance.uniform(0.1, 1)
                        for _ in range(length)
                    ]
                    for name in columns
                },
            )
        )
    return made


CALLS: list[tuple[str, dict[str, Any]]] = [
    ("cross_entropy", {}),
    ("policy", {"kl": 0.1, "importance_cap": 2.0}),
    ("policy", {"ratio": "episode"}),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    wide_model(tmp_path / "start")
    return tmp_path / "start"


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[dict[str, Engine]]:
    with (
        make_engine(EngineConfig(), work=tmp_path / "trl") as trl,
        make_engine(engine_config(), work=tmp_path / "verl") as verl,
    ):
        yield {"trl": trl, "verl": verl}


def steps(learner: Learner, calls: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """An optimizer step per loss: what the learner returned of each."""
    found = []
    for loss, knobs in calls:
        first, second = examples()[:4], examples()[4:]
        learner.forward_backward(first, loss, **knobs)  # gradients add up over calls
        output = learner.forward_backward(second, loss, **knobs)
        found.append(
            {
                "loss": output.loss,
                "outputs": [number for row in output.outputs for number in row],
                **output.metrics,
                **learner.optim_step(ADAM),
            }
        )
    found.append({"outputs": [number for row in learner.forward(examples()) for number in row]})
    return found


def assert_same(by_verl: list[dict[str, Any]], by_trl: list[dict[str, Any]]) -> None:
    for one, other in zip(by_verl, by_trl, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            assert one[name] == pytest.approx(other[name], abs=1e-4, rel=1e-4), name


def test_a_policy_takes_the_same_steps(folder: Path, engines: dict[str, Engine], tmp_path: Path):
    with engines["trl"].learner(folder, work=tmp_path / "a") as learner:
        by_trl = steps(learner, CALLS)
    with engines["verl"].learner(folder, work=tmp_path / "b") as learner:
        assert_same(steps(learner, CALLS), by_trl)
        with pytest.raises(EngineError, match="no gradient"):
            learner.optim_step(ADAM)
        learner.save_state(tmp_path / "state")
        after = learner.forward(examples())
        learner.export(tmp_path / "exported")
        steps(learner, CALLS[:1])
        assert learner.forward(examples()) != after
        learner.load_state(tmp_path / "state")
        assert learner.forward(examples()) == after
        ids, written = _written(learner)
    model = load_model(str(tmp_path / "exported"))[0]
    with torch.no_grad():
        best = model(torch.tensor([ids])).logits[0, -1].argmax()
    assert written == int(best)


def _written(learner: Learner) -> tuple[tuple[int, ...], int]:
    """A prompt, and the first token that servers of the learner's weights write after it."""
    ids = (5, 6, 7, 8)
    request = TokenRequest(prompt_ids=ids, max_new_tokens=1, seed=0, temperature=0.0)
    with learner.sampler() as sampler:
        with pytest.raises(EngineError, match="sampler is open"):
            learner.forward(examples())
        return ids, asyncio.run(sampler.sample(request)).token_ids[0]


def test_a_value_head_takes_the_same_steps(
    folder: Path, engines: dict[str, Engine], tmp_path: Path
):
    calls = [("value", {}), ("value", {"clip": 0.5})]
    with engines["trl"].learner(folder, head="value", work=tmp_path / "a") as learner:
        by_trl = steps(learner, calls)
    with engines["verl"].learner(folder, head="value", work=tmp_path / "b") as learner:
        assert_same(steps(learner, calls), by_trl)
        learner.export(tmp_path / "exported")
    assert (tmp_path / "exported" / VALUE_HEAD).is_file()
    with engines["trl"].learner(
        tmp_path / "exported", head="value", work=tmp_path / "c"
    ) as learner:
        outputs = [number for row in learner.forward(examples()) for number in row]
    assert outputs == pytest.approx(by_trl[-1]["outputs"], abs=1e-4)

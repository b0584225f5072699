"""Evaluation on verl's standalone servers: Ray, two vLLM servers, on CPUs."""

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("torch")
from tests.support.verl_cpu import engine_config, use, wide_model

use()
from terrella.core.errors import EngineError
from terrella.core.tokens import Sampled, TokenRequest
from terrella.engines.engine import make_engine
from terrella.engines.local.local_sampler import local_sampler
from terrella.models.presets import load_model


def requests(temperature: float, allowed: tuple[int, ...] | None = None) -> list[TokenRequest]:
    """More than a server takes at a time, some of them with the same prompt."""
    return [
        TokenRequest(
            prompt_ids=tuple(5 + (number // 2 + k) % 20 for k in range(3 + number % 7)),
            max_new_tokens=6,
            seed=number,
            temperature=temperature,
            allowed_ids=allowed,
            session=f"episode {number}",
        )
        for number in range(80)
    ]


async def all_of(sampler: object, asked: list[TokenRequest]) -> list[Sampled]:
    return await asyncio.gather(*(sampler.sample(request) for request in asked))


pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),  # of verl's dependencies
]


def test_servers_sample_what_the_model_would(tmp_path: Path):
    folder = tmp_path / "model"
    wide_model(folder)
    local = local_sampler(load_model(str(folder))[0])
    allowed = tuple(range(0, 40, 3))
    with (
        make_engine(engine_config(), work=tmp_path / "engine") as engine,
        engine.sampler(folder) as sampler,
    ):
        greedy, masked = requests(0.0), requests(1.0, allowed)
        found = asyncio.run(all_of(sampler, greedy))
        expected = asyncio.run(all_of(local, greedy))
        assert [each.token_ids for each in found] == [each.token_ids for each in expected]
        for one, other in zip(found, expected, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        for each in asyncio.run(all_of(sampler, masked)):
            assert set(each.token_ids) <= set(allowed)
            # Before the mask: each allowed token has a small share of the vocabulary.
            assert sum(each.logprobs) < -len(each.logprobs)
        with pytest.raises(EngineError, match="temperature 1"):
            asyncio.run(all_of(sampler, requests(0.7)[:1]))

"""The in-process sampler: samples depend on ids and seed alone, prompts are read once."""

import asyncio
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from tests.support.tiny_model import tiny_model
from transformers.integrations import sdpa_attention

from terrella.core.errors import EngineError
from terrella.core.tokens import Sampled, TokenRequest
from terrella.engines.local import local_sampler, rows
from terrella.engines.local.local_sampler import LocalSampler
from terrella.engines.local.sample_tokens import sample_tokens
from terrella.engines.trl.tree_attention import TREE, attention_of, use_attention

MODEL, _ = tiny_model()


def request(prompt: tuple[int, ...], seed: int = 0, **changes: Any) -> TokenRequest:
    return TokenRequest(**{"prompt_ids": prompt, "max_new_tokens": 8, "seed": seed, **changes})


def sample(requests: list[TokenRequest], sampler: LocalSampler | None = None) -> list[Sampled]:
    sampler = sampler or LocalSampler(MODEL)

    async def run() -> list[Sampled]:
        return list(await asyncio.gather(*(sampler.sample(request) for request in requests)))

    return asyncio.run(run())


def tokens(
    requests: list[TokenRequest], sampler: LocalSampler | None = None
) -> list[tuple[int, ...]]:
    return [sampled.token_ids for sampled in sample(requests, sampler)]


def mixed(count: int) -> list[TokenRequest]:
    """Prompts of different lengths, each three times."""
    return [
        request(tuple(range(5, 8 + (i - i % 3) % 20)), seed=i, max_new_tokens=3 + i % 6)
        for i in range(count)
    ]


def test_same_seed_same_sample_whatever_the_batch():
    requests = mixed(24)
    together = tokens(requests)
    assert [tokens([each])[0] for each in requests] == together
    assert tokens(requests[::-1])[::-1] == together
    assert tokens(requests, LocalSampler(MODEL, max_rows=3)) == together


@pytest.mark.parametrize("sharing", [1, 2])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["llama", "gemma3", "mistral"])
def test_log_probabilities_are_those_of_the_model_itself(
    kind: str, attention: str, sharing: int, monkeypatch
):
    """Also where layers have a window, which is shorter than the prompts and than a turn."""
    model, _ = tiny_model(kind=kind, sharing=sharing)
    model.set_attn_implementation(attention)
    sampler = LocalSampler(model)
    monkeypatch.setattr(rows, "READ_LENGTH", 7)  # long prompts are read in pieces
    prompts = [tuple(range(5, 5 + length)) for length in (3, 6, 9, 20)]
    for _ in range(2):
        requests = [request(each, seed=n, session=str(n)) for n, each in enumerate(prompts)]
        sampled = sample(requests, sampler)
        for prompt, each in zip(prompts, sampled, strict=True):
            assert each.logprobs == pytest.approx(alone(model, prompt, each.token_ids), abs=1e-5)
        # The next turn continues what is cached.
        pairs = zip(prompts, sampled, strict=True)
        prompts = [(*prompt, *each.token_ids, 7, 8) for prompt, each in pairs]


def test_keys_that_query_heads_share_are_not_copied(monkeypatch):
    model, _ = tiny_model(sharing=2)
    monkeypatch.setattr(sdpa_attention, "repeat_kv", lambda *_: pytest.fail("copied"))
    assert len(tokens([request((5, 6), max_new_tokens=4)], LocalSampler(model))[0]) == 4


@pytest.mark.parametrize("wanted", ["auto", "sdpa"])
def test_a_model_that_was_sampled_from_can_be_trained(wanted: str):
    model, _ = tiny_model(sharing=2)
    LocalSampler(model)
    use_attention(model, wanted)
    assert attention_of(model).implementation == TREE


def alone(model: Any, prompt: tuple[int, ...], completion: tuple[int, ...]) -> list[float]:
    """The plain path: one sequence, no cache, masks of transformers."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *completion]]), use_cache=False).logits[0]
    scores = torch.log_softmax(logits.float(), -1)
    return [float(scores[len(prompt) + n - 1, token]) for n, token in enumerate(completion)]


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_no_token_is_drawn_from_nan(temperature: float):
    requests = [request((1,), temperature=temperature)] * 2
    masked = torch.tensor([[0.0, -torch.inf, 5.0]] * 2)  # a token that the model never writes
    assert sample_tokens(masked, requests, [0.9, 0.9])[0] == [2, 2]
    masked[1, 0] = torch.nan
    with pytest.raises(EngineError, match="probabilities are nan"):
        sample_tokens(masked, requests, [0.9, 0.9])


def test_prompts_that_are_read_in_several_passes_keep_their_caches(monkeypatch):
    requests = [request((5 + i, *range(6, 12)), seed=i, max_new_tokens=6) for i in range(24)]
    together = tokens(requests)
    monkeypatch.setattr(rows, "READ_TOKENS", 40)  # four or five prompts a pass
    assert tokens(requests) == together == [tokens([each])[0] for each in requests]
    assert tokens(mixed(24)) == [tokens([each])[0] for each in mixed(24)]


def test_a_long_prompt_is_read_in_pieces_and_its_memory_is_given_back(monkeypatch):
    long = [request(tuple(range(5, 45)), seed=seed) for seed in range(4)]
    requests = [*long, *mixed(6), request(tuple(range(6, 30)), seed=9)]
    expected = tokens(requests)
    monkeypatch.setattr(rows, "READ_LENGTH", 7)
    monkeypatch.setattr(local_sampler, "KEPT_BYTES", 1000)
    sampler = LocalSampler(MODEL)
    assert tokens(requests, sampler) == expected
    assert sampler.cache.nbytes == 0
    assert sampler.prefilled == 40 + 24 + sum(len(set(r.prompt_ids)) for r in mixed(6)[::3])


def test_a_caller_that_is_cancelled_leaves_the_batch_and_changes_nothing_for_others():
    """Some of those who leave lead others with the same prompt."""
    sessions = {7: "kept"}
    requests = [
        request((5, 6, 7 + i % 3), seed=i % 5, max_new_tokens=24, session=sessions.get(i))
        for i in range(18)
    ]
    expected = tokens(requests)
    sampler = LocalSampler(MODEL)
    leaving = (0, 1, 7, 9, 14)

    async def run() -> list[Any]:
        tasks = [asyncio.create_task(sampler.sample(each)) for each in requests]
        while sampler.passes < 3:
            await asyncio.sleep(0)
        for number in leaving:
            tasks[number].cancel()
        late = asyncio.create_task(sampler.sample(request((5, 6), seed=3)))
        await asyncio.sleep(0)
        late.cancel()  # before it was given a row
        decoded = sampler.decoded
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert sampler.decoded - decoded <= 13 * 21
        assert not sampler.waiting and len(sampler.rows) == 1  # of the session, which is idle
        sampler.release("kept")
        assert not sampler.rows
        return results

    results = asyncio.run(run())
    for number, result in enumerate(results):
        if number in leaving:
            assert isinstance(result, asyncio.CancelledError)
        else:
            assert result.token_ids == expected[number]


def test_nothing_is_computed_when_all_callers_have_left():
    sampler = LocalSampler(MODEL)

    async def run() -> None:
        tasks = [
            asyncio.create_task(sampler.sample(request((5, 6), seed=i, max_new_tokens=1000)))
            for i in range(3)
        ]
        while sampler.passes < 3:
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        passes = sampler.passes
        await asyncio.sleep(0.05)
        assert sampler.passes <= passes + 1 and not sampler.rows

    asyncio.run(run())


def test_log_probabilities_are_the_models():
    prompt = (5, 6, 7)
    (sampled,) = sample([request(prompt, temperature=0.7)])
    with torch.no_grad():
        logits = MODEL(input_ids=torch.tensor([[*prompt, *sampled.token_ids]])).logits[0] / 0.7
    scores = torch.log_softmax(logits, -1)[len(prompt) - 1 : -1]
    expected = scores.gather(-1, torch.tensor(sampled.token_ids)[:, None])[:, 0]
    assert (torch.tensor(sampled.logprobs) - expected).abs().max() < 1e-5


def test_a_groups_prompt_is_read_once():
    sampler = LocalSampler(MODEL)
    sample(
        [request(tuple(range(5, 55)), seed=seed, max_new_tokens=2) for seed in range(8)], sampler
    )
    assert (sampler.prefilled, sampler.decoded, sampler.passes) == (50, 16, 2)


def multi_turn(session: bool, sampler: LocalSampler) -> list[tuple[int, ...]]:
    """Eight episodes of four turns, with world tokens in between."""

    async def episode(number: int) -> tuple[int, ...]:
        ids = (5, 6, 7, 8 + number % 2)
        name = f"episode {number}" if session else None
        for turn in range(4):
            sampled = await sampler.sample(
                request(ids, seed=100 * number + turn, max_new_tokens=5, session=name)
            )
            ids = (*ids, *sampled.token_ids, 9, 10, 11)
        sampler.release(name or "")
        return ids

    async def run() -> list[tuple[int, ...]]:
        return list(await asyncio.gather(*(episode(number) for number in range(8))))

    return asyncio.run(run())


class CountingRows(LocalSampler):
    """Counts the rows that its passes computed."""

    computed = 0

    def _forward(self, rows: Any) -> Any:
        self.computed += len(rows)
        return super()._forward(rows)


def test_siblings_are_computed_once_while_they_agree():
    """Sixteen equal greedy requests cost one row; each samples what it would sample alone."""
    greedy = [
        request((5, 6, 7), seed=i, temperature=0.0, max_new_tokens=4 + i % 2) for i in range(16)
    ]
    sampler = CountingRows(MODEL)
    assert tokens(greedy, sampler) == [tokens([each])[0] for each in greedy]
    assert sampler.computed == 5  # the longest of them, one row per pass
    diverging = [
        request((5, 6, 7), seed=i, temperature=0.1, session=f"s{i}" if i % 2 else None)
        for i in range(16)
    ]
    alone, sampler = [tokens([each])[0] for each in diverging], CountingRows(MODEL)
    assert tokens(diverging, sampler) == alone
    # They diverge, but not at once.
    assert len(set(alone)) > 2 and 8 * len(set(alone)) / 2 < sampler.computed < 8 * 16
    later = [request((5, 6, 7, *alone[i], 9), seed=50 + i, session=f"s{i}") for i in (1, 3, 5)]
    before = sampler.prefilled
    assert tokens(later, sampler) == [tokens([each])[0] for each in later]
    # A follower keeps its columns: only its last token and the new one are read.
    assert sampler.prefilled - before == 2 * 3


def test_sessions_change_no_token_and_save_reading():
    with_sessions, without_sessions = LocalSampler(MODEL), LocalSampler(MODEL)
    crowded = LocalSampler(MODEL, max_rows=3)
    expected = multi_turn(False, without_sessions)
    assert multi_turn(True, with_sessions) == expected
    assert multi_turn(True, crowded) == expected  # sessions are evicted and read again
    # Two prompts; then, per turn, the last token and three of the world's.
    assert with_sessions.prefilled == 2 * 4 + 8 * 3 * 4
    assert with_sessions.prefilled < min(crowded.prefilled, without_sessions.prefilled)
    assert with_sessions.rows == [] and with_sessions.sessions == {}


def test_only_allowed_tokens_are_sampled_and_stops_stop():
    samples = sample(
        [request((5, 6), seed=seed, allowed_ids=(20, 21), max_new_tokens=20) for seed in range(8)]
    )
    assert {token for sampled in samples for token in sampled.token_ids} == {20, 21}
    stopped = sample(
        [
            request((5, 6), seed=s, allowed_ids=(20, 21), stop_ids=(21,), max_new_tokens=20)
            for s in range(8)
        ]
    )
    for sampled in stopped:
        assert sampled.stopped and sampled.token_ids[-1] == 21
        assert 21 not in sampled.token_ids[:-1]


def test_temperature_zero_is_greedy():
    samples = sample([request((5, 6), seed=seed, temperature=0.0) for seed in range(3)])
    assert len({sampled.token_ids for sampled in samples}) == 1


def test_samples_follow_the_models_distribution():
    with torch.no_grad():
        expected = torch.softmax(MODEL(input_ids=torch.tensor([[5, 6]])).logits[0, -1], -1)
    samples = sample([request((5, 6), seed=seed, max_new_tokens=1) for seed in range(2000)])
    first = torch.tensor([sampled.token_ids[0] for sampled in samples])
    shares = torch.bincount(first, minlength=len(expected)) / 2000
    top = int(expected.argmax())
    deviation = float((expected[top] * (1 - expected[top]) / 2000).sqrt())
    assert abs(float(shares[top] - expected[top])) < 4 * deviation
    assert float((shares - expected).abs().sum()) < 0.25


class Broken(torch.nn.Module):
    """Reads one batch, then fails."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = MODEL
        self.config = MODEL.config
        self.calls = 0

    def forward(self, **options: Any) -> Any:
        self.calls += 1
        if self.calls == 2:
            raise RuntimeError("out of memory")
        return self.inner(**options)


def test_a_failing_model_is_an_error_and_not_a_hang():
    sampler = LocalSampler(Broken())
    with pytest.raises(RuntimeError, match="out of memory"):
        sample([request((5, 6), seed=seed) for seed in range(4)], sampler)
    (sampled,) = sample([request((5, 6))], sampler)  # the sampler can be used again
    assert len(sampled.token_ids) == 8


def test_every_pass_is_a_heartbeat(monkeypatch):
    monkeypatch.setattr(rows, "READ_TOKENS", 4)
    beats: list[int] = []
    sampler = LocalSampler(MODEL, beat=lambda: beats.append(1))
    prompts = [(5 + i, 6, 7, 8) for i in range(6)]  # read one after the other
    sample([request(prompt, max_new_tokens=5) for prompt in prompts], sampler)
    assert len(beats) == sampler.passes >= 6 + 4


def test_two_requests_of_one_session_at_once_are_both_answered():
    requests = [request((5, 6, 7), seed=seed, session="one") for seed in (1, 2)]
    alone = tokens([request((5, 6, 7), seed=seed) for seed in (1, 2)])
    sampler = LocalSampler(MODEL)

    async def run() -> list[Sampled]:
        both = asyncio.gather(*(sampler.sample(each) for each in requests))
        return list(await asyncio.wait_for(both, 60))

    assert [each.token_ids for each in asyncio.run(run())] == alone
    sampler.release("one")
    assert not sampler.rows

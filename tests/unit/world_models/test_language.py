"""A learned world model: what it samples, parses, sums up and caches."""

import asyncio
import math

import pytest

pytest.importorskip("transformers", reason="needs the extra: pip install 'terrella[train]'")
from terrella.codecs.interleaved import InterleavedCodec
from terrella.codecs.outcome import OutcomeCodec
from terrella.core.predictive import Query
from terrella.core.tokens import Sampled, TokenRequest
from terrella.core.types import Situation, Text
from terrella.models.characters import character_tokenizer
from terrella.world_models.language import LearnedWorldModel

TOKENIZER = character_tokenizer(("Up", "Down"))
CODEC = InterleavedCodec(TOKENIZER)
WORDS = OutcomeCodec(TOKENIZER, CODEC.stop_ids)


@pytest.mark.parametrize(
    "outcome", [(0.0, False, False), (-0.1, False, False), (10.9, True, True), (0.0, True, False)]
)
def test_outcomes_are_read_back(outcome):
    assert WORDS.read(WORDS.answer(*outcome)) == outcome


@pytest.mark.parametrize("text", ["", ">", "1", "one!", "nan>", "inf!", "1!!"])
def test_text_that_is_not_an_outcome_is_not_read(text):
    ids = (*TOKENIZER.encode(text, add_special_tokens=False), *CODEC.stop_ids)
    assert WORDS.read(ids) is None and WORDS.read(WORDS.answer(1, False, False)[:-1]) is None


class Scripted:
    """Answers by seed; the outcome is sampled with the observation in the prompt."""

    def __init__(self, answers, outcome=(0.5, True, False)):
        self.answers, self.outcome, self.requests = answers, outcome, []

    async def sample(self, request):
        self.requests.append(request)
        if request.max_new_tokens == 16:
            ids = WORDS.answer(*self.outcome)
            return Sampled(token_ids=ids, logprobs=(0.0,) * len(ids), stopped=True)
        text, chance = self.answers[request.seed % len(self.answers)]
        ids = tuple(TOKENIZER.encode(text, add_special_tokens=False)) + (
            CODEC.stop_ids if text else ()
        )
        logprobs = (math.log(chance), *(0.0,) * (len(ids) - 1))
        return Sampled(token_ids=ids, logprobs=logprobs, stopped=bool(text))

    def release(self, session):
        """Nothing is kept."""


def query(text="ab"):
    situation = Situation(
        instruction="", observation=Text(text), actions=(), history=(), steps_left=1
    )
    return Query(situation, "Up")


def test_different_answers_keep_their_own_probability():
    sampler = Scripted([("ac", 0.6), ("ad", 0.3), ("ac", 0.6), ("", 0.1)])
    model = LearnedWorldModel(sampler, CODEC, TOKENIZER, samples=4)
    (distribution,) = model.predict([query()])
    assert [p.observation for p in distribution.predictions] == [Text("ac"), Text("ad")]
    assert (
        list(distribution.chances) == pytest.approx([0.6, 0.3])
        and distribution.counts == (2, 1)
        and distribution.unreadable == 1
    )
    assert distribution.missing == pytest.approx(0.1) and distribution.disagreement == 0.5
    best = distribution.predictions[0]
    assert (best.reward, best.terminated, best.success) == (
        0.5,
        True,
        False,
    ) and best.risk == pytest.approx(0.4)


def test_the_first_answer_is_greedy_and_all_share_one_prompt():
    sampler = Scripted([("ac", 1.0)])
    LearnedWorldModel(sampler, CODEC, TOKENIZER, samples=3).predict([query()])
    first, *rest = [request for request in sampler.requests if request.max_new_tokens != 16]
    assert first.temperature == 0.0 and {r.temperature for r in rest} == {1.0}
    assert (
        len({r.prompt_ids for r in (first, *rest)}) == 1
        and len({r.seed for r in (first, *rest)}) == 3
    )


def test_a_query_is_sampled_once_and_then_cached():
    model = LearnedWorldModel(Scripted([("ac", 0.9)]), CODEC, TOKENIZER, samples=2)
    first = model.predict([query(), query(), query("cd")])
    assert model.sampled_queries == 2
    assert model.predict([query()])[0] is first[0] and model.sampled_queries == 2


def test_a_cache_limit_of_zero_turns_the_cache_off_and_a_full_cache_is_cleared():
    sampler = Scripted([("ac", 0.9)])
    uncached = LearnedWorldModel(sampler, CODEC, TOKENIZER, samples=2, cache_limit=0)
    for _ in range(2):
        uncached.predict([query()])
    assert uncached.sampled_queries == 2 and not uncached.cache
    small = LearnedWorldModel(sampler, CODEC, TOKENIZER, samples=2, cache_limit=1)
    for text in ("ab", "ab", "cd", "ab"):
        small.predict([query(text)])
    assert small.sampled_queries == 3 and len(small.cache) == 1


def test_a_reply_that_cannot_be_read_leaves_no_prediction():
    model = LearnedWorldModel(Scripted([("", 0.9)]), CODEC, TOKENIZER, samples=2)
    (distribution,) = model.predict([query()])
    assert distribution.predictions == () and distribution.missing == 1.0


def test_it_answers_inside_a_running_event_loop():
    model = LearnedWorldModel(Scripted([("ac", 0.9)]), CODEC, TOKENIZER, samples=2)

    async def world_step():
        return model.predict([query()])

    (distribution,) = asyncio.run(world_step())
    assert distribution.predictions[0].observation == Text("ac")


def test_the_async_path_gives_the_same_predictions_and_completes_text():
    model = LearnedWorldModel(Scripted([("ac", 0.9)]), CODEC, TOKENIZER, samples=2)
    request = TokenRequest(prompt_ids=(1,), max_new_tokens=4, seed=0)

    async def both():
        return await model.predict_async([query()]), await model.complete(request)

    distributions, completion = asyncio.run(both())
    assert distributions == model.predict([query()])
    assert completion.token_ids[-1] in CODEC.stop_ids

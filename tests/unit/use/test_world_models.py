"""A learned model behind `WorldModel.predict`: what it samples, reads, adds up and keeps."""

import asyncio
import math

import pytest

pytest.importorskip("transformers", reason="needs the extra: pip install 'terrella[train]'")
from terrella.codecs.interleaved import InterleavedCodec
from terrella.codecs.outcome import OutcomeWords
from terrella.core.protocols import Sampled, WorldModel
from terrella.core.types import Situation, Text
from terrella.models.characters import character_tokenizer
from terrella.trust.beliefs import Question
from terrella.use.world_models import LearnedWorldModel

TOKENIZER = character_tokenizer(("Up", "Down"))
CODEC = InterleavedCodec(TOKENIZER)
WORDS = OutcomeWords(TOKENIZER, CODEC.stop_ids)


@pytest.mark.parametrize("outcome", [(0.0, False, False), (-0.1, False, False), (10.9, True, True), (0.0, True, False)])
def test_outcomes_are_read_back(outcome):
    assert WORDS.read(WORDS.answer(*outcome)) == outcome


@pytest.mark.parametrize("text", ["", ">", "1", "one!", "nan>", "inf!", "1!!"])
def test_what_is_no_outcome_is_not_read(text):
    ids = (*TOKENIZER.encode(text, add_special_tokens=False), *CODEC.stop_ids)
    assert WORDS.read(ids) is None and WORDS.read(WORDS.answer(1, False, False)[:-1]) is None


class Scripted:
    """Answers by seed; the outcome span is asked for with the observation in the prompt."""

    def __init__(self, answers, outcome=(0.5, True, False)):
        self.answers, self.outcome, self.requests = answers, outcome, []

    async def sample(self, request):
        self.requests.append(request)
        if request.max_new_tokens == 16:
            ids = WORDS.answer(*self.outcome)
            return Sampled(token_ids=ids, logprobs=(0.0,) * len(ids), stopped=True)
        text, chance = self.answers[request.seed % len(self.answers)]
        ids = tuple(TOKENIZER.encode(text, add_special_tokens=False)) + (CODEC.stop_ids if text else ())
        logprobs = (math.log(chance), *(0.0,) * (len(ids) - 1))
        return Sampled(token_ids=ids, logprobs=logprobs, stopped=bool(text))

    def release(self, session):
        """Nothing is kept."""


def question(text="ab"):
    situation = Situation(instruction="", observation=Text(text), actions=(), history=(), steps_left=1)
    return Question(situation, "Up")


def test_different_answers_keep_their_own_probability():
    sampler = Scripted([("ac", 0.6), ("ad", 0.3), ("ac", 0.6), ("", 0.1)])
    model = LearnedWorldModel(sampler, CODEC, TOKENIZER, samples=4)
    (belief,) = model.believe([question()])
    assert [p.observation for p in belief.predictions] == [Text("ac"), Text("ad")]
    assert list(belief.chances) == pytest.approx([0.6, 0.3]) and belief.counts == (2, 1) and belief.unreadable == 1
    assert belief.missing == pytest.approx(0.1) and belief.disagreement == 0.5
    best = belief.predictions[0]
    assert (best.reward, best.terminated, best.success) == (0.5, True, False) and best.risk == pytest.approx(0.4)


def test_the_first_answer_is_greedy_and_all_share_one_prompt():
    sampler = Scripted([("ac", 1.0)])
    LearnedWorldModel(sampler, CODEC, TOKENIZER, samples=3).believe([question()])
    first, *rest = [request for request in sampler.requests if request.max_new_tokens != 16]
    assert first.temperature == 0.0 and {r.temperature for r in rest} == {1.0}
    assert len({r.prompt_ids for r in (first, *rest)}) == 1 and len({r.seed for r in (first, *rest)}) == 3


def test_a_question_is_asked_once_and_answered_the_same():
    model = LearnedWorldModel(Scripted([("ac", 0.9)]), CODEC, TOKENIZER, samples=2)
    first = model.believe([question(), question(), question("cd")])
    assert model.asked == 2 and model.believe([question()])[0] is first[0] and model.asked == 2


def test_predict_says_the_likeliest_and_a_babbler_is_a_full_risk():
    model = LearnedWorldModel(Scripted([("ac", 0.9)]), CODEC, TOKENIZER, samples=2)
    assert isinstance(model, WorldModel) and model.predict((), Text("ab"), "Up").observation == Text("ac")
    babbling = LearnedWorldModel(Scripted([("", 0.9)]), CODEC, TOKENIZER, samples=2)
    assert babbling.predict((), Text("ab"), "Up").risk == 1.0


def test_it_answers_inside_a_running_event_loop():
    model = LearnedWorldModel(Scripted([("ac", 0.9)]), CODEC, TOKENIZER, samples=2)

    async def world_step():
        return model.predict((), Text("ab"), "Up")

    assert asyncio.run(world_step()).observation == Text("ac")

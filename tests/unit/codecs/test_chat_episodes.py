"""1,200 multi-turn episodes over six chat templates: what was sampled is what is trained."""

import functools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")
from tests.support.chat_templates import SPECIALS, TEMPLATES, chat_tokenizer

from terrella.algos.episode_batch import Score, token_counts
from terrella.codecs.chat_tokens import ChatCodec
from terrella.core.tokens import Sampled
from terrella.engines.configs import RlvrConfig
from terrella.engines.trl.packs import pack_episodes
from terrella.engines.trl.rlvr_batch import ScoredEpisode, episode_facts, train_example
from terrella.rollout.rollout import Rollout
from terrella.rollout.tasks import AgentTasks
from terrella.worlds.counter import Counter

EPISODES = 200
"""By template: 1,200 in all."""


def script(rng: np.random.Generator, name: str, opened: bool) -> tuple[str, str]:
    """A reply, and the action that it means ("" for none)."""
    end, begin = SPECIALS[name][-1], "" if opened else "<think>"
    action, other = (("up", "down"), ("down", "up"))[rng.integers(2)]
    answer, quoted = f"<answer> {action} </answer>", f"<answer> {other} </answer>"
    replies = [
        (f"{begin}I go.</think>{answer}", action),
        (f"{begin}\nnot {quoted}, as </think> says.\n</think>\n\n{answer}", action),
        (f"{begin}{quoted} or", ""),  # an unfinished thought
        (f"{begin}a</think>{quoted}<think>b</think>{answer}", action),
        (f"{begin}a</think>{answer}<think>b", ""),
        (f"{begin}a</think>{quoted}{answer}<answer>", action),
        (f"{begin}√\ufffd</think>  {end[0]}{end[1:]} The final answer is: {action}", action),
        (f'{begin}</think>{{"answer": "{action}"}}', action),
        (answer, "" if opened else action),
        ("", ""),
    ]
    return replies[rng.integers(len(replies))]


class Scripted:
    """Writes scripted replies in odd token splits; some are cut off, some hold special tokens."""

    def __init__(self, codec: ChatCodec, name: str) -> None:
        self.codec, self.name = codec, name
        self.encode = functools.cache(
            functools.partial(codec.tokenizer.encode, add_special_tokens=False)
        )
        self.written: dict[str, list[tuple[int, ...]]] = {}
        self.prompts: dict[str, list[tuple[int, ...]]] = {}
        self.meant: dict[str, list[str]] = {}

    async def sample(self, request: Any) -> Sampled:
        rng = np.random.default_rng(request.seed)
        text, meant = script(rng, self.name, self.codec.opens_thought)
        # Character by character or as the tokenizer would, and with special tokens as they are.
        pieces = list(text) if rng.random() < 0.3 else [text]
        ids = [token for piece in pieces for token in self.encode(piece)]
        ids = [token for token in ids if token not in request.stop_ids]
        if rng.random() < 0.7 or not ids:
            ids.append(request.stop_ids[0])
        if len(ids) > request.max_new_tokens:
            ids, meant = ids[: request.max_new_tokens], "?"
        session = request.session.partition("#")[0]
        self.written.setdefault(session, []).append(tuple(ids))
        self.prompts.setdefault(session, []).append(request.prompt_ids)
        self.meant.setdefault(session, []).append(meant)
        logprobs = tuple(float(value) for value in -rng.random(len(ids)))
        return Sampled(token_ids=tuple(ids), logprobs=logprobs, stopped=ids[-1] in request.stop_ids)

    def release(self, session: str) -> None:
        """Nothing to release."""


@pytest.mark.parametrize("name", TEMPLATES)
def test_sampled_tokens_are_trained_tokens(name):
    codec = ChatCodec(chat_tokenizer(name), thinking="on")
    config = Rollout.Config(world=Counter.Config(), max_turns=5, turn_tokens=90)
    tasks, sampler = AgentTasks(), Scripted(codec, name)
    with Rollout(config, codec) as rollout:
        episodes = rollout.run(
            sampler, [tasks(index) for index in range(EPISODES)], group_size=1, seed=3
        )
    assert sum(len(episode.turn_ends) for episode in episodes) > 3 * EPISODES
    for index, episode in enumerate(episodes):
        session = f"{tasks(index).seed}/{tasks(index).noise_seed}/0"
        sampled = [token for reply in sampler.written[session] for token in reply]
        assert trained_tokens(episode) == sampled
        whole = episode.prompt_ids + episode.completion_ids
        for prompt in sampler.prompts[session]:
            assert whole[: len(prompt)] == prompt
        for step, meant in zip(episode.record.transitions, sampler.meant[session], strict=True):
            assert meant in ("?", step.action)


def trained_tokens(episode) -> list[int]:
    """The targets of the pack that the loss reads, each after what the sampler saw before it."""
    rules = RlvrConfig()
    facts = episode_facts(episode, rules.reward)
    example = train_example(
        ScoredEpisode(episode, Score(1.0)), token_counts([facts.model_mask]), rules, longest=450
    )
    (pack,) = pack_episodes([example], max_tokens=100_000)
    whole = [*episode.prompt_ids, *episode.completion_ids]
    assert pack.ids_N.tolist() == whole[:-1]
    targets = pack.targets_M.tolist()
    assert targets == [whole[index + 1] for index in pack.predictors_M.tolist()]
    sampled = [
        value for value, own in zip(episode.logprobs, episode.model_mask, strict=True) if own
    ]
    assert pack.columns["sampled"].tolist() == pytest.approx(sampled)
    return targets

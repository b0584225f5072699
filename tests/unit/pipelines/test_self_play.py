"""Self-play rows.

What was sampled is what is trained, true states go in, and masks cover what they say.
"""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

transformers = pytest.importorskip("transformers")
pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
import torch
from tests.support.scripted_sampler import ScriptedSampler
from tests.unit.codecs.test_chat_tokens import small_tokenizer

from terrella.algos.episode_batch import Score, TokenCounts
from terrella.algos.losses import LossInputs, policy_loss
from terrella.codecs.chat_tokens import ChatCodec
from terrella.codecs.interleaved import InterleavedCodec
from terrella.codecs.tagged import TAG_TOKENS, TaggedCodec, tagged_reply_form
from terrella.core.types import Split, show_text
from terrella.engines.configs import RlvrConfig
from terrella.engines.trl.packs import pack_episodes, read_pack, target_logprobs
from terrella.engines.trl.rlvr_batch import ScoredEpisode, train_example
from terrella.models.characters import character_tokenizer
from terrella.pipelines.spa.self_play import SelfPlay, collect_examples, worth_keeping
from terrella.pipelines.spa.tagged_examples import (
    Script,
    played_example,
    random_coordinates,
    scripted_examples,
    turn_rng,
)
from terrella.rollout.reward_shaping import RewardShaping, shaped_rewards
from terrella.rollout.rollout import Rollout
from terrella.rollout.tasks import AgentTasks
from terrella.rollout.turns import turns
from terrella.worlds.frozen_lake import FrozenLake

WORLD = FrozenLake.Config(size=3, max_steps=6)
ACTIONS = ("Left", "Down", "Right", "Up")
LIMITS = {"max_turns": 3, "max_actions": 2, "turn_tokens": 400}


def tagged(template: str | None = None, form="worldmodel"):
    if template is None:
        return TaggedCodec(
            InterleavedCodec(character_tokenizer((*ACTIONS, *TAG_TOKENS))), form=form
        )
    chat = ChatCodec(small_tokenizer(template), max_actions=2, form=tagged_reply_form(form))
    return TaggedCodec(chat, form=form, blank="\n")


def random_reply(codec):
    """Actions of its own, states made up, now and then no tags or no end.

    Characters as tokens now and then.
    """

    def reply(rng):
        actions = [ACTIONS[i] for i in rng.integers(4, size=int(rng.integers(1, 4)))]
        ids, _ = codec.answer(actions, ("P__\n_G_\n___", "__P\n_G_\n___"))
        choice = rng.random()
        if choice < 0.1:
            return (*codec.inner.write("hm"), codec.stop_ids[0])
        if choice < 0.2:
            return ids[:-1]  # cut off
        if choice < 0.6:  # not as the tokenizer would write it
            text = codec.inner.text(ids[:-1])
            return (
                *(token for sign in text for token in codec.inner.write(sign)),
                codec.stop_ids[0],
            )
        return ids

    return reply


def play(codec, count, group_size=2, **changes):
    rollout = Rollout(Rollout.Config(world=WORLD, **{**LIMITS, **changes}), codec)
    sampler = ScriptedSampler(random_reply(codec))
    tasks = [AgentTasks(split=Split.TRAIN, seed=0)(index) for index in range(count)]
    return rollout.run(sampler, tasks, group_size=group_size, seed=3), sampler, tasks


@pytest.mark.parametrize("template", ["chatml", "llama3", "mistral"])
def test_what_was_sampled_is_what_is_trained_token_for_token(template):
    """335 multi-turn episodes per template, more than 1,000 in all, through rollout and packs."""
    codec = tagged(template)
    episodes, sampler, tasks = play(codec, 67, group_size=5)
    assert len(episodes) == 335 and sum(len(episode.turn_ends) for episode in episodes) > 2 * len(
        episodes
    )
    rows, sampled = [], []
    for number, episode in enumerate(episodes):
        task, member = tasks[number // 5], number % 5
        replies = sampler.sampled[f"{task.seed}/{task.noise_seed}/{member}"]
        mine = [
            t
            for t, written in zip(episode.completion_ids, episode.model_mask, strict=True)
            if written
        ]
        assert mine == [token for reply in replies for token in reply]
        rows.append(
            train_example(
                ScoredEpisode(episode, Score(1.0)), TokenCounts(1, 1), RlvrConfig(), longest=1
            )
        )
        sampled.append(mine)
    targets = torch.cat([pack.targets_M for pack in pack_episodes(rows, max_tokens=2048)]).tolist()
    assert targets == [token for mine in sampled for token in mine]


class Table(torch.nn.Module):
    """A model whose logits are its parameters, place by place.

    Their gradient shows which places were taught.
    """

    def __init__(self, length, vocabulary):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(1, length, vocabulary))
        self.config = SimpleNamespace(_attn_implementation="sdpa")

    def forward(self, *, input_ids, logits_to_keep, **_):
        return transformers.modeling_outputs.CausalLMOutput(logits=self.table[:, logits_to_keep])


def taught_places(episode, **settings):
    config = RlvrConfig(**settings)
    row = train_example(
        ScoredEpisode(episode, Score(1.0)), TokenCounts(1, 10, 10), config, longest=1
    )
    (pack,) = pack_episodes([row], max_tokens=10_000)
    model = Table(len(pack.ids_N), 500)
    logprobs, _ = target_logprobs(read_pack(model, pack), pack)
    inputs = LossInputs(
        logprobs=logprobs,
        old_logprobs=logprobs.detach(),
        advantages=pack.columns["advantage"],
        weights=pack.columns["weight"] * (pack.columns.get("world", torch.zeros(1)) == 0),
    )
    policy_loss(inputs, clip_low=0.2, clip_high=0.2, kl=0.0)[0].backward()
    first = len(episode.prompt_ids) - 1  # the place that predicts the first token of the completion
    return model.table.grad[0, first:].abs().sum(-1) > 0


@pytest.mark.parametrize("settings", [{}, {"world_loss": 0.5}])
def test_the_worlds_tokens_carry_no_policy_gradient(settings):
    episodes, _, _ = play(tagged("chatml"), 4)
    assert any(not all(episode.model_mask) for episode in episodes)
    for episode in episodes:
        assert taught_places(episode, **settings).tolist() == list(episode.model_mask)


def test_true_states_go_in_and_nothing_else_changes():
    codec = tagged()
    episodes, _, _ = play(codec, 20)
    options = {"codec": codec, "max_actions": 2}
    for episode in (e for e in episodes if worth_keeping(e, codec, "well_formed", max_actions=2)):
        losses = ("reply", "states", "no_states")
        rows = {
            loss: played_example(episode, **options, states="true", loss=loss) for loss in losses
        }
        own = played_example(episode, **options, states="believed", loss="no_states")
        outside = [
            t
            for t, m in zip(rows["no_states"].completion_ids, rows["no_states"].mask, strict=True)
            if m
        ]
        assert outside == [t for t, m in zip(own.completion_ids, own.mask, strict=True) if m]
        assert own.completion_ids == list(episode.completion_ids)
        reply, states, rest = (torch.tensor(rows[loss].mask) for loss in losses)
        assert (
            torch.equal(reply, states | rest)
            and not (states & rest).any()
            and states.any()
            and rest.any()
        )
        text = codec.inner.text(rows["states"].completion_ids)
        for turn in turns(episode, codec, max_actions=2):
            assert (
                f"<observation>{turn.before}</observation><prediction>{turn.after}</prediction>"
                in text
            )


def test_turns_know_what_each_reply_did():
    codec = tagged("llama3")
    episodes, _, _ = play(codec, 10)
    for episode in episodes:
        played = turns(episode, codec, max_actions=2)
        assert [step for turn in played for step in turn.steps] == list(episode.record.transitions)
        assert played[0].before == show_text(episode.record.first)
        assert all(first.after == second.before for first, second in itertools.pairwise(played))


def test_filters_and_sources():
    codec = tagged()
    rollout = Rollout(Rollout.Config(world=WORLD, **LIMITS), codec)
    sampler = ScriptedSampler(random_reply(codec))
    kept = {
        keep: collect_examples(
            SelfPlay.Config(trajectories=40, per_instance=4, keep=keep),
            rollout,
            sampler,
            codec,
            seed=0,
        )
        for keep in ("all", "well_formed", "success")
    }
    assert (
        len(kept["all"].examples)
        == 40
        > len(kept["well_formed"].examples)
        > len(kept["success"].examples)
    )
    assert (
        kept["all"].env_steps == kept["success"].env_steps > 40
    )  # what was thrown away was paid for, too
    scripted = collect_examples(
        SelfPlay.Config(trajectories=7, actions="random"), rollout, sampler, codec, seed=0
    )
    assert len(scripted.examples) == 7 and 7 <= scripted.env_steps <= 7 * WORLD.max_steps


def test_scripted_rows_tell_the_truth_or_make_it_up():
    codec = tagged()
    for truthful in (True, False):
        script = Script(max_turns=3, max_actions=2, truthful=truthful)
        told = 0
        for row in scripted_examples(WORLD, codec, script, count=20, seed=0).examples:
            seen = codec.inner.text(row.prompt_ids).removeprefix("<obs>").split("<end>")[0]
            observed, predicted = codec.read_states(row.completion_ids)
            told += observed == seen
            assert truthful or observed == predicted
        assert told == 20 if truthful else told < 5


def test_random_coordinates_keep_the_words():
    text = "Size: 3x3\nPlayer: (0,1)\nHoles: (2,2) (1,0)"
    drawn = {random_coordinates(text, np.random.default_rng(seed)) for seed in range(20)}
    assert len(drawn) > 10 and all(
        one.startswith("Size: 3x3\nPlayer: (") and len(one) == len(text) for one in drawn
    )


def test_two_turns_of_any_episodes_share_no_random_coordinates():
    codec = tagged()
    episodes, _, _ = play(codec, 6)
    drawn = [
        tuple(turn_rng(episode, number).integers(10, size=12))
        for episode in episodes  # two of each instance, with noise of their own
        for number, _ in enumerate(turns(episode, codec, max_actions=2))
    ]
    assert len(drawn) > 12 and len(set(drawn)) == len(drawn)


def test_every_episode_has_random_coordinates_of_its_own():
    world = WORLD.replace(view="coordinates")
    built = world.build()
    built.reset(seed=0)
    words = (*built.vocabulary(), *TAG_TOKENS)
    codec = TaggedCodec(InterleavedCodec(character_tokenizer(words)), form="worldmodel")
    reply = codec.answer(("Up",), ("Player: (0,1)", "Player: (0,1)"))[0]
    rollout = Rollout(Rollout.Config(world=world, **{**LIMITS, "max_turns": 1}), codec)
    tasks = [AgentTasks(split=Split.TRAIN, seed=0)(index) for index in range(20)]
    episodes = rollout.run(ScriptedSampler(lambda rng: reply), tasks, group_size=1, seed=0)
    options = {"max_actions": 1, "states": "random_coordinates", "loss": "reply"}
    rows = [played_example(episode, codec, **options) for episode in episodes]
    again = [played_example(episode, codec, **options) for episode in episodes]
    assert [row.completion_ids for row in rows] == [row.completion_ids for row in again]
    first = {codec.read_states(row.completion_ids)[0] for row in rows}
    assert len(first) > 10  # of instances of one size: what else is there to tell them apart


def test_fines_and_prices_are_paid_to_the_turn_that_earned_them():
    codec = tagged()
    episodes, _, _ = play(codec, 20)
    for episode in episodes:
        played = turns(episode, codec, max_actions=2)
        broken = [not codec.well_formed(turn.reply) for turn in played]
        fined = shaped_rewards(
            episode, codec, RewardShaping.Config(success=0.0, turn_fine=0.1), max_actions=2
        )
        assert fined == pytest.approx(
            [a - 0.1 * b for a, b in zip(episode.turn_rewards, broken, strict=True)]
        )
        once = shaped_rewards(episode, codec, RewardShaping.Config(episode_fine=0.5), max_actions=2)
        assert sum(once) == pytest.approx(episode.outcome.value - 0.5 * any(broken))


def test_true_states_earn_their_price_and_the_verdict_stays_the_worlds():
    codec = tagged()

    class Honest(RewardShaping):
        """Puts the true states into the replies first: then they must earn the whole bonus."""

        def shape(self, episode, codec, *, max_actions):
            honest = played_example(
                episode, codec, max_actions=max_actions, states="true", loss="reply"
            )
            if len(honest.completion_ids) == len(episode.completion_ids):
                episode = dataclasses.replace(episode, completion_ids=tuple(honest.completion_ids))
            return super().shape(episode, codec, max_actions=max_actions)

    shaping = Honest(RewardShaping.Config(observation=0.5, prediction=0.5))
    rollout = Rollout(Rollout.Config(world=WORLD, **LIMITS), codec, shaping=shaping)
    reply = codec.answer(("Up",), ("P__\n_G_\n___", "__P\n_G_\n___"))[0]
    tasks = [AgentTasks(split=Split.TRAIN, seed=0)(index) for index in range(5)]
    for episode in rollout.run(ScriptedSampler(lambda rng: reply), tasks, group_size=1, seed=0):
        assert sum(episode.turn_rewards) == pytest.approx(1.0 + episode.outcome.value)

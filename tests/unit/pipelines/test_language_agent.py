"""WebRL's models on the engine: losses against pure functions, two heads, writing and scoring."""

import contextlib
import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything imports trl
import torch
from tests.support.tiny_learner import tiny_learner

from terrella.algos.webrl import ACTOR_LOSSES, ScoredSteps
from terrella.algos.webrl_config import WebRlLossConfig, WebRlUpdateConfig
from terrella.codecs.web_prompt import WebCodecConfig
from terrella.core.tokens import AdamParams, LearnerOutput, TrainExample
from terrella.core.types import Split
from terrella.data.attempts import Attempt, Choice, PracticeTask
from terrella.data.train_steps import train_steps
from terrella.pipelines.webrl.language_agent import (
    LanguageActor,
    LanguageAgent,
    LanguageAgentConfig,
    LanguageCritic,
    LanguageJudge,
)
from terrella.pipelines.webrl.language_player import ScoringPlayer, WritingPlayer
from terrella.pipelines.webrl.updates import (
    action_probs,
    critic_columns,
    critic_values,
    cross_fitted_values,
    group_columns,
    imitate,
    update_actor,
    update_critic,
)
from terrella.rollout.batch_rollout import BatchRollout
from terrella.rollout.env_pool import EnvPool
from terrella.worlds.counter import Counter

ADAM = AdamParams(learning_rate=1e-2)
FAMILIES = {"four": Counter.Config(goals=4)}


def attempt(seed, *, success, actions=("up", "down", "up")):
    choices = tuple(
        Choice(
            observation=f"at {seed}, step {n}",
            offered=("up", "down"),
            taken=("up", "down").index(action) if action in ("up", "down") else -1,
            logprob=0.0,
            steps_left=5 - n,
            written="" if action in ("up", "down") else action,
        )
        for n, action in enumerate(actions)
    )
    return Attempt(
        task=PracticeTask(family="four", seed=seed),
        instruction="Count.",
        choices=choices,
        last="won" if success else "lost",
        success=success,
        stop="terminated",
    )


STEPS = [
    step
    for n in range(4)
    for step in train_steps(attempt(n, success=n % 2 == 0), float(n % 2 == 0), n / 2 - 0.75)
]


def codec(tokenizer):
    return WebCodecConfig(form="compact", language="plain").make(tokenizer)


def actor(**options):
    learner = tiny_learner(pack_tokens=64, **options)
    return LanguageActor(learner, codec(learner.tokenizer))


def critic(**options):
    learner = tiny_learner(head="value", value_heads=2, **options)
    return LanguageCritic(learner, codec(learner.tokenizer), heads=2)


def by_hand(model, made, steps):
    """The sum of log-probabilities of each action, from the plain model, one sequence at a time."""
    totals = []
    for step in steps:
        prompt = made.codec.prompt(step.input)
        reply = made.codec.reply(step.action)
        logits = model(torch.tensor([[*prompt, *reply]])).logits[0, len(prompt) - 1 : -1]
        chosen = logits.log_softmax(-1).gather(1, torch.tensor(reply)[:, None])
        totals.append(chosen.sum())
    return torch.stack(totals)


@pytest.mark.parametrize("loss", ACTOR_LOSSES)
def test_an_update_is_the_pure_function_of_the_same_rows(loss):
    """Loss and gradient norm of a learner against autograd through the plain model."""
    made, valued = actor(), critic()
    references = [tuple(value - 0.1 for value in row) for row in made.logprobs(STEPS)]
    columns = critic_columns(references, critic_values(valued, STEPS), STEPS)
    read = [{**each, "weight": 1 / len(STEPS)} for each in columns]
    output = made.forward_backward(STEPS, read, loss, beta=0.3)
    model = made.learner.policy
    norm = math.sqrt(sum(float((p.grad**2).sum()) for p in model.parameters()))
    model.zero_grad()
    steps = ScoredSteps(
        logprobs=by_hand(model, made, STEPS),
        reference=torch.tensor([sum(row) for row in references]),
        tokens=torch.tensor([len(row) for row in references]),
        **{
            name: torch.tensor([each[name] for each in columns])
            for name in ("value", "next_value", "outcome", "steps_to_go")
        },
    )
    wanted, _ = ACTOR_LOSSES[loss](steps, WebRlLossConfig(beta=0.3))
    wanted.backward()
    by_autograd = math.sqrt(sum(float((p.grad**2).sum()) for p in model.parameters()))
    assert output.loss == pytest.approx(float(wanted.detach()), abs=1e-5)
    assert norm == pytest.approx(by_autograd, rel=1e-4) and norm > 0


def test_a_phase_moves_actions_of_successes_up_and_keeps_to_its_numbers():
    config = WebRlUpdateConfig(
        batch=6, epochs=3, critic_epochs=12, learning_rate=3e-3, critic_learning_rate=1e-2
    )
    made, valued = actor(), critic()
    fitted = update_critic(valued, STEPS, config, np.random.default_rng(0))
    assert fitted.last_loss < fitted.first_loss / 2
    values = valued.values([step.input for step in STEPS])
    won = [value for value, step in zip(values, STEPS, strict=True) if step.outcome]
    assert min(won) > max(set(values) - set(won))
    before = action_probs(made, STEPS)
    references = made.logprobs(STEPS)
    columns = group_columns(references, references, STEPS)
    assert all(each["old"] == row for each, row in zip(columns, references, strict=True))
    metrics = update_actor(
        made,
        STEPS,
        critic_columns(references, critic_values(valued, STEPS), STEPS),
        "filtered_bc",
        config,
        np.random.default_rng(0),
    )
    after = action_probs(made, STEPS)
    assert metrics.moved > 0 and metrics.loss is not None
    assert all(
        new > old for new, old, step in zip(after, before, STEPS, strict=True) if step.outcome
    )


def test_imitation_with_doubt_keeps_other_actions_possible():
    shown = [step for n in range(4) for step in train_steps(attempt(n, success=True), 1.0)][::3]
    chances = {}
    for doubt in (0.0, 0.4):
        made = actor()
        config = WebRlUpdateConfig(batch=4, doubt=doubt, imitation_learning_rate=1e-2)
        imitate(made, shown, 15, config, np.random.default_rng(0))
        other = [train_steps(attempt(n, success=True, actions=("down",)), 1.0)[0] for n in range(4)]
        chances[doubt] = min(action_probs(made, other))
        assert min(action_probs(made, shown)) > 0.5
    assert chances[0.4] > 4 * chances[0.0]


def test_the_heads_of_a_critic_differ_and_the_lower_one_counts(tmp_path):
    made = critic(seed=3)
    shown = [step.input for step in STEPS]
    prompt = made.codec.prompt(shown[0])
    both = [
        TrainExample(prompt_ids=prompt, completion_ids=(head,), mask=(True,)) for head in (0, 1)
    ]
    (first,), (second,) = made.learner.forward(both)
    assert first == 0.0 != second  # the first head starts at zero
    assert made.values(shown)[0] == pytest.approx(1 / (1 + math.exp(-min(first, second))))
    made.forward_backward(STEPS)
    made.optim_step(ADAM)
    values = made.values(shown)
    made.save(tmp_path / "critic")
    again = critic(folder=tmp_path / "critic", model=None)
    weights = {
        name: each for name, each in again.learner.policy.named_parameters() if "critic" in name
    }
    kept = dict(made.learner.policy.named_parameters())
    assert weights and all(torch.equal(each, kept[name]) for name, each in weights.items())
    assert values != [0.5] * len(values)


def test_a_judge_learns_yes_and_no_and_a_long_page_keeps_the_question():
    learner = tiny_learner()
    judge = LanguageJudge(learner, codec(learner.tokenizer))
    attempts = [attempt(n, success=n % 2 == 0) for n in range(4)]
    for _ in range(20):
        judge.forward_backward(attempts)
        judge.optim_step(ADAM)
    logits = judge.logits(attempts)
    assert all((logit > 0) == each.success for logit, each in zip(logits, attempts, strict=True))
    assert judge.logits([]) == []
    made = WebCodecConfig(form="compact", language="plain", prompt_tokens=200)
    short = LanguageJudge(learner, made.make(learner.tokenizer))
    asked = short._question(replace(attempts[0], last="page " * 200))
    assert len(asked) <= 200
    assert learner.tokenizer.decode(list(asked)).endswith("YES or NO:")
    rambled = attempt(0, success=True, actions=[f"act {n}: {'on and on ' * 9}" for n in range(9)])
    asked = short._question(replace(rambled, last="page " * 200))
    text = learner.tokenizer.decode(list(asked))
    assert len(asked) <= 200 and "act 8" in text and "act 0" not in text
    assert text.endswith("YES or NO:")


def test_scoring_and_writing_play_the_same_tasks_and_keep_their_tokens():
    made = actor()
    tasks = [PracticeTask(family="four", seed=seed) for seed in range(3)]
    with BatchRollout(FAMILIES, slots=2, threads=2) as rollout:
        scoring = ScoringPlayer(rollout, made.learner, made.codec, mean_score=True)
        scored = scoring.play(tasks, split=Split.TRAIN)
        assert scored == scoring.play(tasks, split=Split.TRAIN)
        stopped = scoring.play(tasks, split=Split.TRAIN, max_env_steps=1)
    assert len(scored) == 3 and len(stopped) == 2  # two slots were started before the budget ended
    for played in scored:
        assert played.success is not None and played.instruction
        for step, row in zip(
            train_steps(played, 1.0), made.logprobs(train_steps(played, 1.0)), strict=True
        ):
            assert step.action == step.input.offered[step.taken]
            assert made.codec.read_actions(step.reply_ids) == (step.action,)
            assert len(row) == len(step.reply_ids)
    with made.learner.sampler() as sampler:
        player = WritingPlayer(
            FAMILIES,
            made.codec,
            sampler,
            turn_tokens=4,
            at_once=2,
            env_pool=EnvPool.Config(place="thread", workers=2),
            seed=0,
        )
        written = player.play(tasks, split=Split.TRAIN)
        again = player.play(tasks, split=Split.TRAIN)
        assert [each.actions for each in again] == [each.actions for each in written]
    for played in written:
        steps = train_steps(played, 1.0)
        assert steps and all(0 < len(step.reply_ids) <= 4 for step in steps)
        # What was sampled is what is trained: the sampler's log-probabilities are the learner's.
        for choice, row in zip(played.choices, made.logprobs(steps), strict=True):
            assert choice.logprob == pytest.approx(sum(row), abs=1e-4)
            assert choice.offered and choice.taken == -1


def test_a_cross_fitted_value_never_saw_its_own_task():
    class Memory:
        """A critic that knows the outcomes of its own tasks by heart, and nothing else."""

        def __init__(self):
            self.known = {}

        def forward_backward(self, steps):
            self.known.update({step.input.text: step.outcome for step in steps})
            return LearnerOutput(loss=0.0, metrics={}, outputs=[])

        def optim_step(self, adam):
            return {}

        def values(self, inputs):
            return [self.known.get(shown.text, 0.5) for shown in inputs]

    opened = []

    @contextlib.contextmanager
    def open_critic():
        opened.append(Memory())
        yield opened[-1]

    config = WebRlUpdateConfig(critic_folds=2, critic_epochs=1)
    values = cross_fitted_values(open_critic, STEPS, config, np.random.default_rng(0))
    assert len(opened) == 2 and all(critic.known for critic in opened)
    assert {value for value, _ in values} == {0.5}
    assert {value for value, _ in critic_values(opened[0], STEPS)} != {0.5}


def test_demonstrations_are_told_in_the_words_of_the_agent(tmp_path):
    """So that the past actions in a prompt look as they will when the agent acts."""
    tokenizer = tiny_learner().tokenizer
    named = WebCodecConfig(form="compact", language="named").make(tokenizer)
    config = LanguageAgentConfig(act="score")
    agent = LanguageAgent(None, BatchRollout({}), config, named, start="x", work=tmp_path, seed=0)
    page = '[3] button "Ok"\n[4] textbox ""'
    taken = ("click 3", "type 4 tea")
    choices = tuple(
        Choice(observation=page, offered=taken, taken=n, logprob=0.0, steps_left=2 - n)
        for n in (0, 1)
    )
    (told,) = agent.in_own_words([replace(attempt(0, success=True), choices=choices)])
    assert told.actions == ('click button "Ok" [3]', 'type textbox "" [4] tea')
    assert [named.read_actions(choice.reply_ids)[0] for choice in told.choices] == [*told.actions]
    freely = replace(choices[0], taken=-1, written="type 4 Steel Whisk")
    ended = replace(choices[1], taken=-1, written="stop done")
    (told_freely,) = agent.in_own_words(
        [replace(attempt(0, success=True), choices=(freely, ended))]
    )
    assert told_freely.actions == ('type textbox "" [4] Steel Whisk', "stop done")
    second = train_steps(told, 1.0)[1].input
    assert 'Done: click button "Ok" [3]\n' in tokenizer.decode(list(named.prompt(second)))


@pytest.mark.parametrize(
    ("language", "told"),
    [
        ("webrl", ['do(action="Click", element="3")', 'exit(message="done")', "NOTED"]),
        ("named", ['click button "Ok" [3]', "stop done", 'click button "Ok" [3]']),
        ("plain", ["click 3", "stop done", "click 3"]),
    ],
)
def test_what_an_expert_or_a_trace_wrote_is_told_in_the_language_of_the_agent(
    language, told, tmp_path
):
    noted = '# Element: Ok\ndo(action="Click", element="3")'
    tokenizer = tiny_learner().tokenizer
    spoken = WebCodecConfig(form="compact", language=language).make(tokenizer)
    config = LanguageAgentConfig(act="score")
    agent = LanguageAgent(None, BatchRollout({}), config, spoken, start="x", work=tmp_path, seed=0)
    choices = tuple(
        Choice(
            observation='[3] button "Ok"',
            offered=(),
            taken=-1,
            logprob=0.0,
            steps_left=3 - n,
            written=written,
        )
        for n, written in enumerate(("click 3", "stop done", noted))
    )
    (own,) = agent.in_own_words([replace(attempt(0, success=True), choices=choices)])
    assert list(own.actions) == [noted if each == "NOTED" else each for each in told]
    assert [spoken.read_actions(choice.reply_ids)[0] for choice in own.choices] == [*own.actions]

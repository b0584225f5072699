"""The language models of a WebRL run: actor, critic and judge as learners of the engine.

A step becomes a training example: the prompt that the actor saw (written again from the same
situation by the same codec) and the tokens that it wrote. The critic reads the same prompts with
two value heads. The judge answers YES or NO in the published form.
    agent = LanguageAgent(engine, rollout, config, codec, start=start, work=work, seed=0)
    with agent.actor(phase.previous.actor) as actor: ...
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from terrella.codecs.chat_template import ChatTemplate, user
from terrella.codecs.web_prompt import WebCodec, WebCodecConfig
from terrella.core.bounds import check_least
from terrella.core.config import Configurable, Local
from terrella.core.errors import ConfigError
from terrella.core.protocols import Learner
from terrella.core.run_folder import processes
from terrella.core.tokens import AdamParams, Head, LearnerOutput, TrainExample
from terrella.data.attempts import Attempt, Choice
from terrella.data.train_steps import TrainStep
from terrella.data.webrl_formats import OUTCOME_MODEL_SYSTEM, outcome_question
from terrella.engines.configs import LearnerConfig
from terrella.engines.interface import Engine, Model
from terrella.models.policy_input import PolicyInput
from terrella.pipelines.webrl.agent import Columns, Player
from terrella.pipelines.webrl.language_player import ScoringPlayer, WritingPlayer
from terrella.pipelines.webrl.language_writer import LanguageWriter
from terrella.rollout.batch_rollout import BatchRollout
from terrella.rollout.env_pool import EnvPool

Act = Literal["score", "write"]


@dataclass(frozen=True, kw_only=True)
class LanguageAgentConfig(Configurable.Config):
    """How a language model acts, and the memory of what trains it."""

    act: Act = "write"
    """score: the log-probabilities of all offered actions behind one prompt; one process.

    The policy that acts is then a softmax over the offered actions. The policy that is trained is
    the model's own, token by token: the gradient of `loss=grpo` is biased.

    write: the model writes an action, through the engine's sampler and the env pool.
    """
    codec: WebCodecConfig = field(default_factory=WebCodecConfig)
    mean_score: bool = False
    """score: compare actions by their mean log-probability per token, not by its sum.

    Long actions that were never shown keep a chance.
    """
    turn_tokens: int = 96
    """write: longest action."""
    training: LearnerConfig = field(default_factory=LearnerConfig)
    """Memory of the actor's learner."""
    critic: LearnerConfig = field(default_factory=lambda: LearnerConfig(value_heads=2))
    """Memory of the critic's learner. The lower of its heads counts; verl has one head only."""
    judge: LearnerConfig = field(default_factory=LearnerConfig)
    env_pool: Local[EnvPool.Config] = field(default_factory=EnvPool.Config)
    """write: where worlds are stepped."""

    def __post_init__(self) -> None:
        check_least(self, turn_tokens=1)


class LanguageLearner:
    """A learner of the engine with the codec of its examples."""

    def __init__(self, learner: Learner, codec: WebCodec) -> None:
        self.learner = learner
        self.codec = codec

    def optim_step(self, adam: AdamParams) -> Mapping[str, float]:
        return self.learner.optim_step(adam)

    def save(self, path: Path) -> None:
        self.learner.export(path)


class LanguageActor(LanguageLearner):
    """See `agent.Actor`."""

    def __init__(self, learner: Learner, codec: WebCodec, *, mean_score: bool = False) -> None:
        super().__init__(learner, codec)
        self.mean_score = mean_score

    def logprobs(self, steps: Sequence[TrainStep]) -> list[tuple[float, ...]]:
        return self.learner.forward([self._example(step) for step in steps])

    def forward_backward(
        self,
        steps: Sequence[TrainStep],
        columns: Sequence[Columns],
        loss: str,
        **knobs: float | str,
    ) -> LearnerOutput:
        """The policy loss is a mean over the tokens of a step; the others are of whole steps."""
        share = loss == "policy"
        data = [
            self._example(step, read, share=share)
            for step, read in zip(steps, columns, strict=True)
        ]
        return self.learner.forward_backward(data, loss, **knobs)

    def imitate(self, steps: Sequence[TrainStep], *, doubt: float) -> LearnerOutput:
        """Offered actions are further examples behind the same prompt, with small weights."""
        data = [
            example
            for step in steps
            for example in self._targets(step, doubt if step.input.offered else 0.0, len(steps))
        ]
        return self.learner.forward_backward(data, "cross_entropy")

    def _targets(self, step: TrainStep, doubt: float, count: int) -> Iterator[TrainExample]:
        shares = {self._reply(step): 1 - doubt}
        if doubt:
            offered = replies_of(self.codec, step.input)
            for reply in offered:
                shares[reply] = shares.get(reply, 0.0) + doubt / len(offered)
        prompt = self.codec.prompt(step.input)
        for reply, share in shares.items():
            weight = share / count / (len(reply) if self.mean_score else 1)
            yield _example(prompt, reply, {"weight": weight})

    def _example(
        self, step: TrainStep, columns: Columns | None = None, *, share: bool = False
    ) -> TrainExample:
        reply = self._reply(step)
        read = dict(columns or {})
        weight = read.get("weight", 1.0)
        if share and isinstance(weight, float):
            read["weight"] = weight / len(reply)
        return _example(self.codec.prompt(step.input), reply, read)

    def _reply(self, step: TrainStep) -> tuple[int, ...]:
        """What was sampled; a demonstration is written as the agent would write it."""
        if step.reply_ids:
            return step.reply_ids
        return self.codec.reply(self.codec.written(step.action, step.input.text))


class LanguageCritic(LanguageLearner):
    """See `agent.Critic`. A head's logit is the value before its own token."""

    def __init__(self, learner: Learner, codec: WebCodec, *, heads: int) -> None:
        super().__init__(learner, codec)
        self.heads = heads
        self._known: dict[tuple[int, ...], float] = {}
        """Values since the last step: the state after a step is that before the next one."""

    def values(self, inputs: Sequence[PolicyInput]) -> list[float]:
        prompts = [self.codec.prompt(shown) for shown in inputs]
        states = [state for state in dict.fromkeys(prompts) if state not in self._known]
        data = [_example(state, (head,), {}) for state in states for head in range(self.heads)]
        logits = [values[0] for values in self.learner.forward(data)] if data else []
        lowest = [min(logits[at : at + self.heads]) for at in range(0, len(logits), self.heads)]
        values = [1 / (1 + math.exp(-max(-50.0, logit))) for logit in lowest]
        self._known.update(zip(states, values, strict=True))
        return [self._known[prompt] for prompt in prompts]

    def optim_step(self, adam: AdamParams) -> Mapping[str, float]:
        self._known.clear()
        return super().optim_step(adam)

    def forward_backward(self, steps: Sequence[TrainStep]) -> LearnerOutput:
        data = [
            example
            for step in steps
            for shown in (step.input, step.next_input)
            for example in self._heads(shown, {"outcome": step.outcome, "weight": 1 / len(steps)})
        ]
        return self.learner.forward_backward(data, "webrl_critic")

    def _heads(self, shown: PolicyInput, columns: Columns) -> list[TrainExample]:
        prompt = self.codec.prompt(shown)
        return [_example(prompt, (head,), columns) for head in range(self.heads)]


class LanguageJudge(LanguageLearner):
    """See `agent.Judge`. Log-odds of YES against NO after the published question."""

    def __init__(self, learner: Learner, codec: WebCodec) -> None:
        super().__init__(learner, codec)
        self.answers = [codec.template.write(word)[0] for word in ("NO", "YES")]
        if len(set(self.answers)) != len(self.answers):
            raise ConfigError("judge", "YES and NO begin with the same token of this model")

    def logits(self, attempts: Sequence[Attempt]) -> list[float]:
        data = [
            _example(prompt, (answer,), {})
            for prompt in map(self._question, attempts)
            for answer in self.answers
        ]
        found = [values[0] for values in self.learner.forward(data)] if data else []
        return [yes - no for no, yes in zip(found[::2], found[1::2], strict=True)]

    def forward_backward(self, attempts: Sequence[Attempt]) -> LearnerOutput:
        data = [
            _example(
                self._question(attempt),
                (self.answers[bool(attempt.success)],),
                {"weight": 1 / len(attempts)},
            )
            for attempt in attempts
        ]
        return self.learner.forward_backward(data, "cross_entropy")

    def _question(self, attempt: Attempt) -> tuple[int, ...]:
        """The intent, one line per action, the last page; a long page loses its end.

        Actions that do not fit without a page lose the oldest ones: a pass of more tokens than were
        planned for may not fit into memory, in this run and in every one that resumes it.
        """
        page, limit = attempt.last, self.codec.config.prompt_tokens
        ids = self._ask(attempt, page)
        while limit and len(ids) > limit and page:
            words = self.codec.template.write(page)
            page = self.codec.template.text(words[: max(0, len(words) - (len(ids) - limit) - 1)])
            ids = self._ask(attempt, page)
        for without in range(1, len(attempt.choices) + 1):
            if not limit or len(ids) <= limit:
                break
            ids = self._ask(attempt, page, without)
        return ids

    def _ask(self, attempt: Attempt, page: str, without: int = 0) -> tuple[int, ...]:
        question = outcome_question(attempt, page, without=without)
        template = self.codec.template
        if isinstance(template, ChatTemplate):
            system = {"role": "system", "content": OUTCOME_MODEL_SYSTEM}
            return template.prompt([system, user(question)])
        return tuple(template.write(f"{question}\nYES or NO:"))


def replies_of(codec: WebCodec, shown: PolicyInput) -> list[tuple[int, ...]]:
    """The offered actions as the agent would write them."""
    return [codec.reply(codec.written(action, shown.text)) for action in shown.offered]


def _example(prompt: Sequence[int], reply: Sequence[int], columns: Columns) -> TrainExample:
    size = len(reply)
    return TrainExample(
        prompt_ids=prompt,
        completion_ids=reply,
        mask=[True] * size,
        columns={
            name: [value] * size if isinstance(value, int | float) else list(value)
            for name, value in columns.items()
        },
    )


class LanguageAgent:
    """See `agent.Agent`. Models are Hugging Face folders."""

    suffix = ""
    writes = True

    def __init__(
        self,
        engine: Engine,
        rollout: BatchRollout,
        config: LanguageAgentConfig,
        codec: WebCodec,
        *,
        start: Model,
        work: Path,
        seed: int,
    ) -> None:
        """`start` is the model that imitates demonstrations first."""
        self.engine = engine
        self.rollout = rollout
        self.config = config
        self.codec = codec
        self.start = start
        self.work = work
        self.seed = seed
        if config.act == "score" and processes() > 1:
            raise ConfigError("act", "scoring plays in one process", "set agent.act=write")

    def in_own_words(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Later prompts show earlier actions, so all of them are in one language."""
        return [
            replace(attempt, choices=tuple(self._own(choice) for choice in attempt.choices))
            for attempt in attempts
        ]

    def _own(self, choice: Choice) -> Choice:
        written = self.codec.written(choice.action, choice.observation)
        return replace(choice, written=written, reply_ids=self.codec.reply(written))

    @contextlib.contextmanager
    def writer(self, actor: Path, *, reply_tokens: int) -> Iterator[LanguageWriter]:
        with self.engine.sampler(actor) as sampler:
            yield LanguageWriter(sampler, self.codec, reply_tokens)

    @contextlib.contextmanager
    def player(self, actor: Path) -> Iterator[Player]:
        if self.config.act == "score":
            with self._learner(actor, "token", self.config.training) as learner:
                yield ScoringPlayer(
                    self.rollout, learner, self.codec, mean_score=self.config.mean_score
                )
            return
        with self.engine.sampler(actor) as sampler:
            yield WritingPlayer(
                self.rollout.families,
                self.codec,
                sampler,
                turn_tokens=self.config.turn_tokens,
                at_once=self.rollout.slots,
                env_pool=self.config.env_pool,
                seed=self.seed,
            )

    @contextlib.contextmanager
    def actor(self, saved: Path | None) -> Iterator[LanguageActor]:
        with self._learner(saved or self.start, "token", self.config.training) as learner:
            yield LanguageActor(learner, self.codec, mean_score=self.config.mean_score)

    @contextlib.contextmanager
    def critic(self, saved: Path | None, *, base: Path) -> Iterator[LanguageCritic]:
        with self._learner(saved or base, "value", self.config.critic) as learner:
            yield LanguageCritic(learner, self.codec, heads=self.config.critic.value_heads)

    @contextlib.contextmanager
    def judge(self, saved: Path | None, *, base: Path) -> Iterator[LanguageJudge]:
        with self._learner(saved or base, "token", self.config.judge) as learner:
            yield LanguageJudge(learner, self.codec)

    def _learner(
        self, model: Model, head: Head, config: LearnerConfig
    ) -> contextlib.AbstractContextManager[Learner]:
        return self.engine.learner(model, head=head, config=config, work=self.work, seed=self.seed)

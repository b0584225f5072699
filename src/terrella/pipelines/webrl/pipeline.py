"""WebRL: RL with a self-evolving curriculum, phase by phase.

Propose -> admit -> play -> judge -> replay -> critic -> actor -> evaluate. Each part of a phase is
a file, a function of the files before it and of the seed, so a run that is killed anywhere resumes
and ends with the same bits. Arms are settings: `loss`, `curriculum`, `replay.ratio` and
`outcome_judge`.
    WebRl(webrl_sokoban().arms["webrl_paper"].replace(out=Path("runs/x"))).run(progress)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from terrella.core.integrity import copy_folder
from terrella.core.protocols import Progress
from terrella.core.run_folder import Manifest, RunFolder, wait_for
from terrella.core.types import Split
from terrella.data.attempt_journal import AttemptJournal, play_once
from terrella.data.attempts import Attempt, PracticeTask
from terrella.data.replay import Replay
from terrella.data.train_steps import TrainStep, train_steps
from terrella.pipelines.base import ModelPipeline
from terrella.pipelines.webrl.choose_tasks import choose_tasks
from terrella.pipelines.webrl.context import (
    ACTOR,
    CRITIC,
    FOLDS,
    REPLAY,
    Base,
    OutcomeJudge,
    make_base,
    make_judge,
    open_context,
)
from terrella.pipelines.webrl.critic_report import score_critic
from terrella.pipelines.webrl.curriculum_report import write_curriculum
from terrella.pipelines.webrl.metrics import (
    ActorMetrics,
    CriticMetrics,
    ReplayCounts,
    SuccessScores,
    practice_metrics,
)
from terrella.pipelines.webrl.outcome_model import outcome_errors
from terrella.pipelines.webrl.phase import Phase, remove_damaged_phases
from terrella.pipelines.webrl.proposers import PracticeRecord
from terrella.pipelines.webrl.results import (
    Drawn,
    Judged,
    PhaseResult,
    WebRlCost,
    WebRlResult,
)
from terrella.pipelines.webrl.settings import WebRlSettings
from terrella.pipelines.webrl.updates import (
    action_probs,
    begin,
    critic_columns,
    critic_values,
    cross_fitted_values,
    group_columns,
    sibling_advantages,
    update_actor,
    update_critic,
)

Outcomes = Sequence[float | None]
"""1.0 for success, 0.0 for failure; None for a masked or undecided attempt."""


class WebRl(ModelPipeline[WebRlResult]):
    """Imitation, then phases of practice."""

    @dataclass(frozen=True, kw_only=True)
    class Config(WebRlSettings):
        """See `settings.py`."""

    config: Config
    result_type = WebRlResult
    ignored: ClassVar[tuple[str, ...]] = ("out", "base_cache", "phases")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        config.check_together()
        self.practised = PracticeRecord(tuple(config.families))
        """The phases that were read; a phase holds thousands of pages, and is read once."""

    def is_finished(self, manifest: Manifest) -> bool:
        return bool(manifest.config["phases"] == self.config.phases)

    def train(self, run: RunFolder) -> WebRlResult:
        config = self.config
        with open_context(config, self.engine, run) as context:
            remove_damaged_phases(run)
            self.practised = PracticeRecord(tuple(config.families))
            base = make_base(run, config, context)
            judge = make_judge(run, config, context, base)
            phases = []
            for number in range(1, config.phases + 1):
                result = self.run_phase(Phase(run, context, base.folder, number), judge)
                phases.append(result)
                _show(run.progress, number, config.phases, result, base)
            last = Phase(run, context, base.folder, config.phases)
            if run.is_main:
                write_curriculum(
                    last,
                    [phase.curriculum for phase in phases if phase.curriculum is not None],
                    list(config.families),
                    lambda phase: self.outcomes(phase, phase.attempts(), judge),
                )
                if last.actor.is_dir():  # a pointer network is a file, which only this loop reads
                    copy_folder(last.actor, run / "model")
            return self._test(last, base, judge, phases)

    def run_phase(self, phase: Phase, judge: OutcomeJudge | None) -> PhaseResult:
        """One phase of the method, in order."""
        record = self._record(phase, judge)
        chosen = choose_tasks(self.config, phase, record)
        attempts = self.play(phase, chosen.tasks, record)
        outcomes = self.outcomes(phase, attempts, judge)
        steps, replayed = self.train_steps(phase, attempts, outcomes)
        critic = phase.part(
            "critic", CriticMetrics, lambda: self.fit_critic(phase, steps), collective=True
        )
        actor = phase.part(
            "actor", ActorMetrics, lambda: self.fit_actor(phase, steps), collective=True
        )
        return PhaseResult(
            phase=phase.number,
            curriculum=chosen.log,
            practice=practice_metrics(attempts, outcomes),
            outcome_errors=outcome_errors(attempts, outcomes) if judge else None,
            replay=replayed,
            critic=critic,
            actor=actor,
            validation=self.validate(phase),
            critic_scores=score_critic(phase, record, attempts, outcomes),
        )

    def _record(self, phase: Phase, judge: OutcomeJudge | None) -> PracticeRecord:
        """The phases before this one."""
        for number in range(len(self.practised.rates) + 1, phase.number):
            earlier = dataclasses.replace(phase, number=number)
            attempts = earlier.attempts()
            self.practised.add(attempts, self.outcomes(earlier, attempts, judge))
        return self.practised

    # --- play and judge ---------------------------------------------------------------------------

    def play(
        self, phase: Phase, tasks: Sequence[PracticeTask], record: PracticeRecord
    ) -> list[Attempt]:
        """The last actor plays, until the env steps of the phase are used.

        Attempts that ended before a kill are not played again.
        """
        path = phase.file("attempts.jsonl")
        if phase.run.is_main:
            play_once(
                path,
                lambda journal: self._practise(phase, tasks, self._steps_left(record), journal),
                patience=self.config.patience,
            )
        wait_for(path)
        return phase.attempts()

    def _practise(
        self,
        phase: Phase,
        tasks: Sequence[PracticeTask],
        allowed: int,
        journal: AttemptJournal,
    ) -> list[Attempt]:
        members = [
            dataclasses.replace(task, noise_seed=member)
            for task in tasks
            for member in range(self.config.group_size)
        ]
        progress = phase.progress
        begin(progress, "practice, env steps", allowed)
        with phase.context.agent.player(phase.previous.actor) as player:
            return player.play(
                members,
                split=Split.TRAIN,
                max_env_steps=allowed,
                watch=lambda env_steps, _: progress.advance(min(env_steps, allowed)),
                journal=journal,
            )

    def _steps_left(self, record: PracticeRecord) -> int:
        """Env steps of the next phase: what earlier ones overran is taken from it.

        Attempts that have begun are played to their end, which takes more where they are long.
        """
        phases = len(record.rates) + 1
        return max(1, self.config.phase_steps * phases - record.env_steps)

    def outcomes(
        self, phase: Phase, attempts: Sequence[Attempt], judge: OutcomeJudge | None
    ) -> list[float | None]:
        """The outcome of each attempt, by the world or by the outcome model."""
        if judge is None:
            return [
                None if attempt.success is None else float(attempt.success) for attempt in attempts
            ]
        judged = phase.part(
            "judged",
            Judged,
            lambda: Judged(probs=judge.success_probs(phase.context, attempts)),
            collective=True,
        )
        return [judge.model.decide(prob) for prob in judged.probs]

    # --- replay -----------------------------------------------------------------------------------

    def train_steps(
        self, phase: Phase, attempts: Sequence[Attempt], outcomes: Outcomes
    ) -> tuple[list[TrainStep], ReplayCounts]:
        """The judged steps of this phase, and steps drawn from earlier successes."""
        config = self.config
        new = self._new_steps(attempts, outcomes)
        replay = Replay(config.replay)
        if config.loss != "grpo":  # GRPO is on-policy and replays nothing
            replay = Replay.load(config.replay, phase.previous.replay_file)
        old = [step for attempt in replay.attempts for step in train_steps(attempt, 1.0)]

        def draw() -> Drawn:
            with phase.context.agent.actor(phase.previous.actor) as actor:
                probs = action_probs(actor, old)
            steps, counts = replay.draw(probs, new_steps=len(new), rng=phase.rng(REPLAY))
            return Drawn(steps=steps, counts=ReplayCounts(**counts))

        drawn = phase.part("drawn", Drawn, draw, collective=True)
        index = {step: position for position, step in enumerate(replay.steps())}
        replayed = [old[index[step]] for step in drawn.steps]
        if not phase.replay_file.exists() and phase.run.is_main:
            replay.add(_successes(attempts, outcomes))
            replay.save(phase.replay_file)
        wait_for(phase.replay_file)
        return new + replayed, drawn.counts

    def _new_steps(self, attempts: Sequence[Attempt], outcomes: Outcomes) -> list[TrainStep]:
        advantages = sibling_advantages(attempts, outcomes, self.config.group_size)
        steps: list[TrainStep] = []
        for attempt, outcome, advantage in zip(attempts, outcomes, advantages, strict=True):
            if outcome is not None:
                steps += train_steps(attempt, outcome, advantage)
        return steps

    # --- critic and actor -------------------------------------------------------------------------

    def fit_critic(self, phase: Phase, steps: Sequence[TrainStep]) -> CriticMetrics:
        """An arm that asks no critic has none."""
        config, target = self.config, phase.critic
        if target is None or not config.uses_critic:
            return CriticMetrics()
        with phase.context.agent.critic(phase.previous.critic, base=phase.base_actor) as critic:
            metrics = update_critic(
                critic, steps, config.learner, phase.rng(CRITIC), phase.progress
            )
            critic.save(target)
        return metrics

    def fit_actor(self, phase: Phase, steps: Sequence[TrainStep]) -> ActorMetrics:
        """The reference is the actor at the start of the phase, or the first one."""
        config, agent = self.config, phase.context.agent
        # Two large models need not be in memory together: values and the first policy come before.
        values, first = self._step_values(phase, steps), None
        if config.reference == "imitation":
            with agent.actor(phase.base_actor) as actor:
                first = actor.logprobs(steps)
        with agent.actor(phase.previous.actor) as actor:
            old = actor.logprobs(steps)
            references = old if first is None else first
            columns = (
                group_columns(old, references, steps)
                if config.loss == "grpo"
                else critic_columns(references, values, steps)
            )
            metrics = update_actor(
                actor,
                steps,
                columns,
                config.loss,
                config.learner,
                phase.rng(ACTOR),
                phase.progress,
            )
            actor.save(phase.actor)
        return metrics

    def _step_values(self, phase: Phase, steps: Sequence[TrainStep]) -> list[tuple[float, float]]:
        """The critic's values before and after each step; zeros for an arm without a critic."""
        config, agent = self.config, phase.context.agent
        if not config.uses_critic:
            return [(0.0, 0.0)] * len(steps)
        if config.learner.critic_folds > 1:
            # Not from the critic of the phase before: it was fitted to the tasks that are replayed.
            return cross_fitted_values(
                lambda: agent.critic(None, base=phase.base_actor),
                steps,
                config.learner,
                phase.rng(FOLDS),
                phase.progress,
            )
        with agent.critic(phase.critic, base=phase.base_actor) as critic:
            return critic_values(critic, steps)

    # --- evaluate ---------------------------------------------------------------------------------

    def validate(self, phase: Phase) -> SuccessScores | None:
        config = self.config
        if not config.validation:
            return None
        return phase.part(
            "evaluation",
            SuccessScores,
            lambda: _evaluate(
                phase, "evaluation", config.all_families, config.validation, Split.VALIDATION
            ),
        )

    def _test(
        self, last: Phase, base: Base, judge: OutcomeJudge | None, phases: list[PhaseResult]
    ) -> WebRlResult:
        config = self.config
        unseen = None
        test = self._tested(last, "test", tuple(config.families))
        if config.unseen:
            unseen = self._tested(last, "unseen", tuple(config.unseen))
        return WebRlResult(
            base=base.result,
            phases=phases,
            test=test,
            unseen=unseen,
            rl=WebRlCost.of(
                phases,
                demonstrations=base.result.env_steps,
                outcome_model=judge.result.env_steps if judge else 0,
            ),
            outcome_model=judge.result if judge else None,
        )

    def _tested(self, last: Phase, name: str, families: Sequence[str]) -> SuccessScores:
        """Kept by phase: a finished run may be continued with more of them."""
        return last.part(
            name,
            SuccessScores,
            lambda: _evaluate(last, name, families, self.config.test, Split.TEST),
        )

    def reference_scores(self) -> dict[str, float]:
        """No exact score is known for these tasks."""
        return {}

    def summary(self, result: WebRlResult) -> list[tuple[str, str]]:
        rows = []
        if result.base.validation:
            rows.append(("imitation alone, validation", str(result.base.validation)))
        rows.append(("test", str(result.test)))
        if result.unseen:
            rows.append(("unseen families, test", str(result.unseen)))
        return [*rows, ("env steps", f"{result.rl.env_steps:,}")]


def _show(progress: Progress, number: int, phases: int, result: PhaseResult, base: Base) -> None:
    """What the phase reached on validation, beside the imitation that it began from."""
    progress.phase("phases", phases)
    metrics = {}
    if result.validation and base.result.validation:
        metrics = {
            "success": result.validation.mean,
            "imitation": base.result.validation.mean,
        }
    progress.advance(number, **metrics)


def _evaluate(
    phase: Phase, name: str, families: Sequence[str], count: int, split: Split
) -> SuccessScores:
    """The actor after a phase, on held-out instances. Attempts are kept beside the part `name`."""
    journal = phase.run / phase.name / name  # not `phase.file`: arms share the folder of phase 0
    scores = phase.context.evaluate(
        phase.actor, families, count, split, phase.progress, journal=journal
    )
    assert scores is not None
    return scores


def _successes(attempts: Sequence[Attempt], outcomes: Outcomes) -> list[Attempt]:
    """Attempts to keep for replay."""
    return [
        attempt
        for attempt, outcome in zip(attempts, outcomes, strict=True)
        if outcome is not None and outcome >= 0.5 and attempt.choices
    ]

"""WebRL as one loop: propose -> admit -> play -> judge -> replay -> critic -> actor -> evaluate, phase after phase.

Each part of a phase is a file that appears whole; a part is a function of the files before it and of the seed. So a run
that is killed anywhere goes on where it was and ends with the same bits. Arms are fields: `loss`, `curriculum`,
`replay.ratio`, `judge`. A model of the outcome can stand in for the world's verdict; its errors are then counted.
    SelfEvolving(webrl_sokoban().arms["webrl_paper"].replace(out=Path("runs/x"))).run(progress)
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from terrella.core.config import Configurable, dump, record_from_json
from terrella.core.protocols import Progress
from terrella.core.types import Split
from terrella.core.world import World
from terrella.data.attempts import Attempt, PracticeTask, read_attempts, write_attempts
from terrella.data.replay import Replay
from terrella.data.store import locked, settle_plan, write_atomic
from terrella.engines.pointer.learn import Learner, Lesson, Net, lessons_of, sibling_advantages
from terrella.engines.pointer.play import Players, policy_chooser
from terrella.models.pointer import Sizes
from terrella.show.progress import make_progress, show_figures
from terrella.stages.curriculum import Curriculum, Record, curriculum_table, fixed_tasks
from terrella.stages.outcome_model import OutcomeModel, judge_figures
from terrella.stages.practice_bench import ACTOR, CRITIC, PRACTICE, REPLAY, Bench, imitate, train_judge
from terrella.stages.practice_report import practice_figures


class SelfEvolving(Configurable):
    """The stage: `run` returns what was measured."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """A whole arm."""

        families: Mapping[str, World.Config]
        """Kinds of tasks that are practised, easy ones first where there is an order."""
        unseen: Mapping[str, World.Config] = field(default_factory=dict[str, World.Config])
        """Kinds that are only evaluated."""
        slots: int = 64
        read_instruction: bool = False
        width: int = 64
        layers: int = 2
        demonstrated: tuple[str, ...] = ()
        """Kinds the teacher shows; empty for all."""
        demonstrations: int = 20
        """Per kind."""
        imitation_updates: int = 150
        """Few on purpose: a policy that is sure of itself does not explore."""
        curriculum: Literal["self_evolving", "fixed"] = "self_evolving"
        practice: Curriculum.Config = field(default_factory=Curriculum.Config)
        loss: Literal["webrl_paper", "webrl_released", "filtered_bc", "awr", "digirl", "grpo"] = "webrl_paper"
        learner: Learner.Config = field(default_factory=Learner.Config)
        replay: Replay.Config = field(default_factory=Replay.Config)
        group_size: int = 1
        """Plays of each task; above 1 for `grpo`, which compares them."""
        judge: Literal["world", "model"] = "world"
        outcome_model: OutcomeModel.Config = field(default_factory=OutcomeModel.Config)
        phases: int = 6
        phase_steps: int = 3000
        """Real steps of the world per phase: what arms are compared at."""
        glance: int = 16
        """Validation instances of each kind after each phase; 0 for none."""
        evaluate: int = 32
        """Test instances of each kind at the end."""
        seed: int = 0
        bases: Path = Path("runs/webrl-bases")
        """Where imitated policies are kept: arms of one seed share them."""
        out: Path = Path("runs/webrl")

        @property
        def world(self) -> World.Config:
            """One of the worlds, for whoever wants to see it."""
            return next(iter(self.families.values()))

    config: Config

    def __init__(self, config: Config) -> None:
        """Nothing is built before `run`."""
        super().__init__(config)
        self.learner: Learner = config.learner.build()
        self.sizes = Sizes(width=config.width, layers=config.layers)

    def run(self, progress: Progress) -> dict[str, Any]:
        """Each part once, the manifest last."""
        done = self.config.out / "manifest.json"
        if done.exists():
            return dict(json.loads(done.read_text("utf-8")))
        with locked(self.config.out):  # two processes in one folder would each undo the other's parts
            return self._run(progress)

    def _run(self, progress: Progress) -> dict[str, Any]:
        config, out = self.config, self.config.out
        settle_plan(out, {"config": {k: v for k, v in dump(config).items() if k not in ("out", "bases", "phases")}})
        began = time.perf_counter()
        progress.phase("phases", config.phases)
        with Players({**config.families, **config.unseen}, slots=config.slots, reader=self.learner.reader,
                     read_instruction=config.read_instruction) as players:  # fmt: skip
            self.bench = Bench(players, self.learner, self.sizes, config.seed)
            base = self._base()
            if config.judge == "model":
                self._judge(base)
            phases = []
            for number in range(1, config.phases + 1):
                phases.append(self._phase(number, base))
                progress.advance(number, success=phases[-1].get("validation", {}).get("mean", 0.0))
            found = self._finish(self._actor(config.phases, base), phases)
        found["seconds"] = time.perf_counter() - began
        write_atomic(out / "manifest.json", json.dumps({"config": dump(config), **found}, indent=1).encode())
        return found

    # --- the policy that practice begins with ------------------------------------------------------------------------

    def _base(self) -> Path:
        """A folder with a policy that has imitated a few demonstrations, and what it scores on validation."""
        config = self.config
        plan = {name: value for name, value in dump(config).items() if name in (
            "families", "unseen", "width", "layers", "demonstrated", "demonstrations", "imitation_updates", "seed",
            "glance", "read_instruction")}  # fmt: skip
        plan["rates"] = [config.learner.learning_rate, config.learner.batch, config.learner.doubt]
        folder = config.bases / f"seed-{config.seed}"
        with locked(folder, wait=True):
            settle_plan(folder, plan)
            names = config.demonstrated or tuple(config.families)
            tasks = [PracticeTask(family=name, seed=seed) for name in names for seed in range(config.demonstrations)]
            imitate(self.bench, tasks, updates=config.imitation_updates, folder=folder, glance=self._glance)
        return folder

    def _judge(self, base: Path) -> tuple[OutcomeModel, Path]:
        """The outcome model and its folder: arms of one seed share it."""
        config, folder = self.config, self.config.bases / f"judge-{self.config.seed}"
        model = OutcomeModel(config.outcome_model)
        with locked(folder, wait=True):
            settle_plan(folder, {"outcome_model": dump(config.outcome_model), "base": str(base.name)})
            actor = self.bench.net("actor", base / "actor.safetensors")
            train_judge(self.bench, model, actor, tuple(config.families), folder)
        return model, folder

    # --- one phase ---------------------------------------------------------------------------------------------------

    def _phase(self, number: int, base: Path) -> dict[str, Any]:
        folder = self.config.out / f"phase-{number:02d}"
        folder.mkdir(exist_ok=True)
        tasks = self._tasks(number, base)
        attempts = self._attempts(number, base, tasks)
        outcomes = self._outcomes(number, base, attempts)
        lessons, drawn = self._lessons(number, base, attempts, outcomes)
        critic = self._fit_critic(number, lessons)
        learnt = self._fit_actor(number, base, lessons)
        measured = self._json(number, "evaluation.json", lambda: self._glance(self._actor(number, base)))
        log = json.loads((folder / "tasks.json").read_text("utf-8"))["log"]
        return {"phase": number, "curriculum": log, **practice_figures(attempts, outcomes), "replay": drawn, **critic,
                **learnt, **measured, **judge_figures(attempts, outcomes, self.config.judge)}  # fmt: skip

    def _tasks(self, number: int, base: Path) -> list[PracticeTask]:
        """As many as could be begun within the budget; propose, admit, write down."""
        config = self.config

        def make() -> dict[str, Any]:
            rng, names = self.bench.rng(number, PRACTICE), tuple(config.families)
            count = max(1, config.phase_steps // config.group_size)  # an attempt has a step at least
            record = self._record(number, base)
            if config.curriculum == "fixed":
                tasks, log = fixed_tasks(names, count, rng), {}
            else:
                count = min(count, self._likely_count(number))
                critic = self.bench.net("critic", self._file(number - 1, "critic.safetensors")) if number > 1 else None
                tasks, log = config.practice.build().choose(
                    self.bench.players, self.learner, critic, record, count=count, rng=rng
                )
            return {"log": log, "tasks": [dataclasses.asdict(task) for task in tasks]}

        made = self._json(number, "tasks.json", make)
        return [record_from_json(PracticeTask, task) for task in made["tasks"]]

    def _likely_count(self, number: int) -> int:
        """Tasks that the budget will pay for, from the length of earlier attempts: admission looks at each proposal."""
        shortest = 2.0
        if number > 1:
            lengths = [len(attempt.choices) for attempt in read_attempts(self._file(number - 1, "attempts.jsonl"))]
            shortest = max(1.0, 0.7 * float(np.mean(lengths)))
        return int(self.config.phase_steps / shortest / self.config.group_size) + 1

    def _record(self, number: int, base: Path) -> Record:
        record = Record(tuple(self.config.families))
        for earlier in range(1, number):
            attempts = read_attempts(self._file(earlier, "attempts.jsonl"))
            record.add(attempts, self._outcomes(earlier, base, attempts))
        return record

    def _attempts(self, number: int, base: Path, tasks: Sequence[PracticeTask]) -> list[Attempt]:
        path = self._file(number, "attempts.jsonl")
        if not path.exists():
            actor = self._actor(number - 1, base)
            group = self.config.group_size
            members = [dataclasses.replace(task, noise_seed=n) for task in tasks for n in range(group)]
            choose = policy_chooser(actor, self.learner.reader)
            played = self.bench.players.play(choose, members, split=Split.TRAIN, budget=self.config.phase_steps)
            write_attempts(path, played)
        return read_attempts(path)

    def _outcomes(self, number: int, base: Path, attempts: Sequence[Attempt]) -> list[float | None]:
        """What each attempt is held to have earned; None for what is masked or what the judge abstains from."""
        if self.config.judge == "world":
            return [None if attempt.success is None else float(attempt.success) for attempt in attempts]
        model, folder = self._judge(base)
        judged = self._json(number, "judged.json", lambda: {"chances": model.chances(folder, self.sizes, attempts)})
        return [model.decide(chance) for chance in judged["chances"]]

    def _lessons(
        self, number: int, base: Path, attempts: Sequence[Attempt], outcomes: Sequence[float | None]
    ) -> tuple[list[Lesson], dict[str, Any]]:
        """This phase's judged steps and what is drawn from the successes of earlier phases."""
        config, advantages = self.config, sibling_advantages(attempts, outcomes, self.config.group_size)
        new = [lesson for attempt, outcome, advantage in zip(attempts, outcomes, advantages, strict=True)
               if outcome is not None for lesson in lessons_of(attempt, outcome, advantage)]  # fmt: skip
        before = self._file(number - 1, "replay.jsonl") if number > 1 else base / "demonstrations.jsonl"
        replay = Replay.load(config.replay, before)
        old = [lesson for attempt in replay.attempts for lesson in lessons_of(attempt, 1.0)]
        if config.loss == "grpo":
            old, replay = [], Replay(config.replay)  # on policy: nothing old

        def draw() -> dict[str, Any]:
            chances = self.learner.chances(self._actor(number - 1, base), old)
            where, counts = replay.draw(chances, new_steps=len(new), rng=self.bench.rng(number, REPLAY))
            return {"where": where, "counts": counts}

        drawn = self._json(number, "drawn.json", draw)
        index = {place: n for n, place in enumerate(replay.steps())}
        lessons = new + [old[index[(place[0], place[1])]] for place in drawn["where"]]
        if not self._file(number, "replay.jsonl").exists():
            replay.add([a for a, o in zip(attempts, outcomes, strict=True) if o is not None and o >= 0.5 and a.choices])
            replay.save(self._file(number, "replay.jsonl"))
        return lessons, drawn["counts"]

    def _fit_critic(self, number: int, lessons: Sequence[Lesson]) -> dict[str, Any]:
        path = self._file(number, "critic.safetensors")
        before = self._file(number - 1, "critic.safetensors") if number > 1 else None

        def fit() -> dict[str, Any]:
            critic = self.bench.net("critic", before)
            figures = {} if self.config.loss in ("grpo", "filtered_bc") and self.config.curriculum == "fixed" else (
                self.learner.fit_critic(critic, lessons, self.bench.rng(number, CRITIC)))  # fmt: skip
            critic.save(path)
            return figures

        return self._json(number, "critic.json", fit)

    def _fit_actor(self, number: int, base: Path, lessons: Sequence[Lesson]) -> dict[str, Any]:
        def fit() -> dict[str, Any]:
            actor = self._actor(number - 1, base)
            critic = self.bench.net("critic", self._file(number, "critic.safetensors"))
            figures = self.learner.fit_actor(actor, lessons, critic, self.config.loss, self.bench.rng(number, ACTOR))
            actor.save(self._file(number, "actor.safetensors"))
            return figures

        return self._json(number, "actor.json", fit)

    # --- measuring ---------------------------------------------------------------------------------------------------

    def _glance(self, actor: Net) -> dict[str, Any]:
        names = [*self.config.families, *self.config.unseen]
        found = self.bench.success(actor, names, self.config.glance, Split.VALIDATION)
        return {"validation": found} if found else {}

    def _finish(self, actor: Net, phases: Sequence[dict[str, Any]]) -> dict[str, Any]:
        config = self.config
        seen = self.bench.success(actor, list(config.families), config.evaluate, Split.TEST)
        unseen = self.bench.success(actor, list(config.unseen), config.evaluate, Split.TEST)
        logs = [phase["curriculum"] for phase in phases]
        if config.curriculum == "self_evolving" and logs:
            write_atomic(config.out / "curriculum.md", curriculum_table(logs, list(config.families)).encode())
        steps = sum(phase["world_steps"] for phase in phases)
        base = json.loads((config.bases / f"seed-{config.seed}" / "base.json").read_text("utf-8"))
        judge = config.bases / f"judge-{config.seed}" / "judge.json"
        return {"base": base, "phases": list(phases), "test": seen, "unseen": unseen, "learnt": {},
                "rl": {"world_steps": steps, "iterations": len(phases)},
                "judge": json.loads(judge.read_text("utf-8")) if config.judge == "model" else {}}  # fmt: skip

    def known(self) -> dict[str, Any]:
        """Nothing exact is known of these tasks beside the arms themselves."""
        return {}

    # --- files -------------------------------------------------------------------------------------------------------

    def _file(self, number: int, name: str) -> Path:
        return self.config.out / f"phase-{number:02d}" / name

    def _actor(self, number: int, base: Path) -> Net:
        """The actor after a phase; after phase 0 it has only imitated."""
        return self.bench.net("actor", (self._file(number, "") if number else base) / "actor.safetensors")

    def _json(self, number: int, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        path = self._file(number, name)
        if not path.exists():
            write_atomic(path, json.dumps(make()).encode())
        return dict(json.loads(path.read_text("utf-8")))


def run(config: SelfEvolving.Config) -> dict[str, Any]:
    """Practise with a display and show the figures; returns them."""
    with make_progress() as progress:
        found = SelfEvolving(config).run(progress)
    before = found["base"].get("validation")
    rows = [("imitation alone, validation", f"{before['mean']:.3f}, n = {before['n']}")] if before else []
    for part in ("test", "unseen"):
        if found[part]:
            figure = found[part]
            rows.append((part, f"{figure['mean']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}], n = {figure['n']}"))
    show_figures(f"practised into {config.out}", [*rows, ("real steps", f"{found['rl']['world_steps']:,}")])
    return found

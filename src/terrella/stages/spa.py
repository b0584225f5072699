"""One arm of SPA, one seed: format -> self-play -> true states in -> SFT -> RL -> evaluation on held-out instances.

A model from scratch first learns the format and nothing else (random actions, made-up states); a chat model skips
that. The arms of the paper are fields (`recipes/spa/`). Each part is done once: run again, the folder goes on where it
was killed.
    Spa(spa_frozen_lake().arms["spa"].replace(out=Path("runs/x"))).run(progress)
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from terrella.codecs.chat_tokens import ChatCodec
from terrella.codecs.interleaved import InterleavedCodec
from terrella.codecs.tagged import TAG_WORDS, Form, TaggedCodec, reply_form
from terrella.core.config import Configurable, dump
from terrella.core.protocols import Progress
from terrella.core.types import Split
from terrella.core.world import World
from terrella.data.store import locked, settle_plan, write_atomic
from terrella.engines.episodes.driver import Driver
from terrella.engines.episodes.seats import Seats
from terrella.engines.sampling.local_sampler import LocalSampler
from terrella.engines.trl.collapse_alarm import CollapseAlarm
from terrella.engines.trl.rlvr_trainer import RlvrSettings, RlvrTrainer
from terrella.engines.trl.sft_trainer import SftSettings, SftTrainer
from terrella.engines.trl.step_budget import StepBudget
from terrella.engines.trl.trainer_progress import ShowProgress
from terrella.models.presets import load_model
from terrella.stages.agent_pay import AgentPay, PaidDriver
from terrella.stages.evaluate import Evaluate, evaluate_agent, known_policies
from terrella.stages.self_play import SelfPlay, collect_rows
from terrella.stages.shown_rows import script_of_form
from terrella.stages.tagged_rows import Script
from terrella.stages.tasks import AgentTasks


class Spa(Configurable):
    """The stage: `run` returns what was measured."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """A whole arm."""

        world: World.Config
        model: str = "tiny-0.3m"
        form: Form = "worldmodel"
        max_turns: int = 5
        max_actions: int = 5
        turn_tokens: int = 64
        format_rows: int = 0
        """Scripted episodes that teach a model from scratch the format; 0 for a model that can be told it."""
        format_sft: SftSettings.Config = field(default_factory=SftSettings.Config)
        self_play: SelfPlay.Config = field(default_factory=SelfPlay.Config)
        rlvr: RlvrSettings.Config = field(default_factory=RlvrSettings.Config)
        """`steps` 0 leaves RL out."""
        pay: AgentPay.Config = field(default_factory=AgentPay.Config)
        budget: int = 0
        """Real steps of the world, self-play and RL together; 0 leaves `rlvr.steps` to say when it ends."""
        glance: Evaluate.Config = field(default_factory=lambda: Evaluate.Config(instances=128, split=Split.VALIDATION))
        """A look after each part, on validation instances."""
        evaluate: Evaluate.Config = field(default_factory=Evaluate.Config)
        seats: Seats.Config = field(default_factory=Seats.Config)
        bases: Path = Path("runs/spa-bases")
        """Where models that know the format are kept: arms that differ later share them."""
        base_seed: int = 0
        """One base for all seeds, as a paper has one pretrained model: seeds vary self-play, SFT and RL."""
        seed: int = 0
        out: Path = Path("runs/spa")

    config: Config

    def run(self, progress: Progress) -> dict[str, Any]:
        """Each part once, the manifest last."""
        with locked(self.config.out):  # a job whose parent was killed goes on: two would undo each other's parts
            path = self.config.out / "manifest.json"
            return dict(json.loads(path.read_text("utf-8"))) if path.exists() else self._run(progress)

    def _run(self, progress: Progress) -> dict[str, Any]:
        config, out = self.config, self.config.out
        settle_plan(out, {"config": {k: v for k, v in dump(config).items() if k not in ("out", "bases")}})
        began = time.perf_counter()
        model, tokenizer = self._base(progress)
        codec = self.codec(tokenizer)
        driver = self.driver(codec)
        with contextlib.closing(driver.seats):
            found: dict[str, Any] = {"base": self._once("base.json", lambda: self._glance(driver, model, codec))}
            model, learnt = self._learn(driver, model, tokenizer, codec, progress)
            found["learnt"] = learnt
            model, found["rl"] = self._reinforce(driver, model, tokenizer, learnt["world_steps"], progress)
            model.eval()
            found["test"] = evaluate_agent(config.evaluate, driver, LocalSampler(model), codec)
        found["seconds"] = time.perf_counter() - began
        write_atomic(out / "manifest.json", json.dumps({"config": dump(config), **found}, indent=1).encode())
        return found

    def known(self) -> dict[str, Any]:
        """Random and optimal play on the instances of the evaluation."""
        return known_policies(self.config.world, self.config.evaluate)

    # --- what it is made of ------------------------------------------------------------------------------------------

    def codec(self, tokenizer: Any) -> TaggedCodec:
        """Tags over the template of a chat model, or over the interleaved format of our own."""
        config = self.config
        if getattr(tokenizer, "chat_template", None):
            told = ChatCodec(tokenizer, max_actions=config.max_actions, form=reply_form(config.form))
            return TaggedCodec(told, form=config.form, blank="\n")
        return TaggedCodec(InterleavedCodec(tokenizer), form=config.form)

    def driver(self, codec: TaggedCodec) -> PaidDriver:
        """One driver for self-play, RL and evaluation."""
        config = self.config
        limits = Driver.Config(
            world=config.world, max_turns=config.max_turns, max_actions=config.max_actions,
            turn_tokens=config.turn_tokens, seats=config.seats,
        )  # fmt: skip
        return PaidDriver(limits, codec, config.pay)

    def _once(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        path = self.config.out / name
        if not path.exists():
            write_atomic(path, json.dumps(measure()).encode())
        return dict(json.loads(path.read_text("utf-8")))

    def _glance(self, driver: Driver, model: Any, codec: TaggedCodec) -> dict[str, Any]:
        if not self.config.glance.instances:
            return {}
        model.eval()
        found = evaluate_agent(self.config.glance, driver, LocalSampler(model), codec)
        return {name: value for name, value in found.items() if name != "successes"}

    # --- parts -------------------------------------------------------------------------------------------------------

    def _base(self, progress: Progress) -> tuple[Any, Any]:
        """The model that plays first: as loaded, or one that was taught the format (made once, shared by arms)."""
        config = self.config
        if not config.format_rows:
            return load_model(config.model, seed=config.seed)
        folder = config.bases / self.base_name()
        with locked(folder, wait=True):
            if not (folder / "model" / "config.json").exists():
                self._teach_format(folder, progress)
        return load_model(str(folder / "model"))

    def base_name(self) -> str:
        """World, view, form and seed: what a base depends on; its plan says the rest."""
        world = self.config.world
        return f"{world.owner.__name__.lower()}-{world.view}-{self.config.form}-{self.config.base_seed}"

    def _teach_format(self, folder: Path, progress: Progress) -> None:
        config = self.config
        plan = {name: value for name, value in dump(config).items() if name in ("world", "model", "form", "format_rows",
                "format_sft", "max_turns", "max_actions", "base_seed")}  # fmt: skip
        settle_plan(folder, plan)
        world: World = config.world.build()
        world.reset(seed=0)
        model, tokenizer = load_model(config.model, words=(*world.words(), *TAG_WORDS), seed=config.base_seed)
        script = Script(max_turns=config.max_turns, max_actions=config.max_actions, truthful=False)
        seed, codec = config.base_seed, self.codec(tokenizer)
        rows = script_of_form(config.world, codec, script, count=config.format_rows, seed=seed).rows
        self._fit(model, tokenizer, config.format_sft.replace(seed=seed), rows, folder / "model", progress, "format")

    def _fit(
        self, model: Any, tokenizer: Any, settings: SftSettings.Config, rows: Sequence[Any], folder: Path,
        progress: Progress, phase: str,
    ) -> None:  # fmt: skip
        work = folder.with_name(f"{folder.name}-sft")
        SftTrainer(model, tokenizer, settings, rows, work, [ShowProgress(progress, phase)]).fit(folder)

    def _learn(
        self, driver: PaidDriver, model: Any, tokenizer: Any, codec: TaggedCodec, progress: Progress
    ) -> tuple[Any, dict[str, Any]]:
        """Self-play and SFT on it; the model as read back from its folder, and what it cost."""
        config, folder = self.config, self.config.out / "learnt"
        if not config.self_play.trajectories:
            return model, {"world_steps": 0}

        def learn() -> dict[str, Any]:
            model.eval()
            got = collect_rows(config.self_play, driver, LocalSampler(model), codec, seed=config.seed)
            sft = config.self_play.sft.replace(seed=config.seed)
            self._fit(model, tokenizer, sft, got.rows, folder, progress, "self-play")
            figures = self._glance(driver, load_model(str(folder))[0], codec)
            return {"world_steps": got.world_steps, "episodes": got.episodes, "rows": len(got.rows), **figures}

        figures = self._once("learnt.json", learn)
        return load_model(str(folder))[0], figures

    def _reinforce(
        self, driver: PaidDriver, model: Any, tokenizer: Any, spent: int, progress: Progress
    ) -> tuple[Any, dict[str, Any]]:
        config = self.config
        if not config.rlvr.steps:
            return model, {"world_steps": spent}
        driver.world_steps = 0
        budget = StepBudget(limit=config.budget, spent=spent, count=lambda: driver.world_steps)
        alarm = CollapseAlarm()
        trainer = RlvrTrainer(
            model, tokenizer, config.rlvr.replace(seed=config.seed, reward="return"), driver,
            AgentTasks(split=Split.TRAIN, seed=config.seed), config.out / "rl",
            [budget, alarm, ShowProgress(progress, "rl", budget)],
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=trainer.last_checkpoint())
        trainer.export(config.out / "model")
        curve = [row for row in trainer.state.log_history if "reward" in row]
        write_atomic(config.out / "curve.jsonl", "".join(json.dumps(row) + "\n" for row in curve).encode())
        figures = {"world_steps": budget.total, "iterations": trainer.state.global_step, "collapse": alarm.warning}
        return trainer.policy, figures

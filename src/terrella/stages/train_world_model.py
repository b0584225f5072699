"""`terrella train-world-model RECIPE`: collect real steps, fit a model to them, sharpen it with verified answers.

The folder holds the data (`data/`, an episode store), the fitted model (`fitted/`), the last one (`model/`) and a
manifest that says how many real steps were paid for. Each answer is the next observation, then reward and end.
    TrainWorldModel(lake_model().replace(out=Path("runs/lake"))).run(progress)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from terrella.codecs.outcome import OutcomeWords
from terrella.core.config import Configurable, dump
from terrella.core.protocols import Codec, Progress
from terrella.core.types import Episode, Situation, Transition
from terrella.core.world import World
from terrella.data.store import EpisodeStore, settle_plan, write_atomic
from terrella.engines.trl.packs import TrainingRow
from terrella.engines.trl.rlvr_settings import RlvrSettings
from terrella.engines.trl.sft_trainer import SftSettings, SftTrainer
from terrella.engines.trl.trainer_progress import ShowProgress
from terrella.models.export import export_model
from terrella.models.presets import load_model
from terrella.policies.basic import Mixture
from terrella.show.progress import make_progress, show_figures
from terrella.stages.collect import Collect
from terrella.stages.rlvr import Rlvr
from terrella.use.world_models import codec_for


class TrainWorldModel(Configurable):
    """The stage: `run` returns the manifest."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """A world model, from real steps to a folder of weights."""

        world: World.Config
        policy: Configurable.Config = field(default_factory=lambda: Mixture.Config(share=0.5))
        """Who takes the real steps: wide enough to meet what an agent will meet."""
        transitions: int = 12_000
        model: str = "tiny-0.3m"
        sft: SftSettings.Config = field(default_factory=SftSettings.Config)
        rlvr_steps: int = 0
        """Steps of RLVR after the fit; each asks about real steps of its own, which are counted."""
        rlvr: RlvrSettings.Config = field(default_factory=RlvrSettings.Config)
        turn_tokens: int = 64
        seed: int = 0
        out: Path = Path("runs/world_model")

    config: Config

    def run(self, progress: Progress) -> dict[str, Any]:
        """Collect, fit, sharpen, export; the manifest comes last. Run again, a whole folder is left as it is."""
        config, out = self.config, self.config.out
        out.mkdir(parents=True, exist_ok=True)
        settle_plan(out, {"config": {k: v for k, v in dump(config).items() if k != "out"}})
        if (out / "manifest.json").exists():
            return dict(json.loads((out / "manifest.json").read_text("utf-8")))
        self._collect(progress)
        self._fit(progress)
        answered = self._sharpen(progress)
        steps = sum(len(episode.transitions) for episode in self._episodes())
        manifest = {"config": dump(config), "real_steps": {"data": steps, "rlvr": answered}}
        write_atomic(out / "manifest.json", json.dumps(manifest, indent=1).encode())
        return manifest

    def _collect(self, progress: Progress) -> None:
        config = self.config
        wanted = Collect.Config(
            world=config.world, policy=config.policy, out=config.out / "data", transitions=config.transitions,
            seed=config.seed,
        )  # fmt: skip
        Collect(wanted).run(progress)

    def _episodes(self) -> Iterator[Episode]:
        return EpisodeStore.open(self.config.out / "data").episodes()

    def _fit(self, progress: Progress) -> None:
        """Cross-entropy on what really came of each step."""
        config, folder = self.config, self.config.out / "fitted"
        if (folder / "config.json").exists():
            return
        world: World = config.world.build()
        world.reset(seed=0)
        model, tokenizer = load_model(config.model, words=world.words(), seed=config.seed)
        rows = list(true_rows(world, codec_for(tokenizer), tokenizer, self._episodes()))
        settings = config.sft.replace(seed=config.seed)
        SftTrainer(model, tokenizer, settings, rows, config.out / "sft", [ShowProgress(progress, "fit")]).fit(folder)

    def _sharpen(self, progress: Progress) -> int:
        """RLVR on the observation; returns how many real steps its questions took."""
        config, fitted = self.config, self.config.out / "fitted"
        if not config.rlvr_steps:
            model, tokenizer = load_model(str(fitted))
            export_model(model, tokenizer, config.out / "model")
            return 0
        stage = Rlvr.Config(
            world=config.world, ask="observation", model=str(fitted), turn_tokens=config.turn_tokens, seed=config.seed,
            rlvr=config.rlvr.replace(steps=config.rlvr_steps), out=config.out / "sharpened",
        )  # fmt: skip
        Rlvr(stage).run(progress)
        model, tokenizer = load_model(str(stage.out / "model"))
        export_model(model, tokenizer, config.out / "model")
        # Each question is one step of an episode of its own; the steps before it are played too.
        return config.rlvr_steps * config.rlvr.groups * config.world.max_steps


def true_rows(world: World, codec: Codec, tokenizer: Any, episodes: Iterable[Episode]) -> Iterator[TrainingRow]:
    """Each step of each episode as a question, with what came of it as the answer."""
    words = OutcomeWords(tokenizer, codec.stop_ids)
    for episode in episodes:
        world.reset(seed=episode.seed, options={"split": episode.split, "noise_seed": episode.noise_seed})
        for place, step in enumerate(episode.transitions):
            situation = _situation(world, episode.transitions, place)
            prompt = codec.ask_observation(situation, step.action)
            success = step.terminated and bool(step.info.get("success"))
            reply = codec.answer_observation(step.next_observation)
            reply += words.answer(step.reward, step.terminated, success)
            yield TrainingRow(prompt_ids=prompt, completion_ids=reply, mask=(True,) * len(reply))


def _situation(world: World, steps: Sequence[Transition], place: int) -> Situation:
    return Situation(
        instruction=world.instruction, observation=steps[place].observation, actions=world.actions(),
        history=steps[:place], steps_left=world.config.max_steps - place,
    )  # fmt: skip


def run(config: TrainWorldModel.Config) -> dict[str, Any]:
    """Train with a display and say what was paid."""
    with make_progress() as progress:
        manifest = TrainWorldModel(config).run(progress)
    paid = manifest["real_steps"]
    show_figures(f"world model in {config.out}", [(f"real steps: {name}", f"{n:,}") for name, n in paid.items()])
    return manifest

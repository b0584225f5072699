"""`terrella evaluate POLICIES --in MODEL --against WORLD`: does a video model rank policies right?

Policies on pixels play the same held-out starts in the world and in the model. For each task: the
success of every policy in both, Pearson and Spearman, the mean absolute error, and the horizon up
to which frames can be trusted. Several models are several seeds: intervals are then over them. Each
task and model is a part, so a killed run continues; with other models, policies or videos the
folder is refused. Tasks are never pooled.
    PolicyEvaluation(PolicyEvaluation.Config(models=(run,), worlds={"push": world})).run(progress)
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from terrella.core.config import Local, Recorded, record_from_json
from terrella.core.errors import ConfigError, StoreError
from terrella.core.integrity import content_sha256, file_sha256
from terrella.core.metric import Metric
from terrella.core.run_folder import Manifest, RunFolder, is_run, read_manifest
from terrella.core.stats import CONFIDENCE
from terrella.core.world import World
from terrella.evals.video_policies import (
    HORIZON_ERROR,
    EvaluatePolicies,
    policy_files,
)
from terrella.models.configs import FrameTokenizerConfig
from terrella.pipelines.base import Pipeline
from terrella.pipelines.video.pipeline import VideoModel
from terrella.pipelines.video.recorded import recorded_model
from terrella.trust.horizon import least_reached
from terrella.world_models.video import codec_sha256


@dataclass(frozen=True, kw_only=True)
class PolicyScore:
    """Success of one policy; the mean over seeds."""

    policy: str
    real: Metric
    imagined: Metric


@dataclass(frozen=True, kw_only=True)
class TaskScores:
    """One world: what every seed measured, and the means over seeds."""

    policies: list[PolicyScore]
    pearson: Metric | None
    """None if all policies are equally good in the world or in the model, in every seed."""
    spearman: Metric | None
    mean_absolute_error: Metric
    safe_horizon: list[int]
    """For each seed, the steps up to which imagined frames hold, with confidence."""
    held: str
    """How far imagination holds, in a sentence. It is not a certificate: nothing bounds a step."""
    seeds: list[dict[str, Any]]
    """Results of each seed, with intervals over instances, inverted pairs, classifier and drift."""


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Hashes of what was evaluated: the settings have only paths, and those may change."""

    models: list[str]
    """One for each seed."""
    policies: str
    """Hash of the folder of policies, or the word "ladder"."""
    videos: str
    """Of the tokenizer and the action bins."""


@dataclass(frozen=True, kw_only=True)
class PolicyScores:
    """Task by task."""

    tasks: dict[str, TaskScores]
    evaluated: Evaluated


class PolicyEvaluation(Pipeline[PolicyScores]):
    """The command; see the module's docstring."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Pipeline.Config):
        models: Local[tuple[Path, ...]]
        """Runs of `terrella train-world-model`, one for each seed."""
        worlds: Recorded[Mapping[str, World.Config]]
        """The tasks, by name."""
        policies: Local[Path | None] = None
        """A folder of pixel policies (`NAME.safetensors`); None trains a ladder of clones."""
        videos: Local[Path | None] = None
        """The folder of the models' videos and tokenizer."""
        instances: int = 40
        """Held-out starts; every policy plays each of them in world and model."""
        temperature: float = 0.5
        window: int | None = None
        """Frames that the model sees before the last one; as many as it was fitted to, or fewer.

        Unless given: the frames of a clip that the last prediction of a clip was fitted upon.
        """
        train_episodes: int = 450
        """Episodes in the world, for the clones and for the classifier of success."""
        ages: tuple[int, ...] = (50, 300, 1000, 3000)
        """Updates after which a clone is a policy of the ladder."""
        shares: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
        """Shares of random steps with which the oldest clone is played, too."""
        classifier_steps: int = 1500
        depth: int = 0
        """Steps over which the drift is measured; 0 is to the end of the longest episode."""
        out: Path = Path("runs/evaluate-policies")

    config: Config
    result_type = PolicyScores
    ignored: ClassVar[tuple[str, ...]] = ("out", "models", "policies", "videos")

    def is_finished(self, manifest: Manifest) -> bool:
        """A finished evaluation is of the files that are there now, or is refused."""
        known = record_from_json(Evaluated, manifest.metrics.get("evaluated"))
        check_same_files(known, self.evaluated(self.model_runs()), self.config.out)
        return True

    def train(self, run: RunFolder) -> PolicyScores:
        runs = self.model_runs()
        now = self.evaluated(runs)
        known = run.part("evaluated", Evaluated, lambda: now)
        check_same_files(known, now, run.path)
        tasks = {}
        for name, world in self.config.worlds.items():
            rows = []
            for seed, (folder, config) in enumerate(runs):
                make = functools.partial(self.compare, world, folder, config, seed)
                rows.append(run.part(f"{_plain(name)}-{seed}", dict[str, Any], make))
            held = self.held([int(row["safe_horizon"]) for row in rows], world.max_steps)
            tasks[name] = task_scores(rows, held)
        return PolicyScores(tasks=tasks, evaluated=known)

    def evaluated(self, runs: Sequence[tuple[Path, VideoModel.Config]]) -> Evaluated:
        """Hashes of the files that the scores depend on."""
        folder = self.config.policies
        return Evaluated(
            models=[_model_sha256(run) for run, _ in runs],
            policies="ladder" if folder is None else _policies_sha256(folder),
            videos=codec_sha256(runs[0][1].videos.out),  # one folder for all of them
        )

    def model_runs(self) -> list[tuple[Path, VideoModel.Config]]:
        return [self.model_run(folder) for folder in self.config.models]

    def model_run(self, folder: Path) -> tuple[Path, VideoModel.Config]:
        """A finished run of a video model, and its settings."""
        if not is_run(folder):
            raise ConfigError(str(folder), "is not a finished run", "train a video model there")
        recorded = read_manifest(folder).config
        config = recorded_model(recorded, folder, videos=self.config.videos)
        videos = config.videos.out
        if not (videos / "tokenizer").is_dir():
            raise ConfigError(
                str(videos), "has no tokenizer", "name the folder with --set videos=FOLDER"
            )
        return folder, config

    def compare(
        self, world: World.Config, folder: Path, model: VideoModel.Config, seed: int
    ) -> dict[str, Any]:
        config = self.config
        check_frames(world, model.videos.trainer.tokenizer)
        return EvaluatePolicies(
            EvaluatePolicies.Config(
                world=world,
                videos=model.videos.out,
                model=folder / "model",
                policies=config.policies,
                joint_vocabulary=model.joint_vocabulary,
                starts=config.instances,
                temperature=config.temperature,
                window=window_of(model, config.window),
                train_episodes=config.train_episodes,
                ages=config.ages,
                shares=config.shares,
                classifier_steps=config.classifier_steps,
                depth=config.depth or world.max_steps,
                seed=config.seed + seed,
            )
        ).run()

    def held(self, horizons: Sequence[int], steps: int) -> str:
        """How far imagination holds, in the worst seed; an episode has `steps` at most."""
        starts, depth = self.config.instances, self.config.depth or steps
        needed = least_reached(HORIZON_ERROR)
        if starts < needed:
            return f"not known: {starts} starts, of {needed} that are needed"
        worst = min(*horizons, steps)
        if worst >= steps:
            end = "to the end of an episode"
        elif worst >= depth:
            end = f"not measured beyond step {depth}"
        else:
            end = "not to the end of an episode"
        return (
            f"{worst} of {steps} steps, {end} (worst of {len(horizons)} seeds; mean error at most "
            f"{HORIZON_ERROR:g} at {CONFIDENCE:.0%} confidence; no certificate)"
        )

    def summary(self, result: PolicyScores) -> list[tuple[str, str]]:
        rows = []
        for name, task in result.tasks.items():
            for each in task.policies:
                rows.append((f"{name}: {each.policy}", f"{each.real.mean:.3f} in the world"))
                rows.append(("", f"{each.imagined.mean:.3f} in the model"))
            for title in ("pearson", "spearman", "mean_absolute_error"):
                metric = getattr(task, title)
                shown = "not defined" if metric is None else f"{metric} seeds"
                rows.append((f"{name}: {title.replace('_', ' ')}", shown))
            horizons = ", ".join(map(str, task.safe_horizon))
            rows.append((f"{name}: safe horizon, seed by seed", horizons))
            rows.append((f"{name}: imagination holds for", task.held))
        return rows


def check_frames(world: World.Config, frames: FrameTokenizerConfig) -> None:
    """Refuse a world that draws frames of another size than the model was trained on."""
    size = getattr(world, "size", None)
    if size is None:
        return
    drawn = size, getattr(world, "columns", 0) or size
    wanted = frames.size, frames.columns or frames.size
    if drawn != wanted:
        fits = wanted[0] == wanted[1]
        raise ConfigError(
            "against",
            f"the world draws frames of {drawn[0]} x {drawn[1]}; the model was trained on frames "
            f"of {wanted[0]} x {wanted[1]}",
            f"--set world.size={wanted[0]}"
            if fits or hasattr(world, "columns")
            else "this world draws squares only: name one that draws frames of the model's size",
        )


def window_of(model: VideoModel.Config, asked: int | None) -> int:
    """Frames before the last one in a prompt: what the model was fitted to, unless fewer are asked.

    It was fitted to clips. Their last frame was predicted upon the frames of the clip's own prompt
    and upon all that the clip had before it.
    """
    fitted = model.window + model.horizon - 1
    if asked is not None and not 0 <= asked <= fitted:
        raise ConfigError(
            "window",
            f"is {asked}; the model was fitted to {fitted} frames before the last one "
            f"(window={model.window}, horizon={model.horizon})",
            f"set {fitted} at the most, or leave it out",
        )
    return fitted if asked is None else asked


def task_scores(rows: Sequence[dict[str, Any]], held: str) -> TaskScores:
    """The means over seeds of one task; policies are matched by their place."""
    names = [each["policy"] for each in rows[0]["policies"]]
    policies = [
        PolicyScore(
            policy=name,
            real=Metric.over_seeds([row["policies"][place]["real"] for row in rows]),
            imagined=Metric.over_seeds([row["policies"][place]["imagined"] for row in rows]),
        )
        for place, name in enumerate(names)
    ]
    return TaskScores(
        policies=policies,
        pearson=_over_seeds([row["pearson"]["value"] for row in rows]),
        spearman=_over_seeds([row["spearman"]["value"] for row in rows]),
        mean_absolute_error=Metric.over_seeds([row["mean_absolute_error"] for row in rows]),
        safe_horizon=[int(row["safe_horizon"]) for row in rows],
        held=held,
        seeds=list(rows),
    )


def _over_seeds(values: Sequence[float | None]) -> Metric | None:
    known = any(value is not None for value in values)
    return Metric.of(values, seeds=len(values)) if known else None


def _plain(name: str) -> str:
    return name.replace(":", "-").replace("/", "-")


def _model_sha256(folder: Path) -> str:
    """A hash of a run's files: the weights that were evaluated."""
    files = read_manifest(folder).files
    if not files:
        raise StoreError(
            str(folder),
            "its manifest has no hashes of files, so its model cannot be told from another",
            "train it again; earlier versions left hashes out where a name ends with -sft or -rlvr",
        )
    return content_sha256(files)


def _policies_sha256(folder: Path) -> str:
    """Hash of the networks by name: the names stand in the table."""
    return content_sha256({path.name: file_sha256(path) for path in policy_files(folder)})


def check_same_files(known: Evaluated, now: Evaluated, where: Path) -> None:
    """Refuse a folder that was begun with other models, policies or videos."""
    names = [each.name for each in fields(Evaluated)]
    changed = [name for name in names if getattr(known, name) != getattr(now, name)]
    if changed:
        raise StoreError(
            str(where),
            f"was started with other {' and '.join(changed)} than those named here",
            "choose another folder with --out",
        )

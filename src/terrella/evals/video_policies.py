"""Evaluates policies inside a video world model and compares the ranking with the simulator's.

A set of policies that act on frames alone (clones of the expert after several numbers of updates,
and the oldest clone with a share of random steps) plays held-out initial states twice: in the
simulator, where success is read from the state, and in the model, where a classifier detects it in
imagined frames. No human labels are needed. The result also has the drift by horizon and the safe
horizon.
    config = EvaluatePolicies.Config(world=Tabletop.Config(), videos=videos, model=model)
    EvaluatePolicies(config).run()["spearman"]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from terrella.codecs.frames import VideoTokenizer
from terrella.core.config import Configurable, Local
from terrella.core.errors import ConfigError
from terrella.core.types import Split
from terrella.core.world import World
from terrella.engines.engine import open_sampler
from terrella.evals.policy_eval import evaluate_policy
from terrella.evals.video_success import (
    PixelExample,
    fit_success,
    fitted_and_held_out,
    play_example,
    through_tokenizer,
)
from terrella.policies.basic import Mixture
from terrella.policies.pixels import Pixels
from terrella.trust.horizon import accuracy_bound, carried, mean_row, open_loop, safe_horizon
from terrella.trust.ranking import compare_rankings
from terrella.world_models.video import VideoWorldModel, imagined_video_world, read_codec

if TYPE_CHECKING:
    from terrella.models.pixel_nets import PixelNet

LEAST_POLICIES = 2
EXAMPLE_SHARES = (0.0, 0.4, 1.0)
"""Shares of random steps in the episodes that show a classifier what success is."""
NOISE_SHARE = 0.4
"""Share of random steps of the noisy expert whose episodes measure the drift."""
HORIZON_ERROR = 0.1
"""Mean error up to which imagined steps hold."""
CLASSIFIER_EPISODES = 30
"""Episodes on which the error of the classifier is measured."""


class EvaluatePolicies(Configurable):
    """The evaluation: `run` returns the comparison."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """One world, one model, and the policies to compare."""

        world: World.Config
        videos: Local[Path] = Path("runs/video_films")
        """The folder written by `TrainTokenizer`: tokenizer and action bins."""
        model: Local[Path] = Path("runs/video_table/model")
        joint_vocabulary: bool = False
        """Whether the model was trained with a joint vocabulary."""
        policies: Local[Path | None] = None
        """A folder of policies to compare (`NAME.safetensors`); None trains them as below."""
        train_episodes: int = 450
        """Training episodes in the simulator, for the clones and the classifier."""
        ages: tuple[int, ...] = (50, 300, 1000, 3000)
        """Numbers of updates after which a clone is saved as a policy."""
        shares: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
        """Shares of random steps with which the oldest clone is also played."""
        classifier_steps: int = 1500
        window: int = 6
        """Frames that the model sees before the last one; it must have been fitted to as many."""
        temperature: float = 0.5
        """Sampling temperature of imagined frames; small models drift less below 1."""
        starts: int = 40
        """Held-out initial states; every policy plays each once, in simulator and model."""
        depth: int = 12
        """Number of steps over which the drift is measured."""
        seed: int = 0

    config: Config

    def run(self) -> dict[str, Any]:
        """Train the policies and the classifier, play in both worlds, and measure the drift."""
        config = self.config
        codec = read_codec(config.videos, window=config.window, joint=config.joint_vocabulary)
        examples = self._examples()
        self._require_success(examples)
        policies = self._policies(examples)
        classifier, threshold = fit_success(
            examples, codec.tokenizer, steps=config.classifier_steps, seed=config.seed
        )
        model = VideoWorldModel(
            open_sampler(self.config.model, work=self.config.model.with_name("engine")),
            codec,
            lambda frames: classifier.read(frames)[:, 0] > threshold,
            seed=self.config.seed,
            temperature=self.config.temperature,
        )
        comparison = compare_rankings(
            [policy.name for policy in policies],
            real=self._play(policies, self.config.world.build),
            imagined=self._play(policies, lambda: imagined_video_world(self.config.world, model)),
            seed=self.config.seed,
        )
        return {
            **comparison,
            "classifier": self._classifier_error(classifier, threshold, codec.tokenizer),
            **self._drift(model),
        }

    # --- in the simulator, on training instances: examples, policies, classifier ------------------

    def _examples(self) -> list[PixelExample]:
        """Episodes of the expert, of a noisy expert and of random play, in turn.

        Without random play the classifier sees success where a bad policy only wanders about.
        """
        world = self.config.world.build()
        players = [Mixture.Config(share=share).build() for share in EXAMPLE_SHARES]
        first_seed = 10_000_000 + self.config.seed * 100_000
        return [
            play_example(world, players[n % len(players)], seed=first_seed + n, split=Split.TRAIN)
            for n in range(self.config.train_episodes)
        ]

    def _require_success(self, examples: Sequence[PixelExample]) -> None:
        """Refuse before anything is trained: the classifier must have seen what success is."""
        fitted, _ = fitted_and_held_out(examples)
        if not any(example.success.any() for example in fitted):
            raise ConfigError(
                str(self.config.world),
                f"none of {len(fitted)} training episodes of the expert succeeds, so nothing shows "
                "a classifier what success is",
                "raise train_episodes or the world's max_steps",
            )

    def _policies(self, examples: Sequence[PixelExample]) -> list[Pixels]:
        if self.config.policies is not None:
            return saved_policies(self.config.policies)
        from terrella.engines.frames.pixel_trainer import clone

        frames = np.concatenate([example.video[: len(example.actions)] for example in examples])
        actions = np.concatenate([example.actions for example in examples])
        nets = clone(frames, actions, ages=self.config.ages, seed=self.config.seed)
        oldest = nets[max(nets)]
        clones = [Pixels(net.read, f"clone of {age} updates") for age, net in nets.items()]
        noisy_clones = [
            Pixels(oldest.read, f"oldest, {share:g} random", share) for share in self.config.shares
        ]
        return clones + noisy_clones

    def _classifier_error(
        self, net: PixelNet, threshold: float, tokenizer: VideoTokenizer
    ) -> dict[str, Any]:
        """Error rates on true held-out frames: missed successes and false ones; None without any.

        Beside them, for each share of random steps, how many episodes were won and seen to be won:
        what the classifier alone adds to a policy's imagined success.
        """
        world = self.config.world.build()
        labels, detected, by_share = [], [], {}
        for share in EXAMPLE_SHARES:
            policy = Mixture.Config(share=share).build()
            examples = [
                play_example(world, policy, seed=seed, split=Split.VALIDATION)
                for seed in range(CLASSIFIER_EPISODES)
            ]
            seen = [
                net.read(through_tokenizer(tokenizer, example.video))[:, 0] > threshold
                for example in examples
            ]
            by_share[f"{share:g}"] = {
                "episodes_won": float(np.mean([example.success.any() for example in examples])),
                "episodes_seen_to_win": float(np.mean([each.any() for each in seen])),
            }
            labels += [example.success for example in examples]
            detected += seen
        true, found = np.concatenate(labels), np.concatenate(detected)
        return {
            "missed": float((~found[true]).mean()) if true.any() else None,
            "false": float(found[~true].mean()) if not true.all() else None,
            "frames": len(true),
            "by_random_share": by_share,
        }

    # --- on held-out initial states ---------------------------------------------------------------

    def _play(
        self, policies: Sequence[Pixels], make_world: Callable[[], World]
    ) -> NDArray[np.float64]:
        """Successes [policy, start]. All play in the same worlds, which may be slow to make."""
        seeds = range(self.config.starts)
        worlds = [make_world() for _ in seeds]
        results = [
            evaluate_policy(
                iter(worlds).__next__,
                policy,
                seeds=seeds,
                split=Split.TEST,
                num_envs=len(worlds),
            )
            for policy in policies
        ]
        return np.array([result.successes for result in results])

    def _drift(self, model: VideoWorldModel) -> dict[str, Any]:
        """Accuracy of imagined frames by depth, and the safe horizon."""
        world = self.config.world.build()
        policy = Mixture.Config(share=NOISE_SHARE).build()
        played = evaluate_policy(
            lambda: world, policy, seeds=range(self.config.starts), split=Split.TEST, num_envs=1
        )
        episodes = played.episodes
        by_depth = open_loop(
            model, episodes, world, self.config.depth, instructions=played.instructions
        )
        table = carried(by_depth, [len(episode.transitions) for episode in episodes])
        bounds = [accuracy_bound([values.tolist()]) for values in table.T]
        return {
            "drift": [
                {**mean_row(values), "bound": bound}
                for values, bound in zip(by_depth, bounds, strict=True)
            ],
            "safe_horizon": safe_horizon(
                bounds, [len(values) for values in by_depth], error=HORIZON_ERROR
            ),
        }


def saved_policies(folder: Path) -> list[Pixels]:
    """The policies of a folder, by name: networks that `PixelNet.save` wrote."""
    from terrella.models.pixel_nets import PixelNet

    paths = policy_files(folder)
    if len(paths) < LEAST_POLICIES:
        raise ConfigError(
            str(folder),
            f"has {len(paths)} policies (*.safetensors)",
            f"a ranking needs {LEAST_POLICIES} at least",
        )
    return [Pixels(PixelNet.load(path).read, path.stem) for path in paths]


def policy_files(folder: Path) -> list[Path]:
    """The networks of a folder of policies, by name."""
    return sorted(folder.glob("*.safetensors"))

"""Policies evaluated inside a video world model, against the simulator: does imagination rank them as reality does?

A ladder of policies that act on frames alone (cloned from the expert, at several ages, and with a share of random
steps) plays held-out beginnings twice: in the simulator, where success is read from the state, and in the model, where
a classifier reads it from imagined frames. No human looks. Beside the correlation stand the drift by horizon and the
safe horizon.
    EvaluatePolicies(EvaluatePolicies.Config(world=Tabletop.Config(), films=..., model=...)).run()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrella.core.config import Configurable
from terrella.core.episode import EpisodeRun
from terrella.core.types import Episode, Frames, Split
from terrella.core.world import World
from terrella.data.films import film_of, picture_of
from terrella.engines.sampling.local_sampler import LocalSampler
from terrella.engines.video.pixel_trainer import clone, fit_classifier
from terrella.models.pixel_nets import PixelNet
from terrella.models.presets import load_model
from terrella.policies.basic import Expert, Mixture
from terrella.policies.pixels import Pixels
from terrella.stages.video_model import read_codec
from terrella.trust.horizon import mean_row, open_loop, safe_horizon
from terrella.trust.ranking import compare_rankings
from terrella.use.policy_eval import evaluate_policy
from terrella.use.video_models import VideoWorldModel, dream

Pictures = NDArray[np.uint8]
ASIDE = 5
"""Every fifth lesson is kept aside: on these the score that counts as success is set."""


class EvaluatePolicies(Configurable):
    """The stage: `run` returns the comparison."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """One task, one model, a ladder of policies."""

        world: World.Config
        films: Path = Path("runs/video_films")
        """The folder of `TrainTokenizer`: tokenizer and action bins."""
        model: Path = Path("runs/video_table/model")
        lessons: int = 300
        """Episodes in the simulator, for cloning and for the classifier: train instances."""
        ages: tuple[int, ...] = (50, 300, 1000, 3000)
        """Updates after which a clone is kept."""
        shares: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
        """Shares of random steps that the oldest clone is also played with."""
        classifier_steps: int = 800
        window: int = 6
        temperature: float = 0.5
        """Of imagined frames: below 1 small models drift less."""
        starts: int = 40
        """Held-out beginnings; every policy plays each once, in the simulator and in the model."""
        depth: int = 12
        """How far the drift is measured."""
        seed: int = 0

    config: Config

    def run(self) -> dict[str, Any]:
        """Lessons, ladder, classifier, two rounds of play, drift."""
        codec = read_codec(self.config.films, window=self.config.window)
        lessons = self._lessons()
        policies = self._ladder(lessons)
        seer, threshold = self._seer(lessons, codec.tokenizer)
        sampler = LocalSampler(load_model(str(self.config.model))[0].eval())
        model = VideoWorldModel(sampler, codec, lambda f: seer.read(f)[:, 0] > threshold, seed=self.config.seed,
                                temperature=self.config.temperature)  # fmt: skip
        real, imagined = self._play(policies, self.config.world.build), self._play(policies, lambda: self._dream(model))
        found = compare_rankings([policy.name for policy in policies], real, imagined, seed=self.config.seed)
        return {**found, "classifier": self._classifier_error(seer, threshold, codec.tokenizer),
                **self._drift(model)}  # fmt: skip

    # --- in the simulator, on train instances: what policies and classifier learn from ----------------------------

    def _lessons(self) -> list[Lesson]:
        """Half expert, half noisy expert: frames with the expert's action for each, and whether each shows success."""
        world = self.config.world.build()
        noisy, expert = Mixture.Config(share=0.4).build(), Expert.Config().build()
        first = 10_000_000 + self.config.seed * 100_000
        return [
            play_lesson(world, noisy if n % 2 else expert, seed=first + n, split=Split.TRAIN)
            for n in range(self.config.lessons)
        ]

    def _ladder(self, lessons: Sequence[Lesson]) -> list[Pixels]:
        frames = np.concatenate([lesson.film[: len(lesson.actions)] for lesson in lessons])
        actions = np.concatenate([lesson.actions for lesson in lessons])
        nets = clone(frames, actions, ages=self.config.ages, seed=self.config.seed)
        oldest = nets[max(nets)]
        young = [Pixels(net.read, f"clone of {age} updates") for age, net in nets.items()]
        return young + [Pixels(oldest.read, f"oldest, {share:g} random", share) for share in self.config.shares]

    def _seer(self, lessons: Sequence[Lesson], tokenizer: Any) -> tuple[PixelNet, float]:
        """A classifier of frames as the model draws them (through ids and back), and the score that counts as success.

        One frame wrongly taken for success ends an episode, so the score is set by episodes: of those that the net did
        not learn from, as many reach it as truly succeeded. Set by frames, a few false ones let bad policies win.
        """
        drawn = [_through_ids(tokenizer, lesson.film) for lesson in lessons]
        learnt = [n for n in range(len(lessons)) if n % ASIDE]
        frames, labels = (np.concatenate([row[n] for n in learnt]) for row in (drawn, [x.success for x in lessons]))
        net = fit_classifier(frames, labels, steps=self.config.classifier_steps, seed=self.config.seed)
        best = [net.read(film)[:, 0].max() for film in drawn[::ASIDE]]
        won = float(np.mean([lesson.success.any() for lesson in lessons[::ASIDE]]))
        return net, float(np.quantile(best, 1.0 - won))

    def _classifier_error(self, net: PixelNet, threshold: float, tokenizer: Any) -> dict[str, float]:
        """On held-out episodes, frame by frame: what it misses, and what it sees that is not there."""
        world, policy = self.config.world.build(), Mixture.Config(share=0.4).build()
        lessons = [play_lesson(world, policy, seed=n, split=Split.VALIDATION) for n in range(30)]
        labels = np.concatenate([lesson.success for lesson in lessons])
        films = [net.read(_through_ids(tokenizer, lesson.film))[:, 0] > threshold for lesson in lessons]
        said = np.concatenate(films)
        return {
            "missed": float((~said[labels]).mean()), "false": float(said[~labels].mean()), "frames": len(labels),
            "episodes_won": float(np.mean([lesson.success.any() for lesson in lessons])),
            "episodes_seen_to_win": float(np.mean([film.any() for film in films])),
        }  # fmt: skip

    # --- on held-out beginnings -------------------------------------------------------------------------------------

    def _play(self, policies: Sequence[Pixels], make: Callable[[], World]) -> NDArray[np.float64]:
        """Successes [policy, start]."""
        seeds = range(self.config.starts)
        return np.array([
            evaluate_policy(make, policy, seeds=seeds, split=Split.TEST, side_by_side=len(seeds)).successes
            for policy in policies
        ])  # fmt: skip

    def _dream(self, model: VideoWorldModel) -> World:
        return dream(self.config.world, model)

    def _drift(self, model: VideoWorldModel) -> dict[str, Any]:
        """How the verdict on imagined frames falls with depth, and the depth to which it holds."""
        world, policy = self.config.world.build(), Mixture.Config(share=0.4).build()
        episodes = [_episode(world, policy, seed) for seed in range(self.config.starts)]
        rows = [mean_row(values) for values in open_loop(model, episodes, world, self.config.depth)]
        return {"drift": rows, "safe_horizon": safe_horizon(rows, error=0.1, least=10)}


@dataclass(frozen=True)
class Lesson:
    """A film (T + 1 frames), the expert's action at each of its first T, and whether each frame shows success."""

    film: Pictures
    actions: NDArray[np.float64]
    success: NDArray[np.bool_]


def play_lesson(world: World, policy: Any, *, seed: int, split: Split) -> Lesson:
    """Play an episode and ask the expert at every step what it would have done."""
    run = EpisodeRun(world, seed=seed, split=split, policy=policy.name)
    film, wanted, success = [picture_of(run.first)], [], [False]
    while not run.over:
        moment = run.moment
        wanted.append([float(number) for number in moment.expert().split()])
        step = run.advance(policy.act(moment))
        film.append(picture_of(step.next_observation))
        success.append(bool(step.info["success"]))
    return Lesson(np.stack(film), np.array(wanted), np.array(success))


def _through_ids(tokenizer: Any, film: Pictures) -> Pictures:
    """A film as a model that makes no mistake would draw it."""
    drawn: Pictures = tokenizer.read(film[0], tokenizer.write(film, film[0])[1])
    return drawn


def _episode(world: World, policy: Any, seed: int) -> Episode:
    run = EpisodeRun(world, seed=seed, split=Split.TEST, policy=policy.name)
    while not run.over:
        run.advance(policy.act(run.moment))
    assert isinstance(run.episode.first, Frames) and len(film_of(run.episode)) > 1
    return run.episode

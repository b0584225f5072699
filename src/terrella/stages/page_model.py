"""A page world model from recorded episodes: what changes on this page when that is done, and what the step earns.

The model reads a compact page and an action and writes the changes (`verify/tree_diff.py`), then reward and end. It is
fitted to recorded steps, then sharpened by RLVR on the same ones: no browser is needed for either.
    found = PageModel(PageModel.Config(train=Path("runs/pages/train"), test=Path("runs/pages/test"))).run(progress)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from terrella.codecs.interleaved import InterleavedCodec
from terrella.codecs.outcome import OutcomeWords
from terrella.core.config import Configurable, dump
from terrella.core.judge import judge
from terrella.core.protocols import Codec, Progress, Task, TokenRequest
from terrella.core.stats import mean_interval
from terrella.core.types import Episode, Situation, Split, Transition, Tree, show_text
from terrella.core.world import World
from terrella.data.store import EpisodeStore, settle_plan, write_atomic
from terrella.engines.sampling.local_sampler import LocalSampler
from terrella.engines.trl.packs import TrainingRow
from terrella.engines.trl.rlvr_settings import RlvrSettings
from terrella.engines.trl.sft_trainer import SftSettings, SftTrainer
from terrella.engines.trl.trainer_progress import ShowProgress
from terrella.models.presets import load_model
from terrella.stages.rlvr import Rlvr
from terrella.verify.tree import parse
from terrella.verify.tree_diff import TreeDiff, diff, write_changes

LONGEST_PAGE = 500
"""Characters of a page that a small model is asked about; longer ones are left out, and counted."""
LONGEST_CHANGE = 160
CHANGE_WORDS = ("^[", "~[", "+[", "-[", " focused", " -focused", ' value="', " checked", " -checked", " selected")
"""What changes are made of: worth a token each."""


class PageModel(Configurable):
    """The stage: `run` returns the figures on the test store."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Recorded episodes in, a folder of weights and figures out."""

        world: World.Config
        train: Path
        test: Path
        model: str = "tiny-0.3m"
        sft: SftSettings.Config = field(default_factory=SftSettings.Config)
        rlvr: RlvrSettings.Config = field(default_factory=RlvrSettings.Config)
        turn_tokens: int = 64
        seed: int = 0
        out: Path = Path("runs/page_model")

    config: Config

    def run(self, progress: Progress) -> dict[str, Any]:
        """Fit, sharpen, and measure each on held-out steps beside what needs no model."""
        config, out = self.config, self.config.out
        out.mkdir(parents=True, exist_ok=True)
        settle_plan(out, {"config": {k: v for k, v in dump(config).items() if k != "out"}})
        if (out / "figures.json").exists():
            return dict(json.loads((out / "figures.json").read_text("utf-8")))
        train, test = steps_of(config.train), steps_of(config.test)
        self._fit(train, progress)
        found = {"train_steps": len(train), "test_steps": len(test), "baselines": baselines(test),
                 "sft": measure(out / "fitted", test, config.turn_tokens)}  # fmt: skip
        if config.rlvr.steps:
            self._sharpen(train, progress)
            found["rlvr"] = measure(out / "sharpened" / "model", test, config.turn_tokens)
        write_atomic(out / "figures.json", json.dumps(found, indent=1).encode())
        return found

    def _fit(self, steps: Sequence[Transition], progress: Progress) -> None:
        config, folder = self.config, self.config.out / "fitted"
        if (folder / "config.json").exists():
            return
        words = (*config.world.build().words(), *CHANGE_WORDS)
        model, tokenizer = load_model(config.model, words=tuple(dict.fromkeys(words)), seed=config.seed)
        rows = list(change_rows(steps, InterleavedCodec(tokenizer), tokenizer))
        settings, callbacks = config.sft.replace(seed=config.seed), [ShowProgress(progress, "fit")]
        SftTrainer(model, tokenizer, settings, rows, config.out / "sft", callbacks).fit(folder)

    def _sharpen(self, steps: Sequence[Transition], progress: Progress) -> None:
        config = self.config
        stage = Rlvr.Config(
            world=config.world, ask="observation", model=str(config.out / "fitted"), turn_tokens=config.turn_tokens,
            evaluate_on=64, rlvr=config.rlvr, seed=config.seed, out=config.out / "sharpened",
        )  # fmt: skip
        RecordedRlvr(stage, steps).run(progress)


class RecordedRlvr(Rlvr):
    """RLVR whose questions are recorded steps; the last tenth of them is what it validates on."""

    def __init__(self, config: Rlvr.Config, steps: Sequence[Transition]) -> None:
        """`steps` are the train split's."""
        super().__init__(config)
        kept = len(steps) * 9 // 10
        self.recorded = {Split.TRAIN: steps[:kept], Split.VALIDATION: steps[kept:]}

    def tasks(self, split: Split) -> Callable[[int], Task]:
        """Question i: a recorded step, all of them in turn, in an order that the number decides."""
        steps = self.recorded[split]

        def task(index: int) -> Task:
            step = steps[(index * 7919 + self.config.seed) % len(steps)]
            return Task(seed=index, split=split, situation=situation_of(step), transition=step)

        return task


def steps_of(folder: Path) -> list[Transition]:
    """The steps of a store that a small model can be asked about, each once."""
    found: dict[tuple[str, str], Transition] = {}
    for episode in EpisodeStore.open(folder).episodes():
        for step in _short_steps(episode):
            found.setdefault((show_text(step.observation), step.action), step)
    return list(found.values())


def _short_steps(episode: Episode) -> Iterator[Transition]:
    for step in episode.transitions:
        if len(show_text(step.observation)) <= LONGEST_PAGE and len(changes_of(step)) <= LONGEST_CHANGE:
            yield step


def changes_of(step: Transition) -> str:
    """What a step changed, as a model is to say it."""
    old = parse(show_text(step.observation))
    return write_changes(diff(old, parse(show_text(step.next_observation))), old)


def situation_of(step: Transition) -> Situation:
    """Where a recorded step began."""
    return Situation(instruction="", observation=step.observation, actions=(), history=(), steps_left=1)


def change_rows(steps: Sequence[Transition], codec: Codec, tokenizer: Any) -> Iterator[TrainingRow]:
    """Each step as a question, with its changes and what it earned as the answer."""
    words = OutcomeWords(tokenizer, codec.stop_ids)
    for step in steps:
        prompt = codec.ask_observation(situation_of(step), step.action)
        success = step.terminated and bool(step.info.get("success"))
        reply = codec.answer_observation(Tree(changes_of(step)))
        reply += words.answer(step.reward, step.terminated, success)
        yield TrainingRow(prompt_ids=prompt, completion_ids=reply, mask=(True,) * len(reply))


# --- figures ------------------------------------------------------------------------------------------------------


def measure(folder: Path, steps: Sequence[Transition], turn_tokens: int) -> dict[str, Any]:
    """Greedy answers of a model to these questions, judged."""
    model, tokenizer = load_model(str(folder))
    sampler, codec = LocalSampler(model.eval()), InterleavedCodec(tokenizer)

    async def ask() -> list[str]:
        requests = [
            TokenRequest(prompt_ids=codec.ask_observation(situation_of(step), step.action), max_new_tokens=turn_tokens,
                         seed=0, temperature=0.0, stop_ids=codec.stop_ids)
            for step in steps
        ]  # fmt: skip
        told = await asyncio.gather(*map(sampler.sample, requests))
        return [codec.text(one.token_ids[:-1]) if one.stopped else "" for one in told]

    return figures(steps, asyncio.run(ask()))


def figures(steps: Sequence[Transition], replies: Sequence[str]) -> dict[str, Any]:
    """Value, F1 and exact, over all steps and over those that changed the page, with intervals."""
    verifier = TreeDiff.Config().build()
    found: dict[str, Any] = {}
    judged = [
        judge(verifier, reply=Tree(reply), truth=step.next_observation, before=step.observation)
        for step, reply in zip(steps, replies, strict=True)
    ]
    for part, chosen in (("all", None), ("changed", True), ("unchanged", False)):
        some = [
            v for v, s in zip(judged, steps, strict=True) if chosen is None or bool(len(changes_of(s)) > 1) == chosen
        ]
        found[part] = {"n": len(some), "unparsable": sum(v.status == "unparsable" for v in some)}
        for name in ("value", "f1", "exact"):
            values = [v.value or 0.0 if name == "value" else v.parts.get(name, 0.0) for v in some]
            low, high = mean_interval(values) if len(values) > 1 else (0.0, 1.0)
            found[part][name] = {"mean": sum(values) / max(len(values), 1), "low": low, "high": high}
    return found


def baselines(steps: Sequence[Transition]) -> dict[str, Any]:
    """What needs no model: nothing happens, the page copied, the words "None"."""
    return {
        "no_change": figures(steps, ["="] * len(steps)),
        "copy_of_the_page": figures(steps, [show_text(step.observation) for step in steps]),
        "none": figures(steps, ["New items:\nNone\nDeleted items:\nNone\nUpdated items:\nNone"] * len(steps)),
    }

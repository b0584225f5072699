"""A small web agent from recorded successes, and the comparison of acting with and without imagined pages.

`WebPolicy` fits an agent to the steps of recorded episodes that succeeded; `SampledProposals` asks it several times at
once and counts. `compare_agents` plays the same instances with each arm: proposals alone, one step and two steps ahead.
    rows = compare_agents(LookAhead.Config(policy=..., page_model=Path("runs/page_model/model")), Path("mpc.jsonl"))
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from terrella.codecs.interleaved import InterleavedCodec
from terrella.core.config import Configurable
from terrella.core.episode import play
from terrella.core.protocols import TokenRequest
from terrella.core.types import Episode, Situation, Split, show_text
from terrella.core.world import World
from terrella.data.store import EpisodeStore
from terrella.engines.sampling.local_sampler import LocalSampler
from terrella.engines.trl.packs import TrainingRow
from terrella.engines.trl.sft_trainer import SftSettings, SftTrainer
from terrella.models.presets import load_model
from terrella.stages.page_model import LONGEST_PAGE, situation_of
from terrella.use.plan_web import PageCodec, PagePlanner
from terrella.use.world_models import LearnedWorldModel
from terrella.worlds.miniwob.env import MiniWob, legal


class WebPolicy(Configurable):
    """Imitation of what succeeded."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """Recorded episodes in, a folder of weights out."""

        world: World.Config
        train: Path
        model: str = "tiny-0.3m"
        sft: SftSettings.Config = field(default_factory=SftSettings.Config)
        seed: int = 0
        out: Path = Path("runs/web_policy")

    config: Config

    def fit(self) -> Path:
        """The folder of the model; fitted once."""
        config, folder = self.config, self.config.out / "model"
        if (folder / "config.json").exists():
            return folder
        model, tokenizer = load_model(config.model, words=config.world.build().words(), seed=config.seed)
        codec = InterleavedCodec(tokenizer)
        rows = [row for episode in EpisodeStore.open(config.train).episodes() for row in _good_steps(episode, codec)]
        SftTrainer(model, tokenizer, config.sft.replace(seed=config.seed), rows, config.out / "sft").fit(folder)
        return folder


def _good_steps(episode: Episode, codec: InterleavedCodec) -> list[TrainingRow]:
    """Steps of a success that did something to the page, or ended it."""
    if episode.outcome.value != 1.0:
        return []
    rows = []
    for step in episode.transitions:
        if (step.changed or step.terminated) and len(show_text(step.observation)) <= LONGEST_PAGE:
            reply = codec.answer_action([step.action])
            prompt = codec.ask_action(situation_of(step))
            rows.append(TrainingRow(prompt_ids=prompt, completion_ids=reply, mask=(True,) * len(reply)))
    return rows


class SampledProposals:
    """Asks a policy model `samples` times per page, all at once; what it says oftenest comes first."""

    def __init__(self, folder: Path, *, samples: int = 8, turn_tokens: int = 40, seed: int = 0) -> None:
        """One greedy answer and the others drawn."""
        model, tokenizer = load_model(str(folder))
        self.sampler, self.codec = LocalSampler(model.eval()), InterleavedCodec(tokenizer)
        self.samples, self.turn_tokens, self.seed, self.calls = samples, turn_tokens, seed, 0

    def propose(self, situations: Sequence[Situation]) -> list[list[tuple[str, float]]]:
        """(action, share of the samples) for each page; only actions that the page offers."""
        return asyncio.run(self._ask_all(situations))

    async def _ask_all(self, situations: Sequence[Situation]) -> list[list[tuple[str, float]]]:
        return list(await asyncio.gather(*map(self._ask, situations)))

    async def _ask(self, situation: Situation) -> list[tuple[str, float]]:
        prompt = self.codec.ask_action(situation)
        requests = [
            TokenRequest(prompt_ids=prompt, max_new_tokens=self.turn_tokens, seed=self.seed * 1000 + n,
                         temperature=1.0 if n else 0.0, stop_ids=self.codec.stop_ids)
            for n in range(self.samples)
        ]  # fmt: skip
        self.calls += self.samples
        told = await asyncio.gather(*map(self.sampler.sample, requests))
        said = [actions[0] for one in told if (actions := self.codec.read_actions(one.token_ids))]
        counts = Counter(action for action in said if action in situation.actions)
        if not counts:  # nothing that the page offers: the first candidate is as good as any
            counts.update(situation.actions[:1])
        total = counts.total()
        return [(action, count / total) for action, count in counts.most_common()]


class LookAhead(Configurable):
    """What is compared."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """A policy, a page model, and the depths."""

        policy: WebPolicy.Config
        page_model: Path
        depths: tuple[int, ...] = (0, 1, 2)
        episodes: int = 100
        split: Split = Split.TEST
        samples: int = 2
        """Answers of the page model per question."""
        planner: PagePlanner.Config = field(default_factory=PagePlanner.Config)


def compare_agents(config: LookAhead.Config, log: Path) -> list[dict[str, Any]]:
    """The same instances with each depth, instance by instance; what the log already holds is not played again."""
    proposals = SampledProposals(WebPolicy(config.policy).fit())
    world, model = MiniWob.Config(max_steps=6, families=trained_families(config)).build(), _page_model(config)
    rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.exists() else []
    known = {(row["arm"], row["seed"]) for row in rows}
    for seed in range(config.episodes):
        for depth in config.depths:
            arm = f"depth {depth}"
            if (arm, seed) in known:
                continue
            agent = PagePlanner(config.planner.replace(depth=depth), proposals, model, legal)
            episode = play(world, agent, seed=seed, split=config.split)
            rows.append({"arm": arm, "seed": seed, "success": episode.outcome.value, "steps": len(episode.transitions),
                         "calls": agent.spent.calls, "family": world.family, "error": episode.error})  # fmt: skip
            with log.open("a", encoding="utf-8") as out:
                out.write(json.dumps(rows[-1]) + "\n")
    return rows


def trained_families(config: LookAhead.Config) -> tuple[str, ...]:
    """The families that the policy has seen: it is their held-out seeds that are played."""
    from terrella.worlds.miniwob.families import held_out
    from terrella.worlds.miniwob.scripts import SCRIPTS

    return held_out(Split.TRAIN, tuple(sorted(SCRIPTS)))


def _page_model(config: LookAhead.Config) -> LearnedWorldModel:
    model, tokenizer = load_model(str(config.page_model))
    return LearnedWorldModel(
        LocalSampler(model.eval()), PageCodec(tokenizer), tokenizer, samples=config.samples, turn_tokens=64
    )

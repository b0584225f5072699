"""One arm of a text-game world model, one seed: SFT on recorded rows, RLVR on verified answers, every test row asked.

Rows that start from one state share its tokens: in training a state is read once for all actions asked about it. The
base (SFT) is kept in `bases` and shared by the arms of a seed. Run again, the folder goes on where it was killed.
    GameModel(bytesized32_tiny().arms["exact"].replace(out=Path("runs/x"))).run(progress)
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from terrella.codecs.chat_tokens import ChatCodec
from terrella.core.config import Configurable, dump
from terrella.core.errors import ConfigError, EngineError
from terrella.core.protocols import Codec, Progress
from terrella.core.types import Split, canonical_json
from terrella.data.store import locked, settle_plan, write_atomic
from terrella.engines.trl.rlvr_settings import RlvrSettings
from terrella.engines.trl.sft_trainer import Row, SftSettings, SftTrainer
from terrella.engines.trl.trainer_progress import ShowProgress
from terrella.models.presets import load_model
from terrella.policies.endpoint import Endpoint
from terrella.stages.game_rows import answered, bundles
from terrella.stages.game_scores import ask_all, baseline_marks, figures
from terrella.stages.reasoned_rows import reasoned_rows
from terrella.stages.rlvr import Rlvr
from terrella.use.world_models import codec_for
from terrella.worlds.bytesized32 import ByteSized32
from terrella.worlds.bytesized32.records import Record

BASE_FIELDS = ("model", "sft_share", "states", "actions", "reasons", "sft", "seed")
"""What makes two bases the same, beside the world."""
BASELINES = ("no_change", "nearest_neighbour", "nearest_neighbour_inside_tables")


class GameModel(Configurable):
    """The stage: `run` returns what was measured."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        """A whole arm."""

        world: ByteSized32.Config
        model: str = "tiny-1m"
        """A model, or a baseline that needs none: no_change, nearest_neighbour, nearest_neighbour_inside_tables."""
        sft_share: float = 1.0
        """Share of the train questions that SFT may see; RLVR asks all of them."""
        states: int = 4000
        """Bundles of SFT: a state and `actions` questions about it."""
        actions: int = 12
        reasons: Endpoint.Config | None = None
        """A teacher for chat models: SFT fits its thoughts and answers, where the verifier finds them right."""
        sft: SftSettings.Config = field(default_factory=SftSettings.Config)
        rlvr: RlvrSettings.Config = field(default_factory=lambda: RlvrSettings.Config(steps=0))
        """`steps` 0 leaves RLVR out."""
        turn_tokens: int = 48
        test_rows: int = 0
        """Test rows that are asked, evenly chosen; 0 asks all."""
        bases: Path = Path("runs/game-bases")
        base_seed: int | None = None
        """The seed of SFT where arms of all seeds share one base, as a paper has one; None fits a base per seed."""
        seed: int = 0
        out: Path = Path("runs/game_model")

    config: Config

    def run(self, progress: Progress) -> dict[str, Any]:
        """Each part once, the manifest last."""
        config, out = self.config, self.config.out
        out.mkdir(parents=True, exist_ok=True)
        settle_plan(out, {"config": {k: v for k, v in dump(config).items() if k not in ("out", "bases")}})
        if (out / "manifest.json").exists():
            return dict(json.loads((out / "manifest.json").read_text("utf-8")))
        began = time.perf_counter()
        marks, rl = self._baseline() if config.model in BASELINES else self._trained(progress)
        world: ByteSized32 = config.world.build()
        manifest = {
            "config": dump(config), "test": figures(world, self._rows(world), marks), "rl": rl, "learnt": {},
            "marks": "".join(marks),
            "seconds": time.perf_counter() - began,
        }  # fmt: skip
        write_atomic(out / "manifest.json", json.dumps(manifest, indent=1).encode())
        return manifest

    def _rows(self, world: ByteSized32) -> list[Record]:
        rows = world.pools[Split.TEST]
        return list(rows[:: max(1, len(rows) // (self.config.test_rows or len(rows)))])

    def _baseline(self) -> tuple[list[str], dict[str, Any]]:
        world: ByteSized32 = self.config.world.build()
        return baseline_marks(world, self._rows(world), self.config.model), {"world_steps": 0}

    def _trained(self, progress: Progress) -> tuple[list[str], dict[str, Any]]:
        folder = self._base(progress)
        rl: dict[str, Any] = {"world_steps": 0}
        if self.config.rlvr.steps:
            rl = self._sharpen(folder, progress)
            folder = self.config.out / "sharpened" / "model"
        return self._asked(folder), rl

    def known(self) -> dict[str, Any]:
        """Nothing is played here: what needs no model is an arm of its own."""
        return {}

    # --- SFT ----------------------------------------------------------------------------------------------------------

    def _base(self, progress: Progress) -> Path:
        """The model after SFT: made once per seed, whichever arm comes first."""
        config = self.config
        parts = {k: v for k, v in dump(config).items() if k in BASE_FIELDS}
        parts["seed"] = self._sft_seed
        parts["world"] = {k: v for k, v in dump(config.world).items() if k not in ("reward", "path")}
        name = hashlib.sha256(canonical_json(parts).encode()).hexdigest()[:12]
        folder = config.bases / f"sft-{name}"
        config.bases.mkdir(parents=True, exist_ok=True)
        with locked(config.bases, wait=True):
            if not (folder / "config.json").exists():
                self._fit(folder, progress)
        return folder

    @property
    def _sft_seed(self) -> int:
        return self.config.seed if self.config.base_seed is None else self.config.base_seed

    def _fit(self, folder: Path, progress: Progress) -> None:
        config = self.config
        world: ByteSized32 = config.world.build()
        seed = self._sft_seed
        model, tokenizer = load_model(config.model, words=world.words(), seed=seed)
        chosen = bundles(world, states=config.states, actions=config.actions, share=config.sft_share, seed=seed)
        rows = self._sft_rows(world, codec_for(tokenizer), chosen, folder)
        settings = config.sft.replace(seed=seed)
        log = folder.with_name(folder.name + "-trainer")
        SftTrainer(model, tokenizer, settings, rows, log, [ShowProgress(progress, "fit")]).fit(folder)

    def _sft_rows(self, world: ByteSized32, codec: Codec, chosen: Iterable[list[Record]], folder: Path) -> list[Row]:
        if self.config.reasons is None:
            return [answered(world, codec, records) for records in chosen]
        if not isinstance(codec, ChatCodec):
            raise ConfigError(
                "reasons", "reasoning text is for chat models", "choose a chat model, or leave reasons out"
            )
        asked, teacher = [record for records in chosen for record in records], self.config.reasons.build()
        rows, counts = reasoned_rows(world, codec, asked, teacher.complete)
        write_atomic(folder.with_name(f"{folder.name}-teacher.json"), json.dumps(counts).encode())
        if not rows:
            raise EngineError("reasons", f"the teacher was never right: {dict(counts)}", "choose a better one")
        return list(rows)

    # --- RLVR ---------------------------------------------------------------------------------------------------------

    def _sharpen(self, base: Path, progress: Progress) -> dict[str, Any]:
        config = self.config
        stage = Rlvr.Config(
            world=config.world, ask="observation", model=str(base), turn_tokens=config.turn_tokens, seed=config.seed,
            rlvr=config.rlvr, evaluate_on=min(128, config.test_rows or 128), out=config.out / "sharpened",
        )  # fmt: skip
        found = Rlvr(stage).run(progress)
        curve = [json.loads(line) for line in (stage.out / "curve.jsonl").read_text("utf-8").splitlines()]
        return {"world_steps": config.rlvr.steps * config.rlvr.groups, "validation": [found["before"], found["after"]],
                "curve": [round(row["reward"], 4) for row in curve]}  # fmt: skip

    # --- every test row -----------------------------------------------------------------------------------------------

    def _asked(self, folder: Path) -> list[str]:
        model, tokenizer = load_model(str(folder))
        world: ByteSized32 = self.config.world.replace(reward="exact").build()
        limit = self.config.turn_tokens
        return ask_all(world, self._rows(world), model.eval(), codec_for(tokenizer), turn_tokens=limit)

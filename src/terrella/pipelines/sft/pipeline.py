"""`terrella sft DATA`: fit a model to examples, with the loss on held-out rows before and after.

DATA is an episode store, a JSONL or Parquet file of conversations, or a folder of such files. The
folder of the run holds the tokenised examples (`examples/`), the model (`model/`) and a manifest
that says how many rows were read, held out and left out.
    Sft(Sft.Config(data=Path("chats.jsonl"), model="smollm2", out=Path("runs/sft"))).run(progress)
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from terrella.codecs.chat_template import Thinking
from terrella.codecs.choose import CodecConfig
from terrella.codecs.outcome import OutcomeCodec
from terrella.core.config import Local
from terrella.core.errors import ConfigError, StoreError
from terrella.core.integrity import LISTING, content_sha256, file_sha256
from terrella.core.metric import Metric
from terrella.core.protocols import Codec, Progress
from terrella.core.run_folder import MANIFEST, SPEC, RunFolder
from terrella.core.world import World
from terrella.data.chat_rows import Columns, chat_files, columns_read, count_rows
from terrella.data.example_file import ExampleFile
from terrella.data.store import EpisodeStore
from terrella.engines.configs import LearnerConfig, MemoryConfig, SftConfig
from terrella.engines.engine import load_tokenizer, max_positions, start_model
from terrella.engines.interface import Model
from terrella.pipelines.base import ModelPipeline
from terrella.pipelines.sft.rows import (
    TRAIN,
    VALIDATION,
    ChatSource,
    Learn,
    RowCounts,
    RowWriter,
    StoreSource,
)
from terrella.pipelines.store_examples import Scenes

VALIDATION_BATCH = 16
"""Examples in one call of the learner, between two updates of the display."""


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Cross-entropy per learnt token on held-out examples: of the start, and of the trained model.

    What one row asks is one value: the steps of an episode and all answers to a question are
    averaged first. `gain` is over the differences of pairs.
    """

    before: Metric
    after: Metric
    gain: Metric


@dataclass(frozen=True, kw_only=True)
class SftResult:
    """What was learnt from, and what it changed."""

    rows: RowCounts
    validation: Validation | None = None
    """None where nothing was held out, or where the engine computes no losses of its own."""
    loss: list[float] = field(default_factory=list[float])
    """Of training, as the engine logged it."""


class Sft(ModelPipeline[SftResult]):
    """Supervised fine-tuning on any examples."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelPipeline.Config):
        data: Local[Path]
        """An episode store, a file that ends with .jsonl or .parquet, or a folder of such files."""
        model: Local[str] = "smollm2"
        learn: Learn | None = None
        """Of a store: the actions (agent), or what follows them (world-model)."""
        world: World.Config | None = None
        """The world of the store; none for recordings and conversations."""
        successful: bool = False
        """Of a store: only episodes that reached their goal."""
        outcome: bool = False
        """Of a world model: also the reward and the end, as `train-world-model` fits them."""
        columns: Columns = field(default_factory=Columns)
        """Which columns of a file are read, where their names are not the usual ones."""
        thinking: Thinking | None = None
        """Whether a chat model is asked to think before it answers.

        None is off for a store, whose steps hold no thoughts, and auto for conversations.
        """
        max_actions: int = 1
        """Actions that an agent's prompt allows in a reply; a recorded reply holds one."""
        max_tokens: int = 2048
        """Longer examples are left out and counted; never more than the model's positions."""
        sft: SftConfig = field(
            default_factory=lambda: SftConfig(
                batch_size=16, learning_rate=1e-4, pack_tokens=2048, save_every=50
            )
        )
        validation_share: float = 0.05
        """Of the rows, by a hash of what they ask; they are not trained on."""
        evaluate_on: int = 256
        """Held-out examples whose loss is computed, before and after; chosen by a hash."""
        out: Path = Path("runs/sft")

        def __post_init__(self) -> None:
            super().__post_init__()
            if not 0.0 <= self.validation_share < 1.0:
                raise ConfigError("validation_share", f"{self.validation_share} is not in [0, 1)")
            if self.max_tokens < 1 or self.evaluate_on < 0:
                raise ConfigError("sft", "max_tokens must be at least 1, evaluate_on at least 0")

    config: Config
    result_type = SftResult

    def __init__(self, config: Config) -> None:
        """The config says how the model is asked: its manifest tells whoever samples it."""
        thinking: Thinking = config.thinking or ("auto" if config.learn is None else "off")
        super().__init__(config.replace(thinking=thinking))

    def train(self, run: RunFolder) -> SftResult:
        start = self.start(run)
        rows = run.part("rows", RowCounts, lambda: self.write_examples(run, start))
        self.check_source(rows)
        if not rows.train_examples:
            raise ConfigError(
                str(self.config.data),
                f"no row is left to train on: {_why(rows)}",
                _remedy(rows, positions=max_positions(start)),
            )
        before = self.losses(run, "before", start)
        baseline = sum(before) / len(before) if before else None
        loss = run.part("fit", list[float], lambda: self.fit(run, start, baseline), collective=True)
        after = self.losses(run, "after", run / "model")
        groups = ExampleFile(run / "examples" / VALIDATION).groups[: len(before)]
        return SftResult(rows=rows, validation=_validation(before, after, groups), loss=loss)

    # --- parts ------------------------------------------------------------------------------------

    def start(self, run: RunFolder) -> Model:
        """The model to start from; one from scratch is made with the words of the world."""
        config = self.config
        vocabulary: tuple[str, ...] = ()
        if config.world is not None:
            world: World = config.world.build()
            world.reset(seed=0)
            vocabulary = tuple(world.vocabulary())
        return start_model(config.model, run / "start", vocabulary=vocabulary, seed=config.seed)

    def write_examples(self, run: RunFolder, start: Model) -> RowCounts:
        """Tokenise every row once, into `examples/`."""
        config = self.config
        tokenizer = load_tokenizer(start)
        limit = min(config.max_tokens, max_positions(start))
        writer = RowWriter(run / "examples", limit=limit, share=config.validation_share)
        counts = RowCounts(source_sha256=source_sha256(config.data), left_out={})
        if is_store(config.data):
            store = EpisodeStore.open(config.data)
            source: StoreSource | ChatSource = self._store_source(store, tokenizer)
            total = len(store)
        else:
            thinking = self.codec_config().thinking
            source = ChatSource(
                config.data, config.columns, tokenizer, limit=limit, thinking=thinking
            )
            counts = replace(counts, columns=columns_read(config.data, config.columns))
            total = count_rows(config.data)
        run.progress.phase("read rows", total)
        counts = writer.write(source.rows(), counts, run.progress.advance)
        conversation = getattr(source, "conversation", None)
        empty = conversation.empty_thoughts if conversation else 0
        return replace(counts, empty_thoughts=empty)

    def _store_source(self, store: EpisodeStore, tokenizer: Any) -> StoreSource:
        config = self.config
        if config.learn is None:
            raise ConfigError("learn", "a store can teach two things", "--as agent or world-model")
        codec = self._codec(tokenizer)
        return StoreSource(
            store,
            Scenes(config.world.build() if config.world else None),
            codec,
            learn=config.learn,
            successful=config.successful,
            outcome=OutcomeCodec(tokenizer, codec.stop_ids) if config.outcome else None,
        )

    def _codec(self, tokenizer: Any) -> Codec:
        """The codec that rollouts of this model use; it refuses a model that has none."""
        return self.codec_config().make(tokenizer)

    def codec_config(self) -> CodecConfig:
        config = self.config
        return CodecConfig(max_actions=config.max_actions, thinking=config.thinking or "auto")

    def check_source(self, rows: RowCounts) -> None:
        """Refuse to continue with other data than the run began with."""
        if source_sha256(self.config.data) != rows.source_sha256:
            raise StoreError(
                str(self.config.data),
                f"has changed since {self.config.out} read it",
                "choose another --out for the new data",
            )

    def fit(self, run: RunFolder, start: Model, baseline: float | None) -> list[float]:
        """Train on all ranks; the display shows the held-out loss of the start beside the loss."""
        return self.engine.sft(
            start,
            ExampleFile(run / "examples" / TRAIN),
            self.config.sft,
            run / "model",
            seed=self.config.seed,
            progress=_BesideBaseline(run.progress, baseline),
        )

    def losses(self, run: RunFolder, name: str, model: Model) -> list[float]:
        """Mean cross-entropy of each held-out example's learnt tokens; a part that is made once."""
        return run.part(name, list[float], lambda: self._losses(run, name, model), collective=True)

    def _losses(self, run: RunFolder, name: str, model: Model) -> list[float]:
        held_out = ExampleFile(run / "examples" / VALIDATION)[: self.config.evaluate_on]
        if not held_out or self.config.engine == "tinker":  # it has no learner
            return []
        # What stays fixed in training stays fixed here: DDP copies the gradients of all the rest.
        # New adapters change no log-probability.
        settings = {each.name: getattr(self.config.sft, each.name) for each in fields(MemoryConfig)}
        config = LearnerConfig(**settings)
        found: list[float] = []
        run.progress.phase(f"held-out loss {name}", len(held_out))
        run.progress.advance(0)
        work = run / "engine" / f"loss-{name}"
        with self.engine.learner(model, config=config, work=work) as learner:
            for first in range(0, len(held_out), VALIDATION_BATCH):
                batch = held_out[first : first + VALIDATION_BATCH]
                scored = learner.forward(batch)
                found += [
                    -sum(logprobs) / sum(example.mask)
                    for logprobs, example in zip(scored, batch, strict=True)
                ]
                run.progress.advance(len(found), loss=sum(found) / len(found))
        return found

    def summary(self, result: SftResult) -> list[tuple[str, str]]:
        rows = result.rows.summary()
        scored = result.validation
        if scored is None:
            rows.append(("held-out loss", "not computed"))
        else:
            rows += [
                ("held-out loss before", str(scored.before)),
                ("held-out loss after", str(scored.after)),
                ("gain, pairs", str(scored.gain)),
            ]
        return [*rows, ("model", str(self.config.out / "model"))]


class _BesideBaseline:
    """A display with the loss of the start beside that of each step."""

    def __init__(self, progress: Progress, baseline: float | None) -> None:
        self.progress = progress
        self.beside = {} if baseline is None else {"held_out_before": baseline}

    def phase(self, name: str, total: int) -> None:
        self.progress.phase(name, total)

    def advance(self, done: int, **metrics: float) -> None:
        self.progress.advance(done, **metrics, **(self.beside if metrics else {}))

    def note(self, text: str) -> None:
        self.progress.note(text)


def is_store(data: Path) -> bool:
    """Whether this is a folder of episodes, whole or not; imported conversations are listed."""
    if (data / LISTING).exists():
        return False
    return (data / MANIFEST).exists() or (data / SPEC).exists()


def source_sha256(data: Path) -> str:
    """One hash for all that is read."""
    if is_store(data):
        return EpisodeStore.open(data).sha256
    return content_sha256({path.name: file_sha256(path) for path in chat_files(data)})


def _validation(before: list[float], after: list[float], groups: list[int]) -> Validation | None:
    if not before:
        return None
    old, new = _group_means(before, groups), _group_means(after, groups)
    gains = [first - second for first, second in zip(old, new, strict=True)]
    return Validation(before=Metric.of(old), after=Metric.of(new), gain=Metric.of(gains))


def _group_means(values: list[float], groups: list[int]) -> list[float]:
    by_group: dict[int, list[float]] = {}
    for value, group in zip(values, groups, strict=True):
        by_group.setdefault(group, []).append(value)
    return [sum(part) / len(part) for part in by_group.values()]


def _why(rows: RowCounts) -> str:
    reasons = {f"longer than {rows.limit:,} tokens": rows.too_long, **rows.left_out}
    if rows.validation:
        reasons["held out"] = rows.validation
    said = [f"{count:,} {reason}" for reason, count in reasons.items() if count]
    return f"{rows.read:,} rows, {', '.join(said) or 'none usable'}"


def _remedy(rows: RowCounts, *, positions: int) -> str:
    """`positions` is what the model reads: a higher `max_tokens` than that changes nothing."""
    if not rows.too_long:
        return "lower validation_share" if rows.validation else "check the data"
    if rows.limit >= positions:
        return (
            f"the model reads no more than {positions:,} tokens, whatever max_tokens is: shorten "
            "the rows, or choose a model with more positions (--model, and another --out)"
        )
    # Rows that are far too long are not even tokenised: `longest` says nothing about them.
    wanted = min(rows.longest, positions) if rows.longest > rows.limit else positions
    return f"raise it, with another --out: --set max_tokens={wanted}"

"""From a data set to training examples on disk: what was read, what was left out, and why.

Rows are tokenised once, by the codec that the model is sampled with, and written as they come. An
example that is too long is left out and counted; none is cut. Held-out rows are chosen by a hash of
what is asked. A row may ask several questions, as an episode does of a world model; those that the
train part also asks are dropped, so that the same question is never in both parts.
    writer = RowWriter(run / "examples", limit=2048, share=0.05)
    counts = writer.write(rows, RowCounts(source_sha256=sha256, left_out={}), show)
"""

from __future__ import annotations

import hashlib
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from terrella.codecs.chat_template import Thinking
from terrella.codecs.chat_tokens import ChatCodec
from terrella.codecs.conversation import Conversation, plain_example
from terrella.codecs.outcome import OutcomeCodec
from terrella.core.errors import StoreError
from terrella.core.protocols import Codec
from terrella.core.tokens import TrainExample
from terrella.core.types import canonical_json
from terrella.data.chat_rows import ChatRow, Columns, read_chat_rows
from terrella.data.example_file import ExampleFile, ExampleWriter
from terrella.data.store import EpisodeStore
from terrella.pipelines.store_examples import Scenes, imitation_example, prediction_examples

Learn = Literal["agent", "world-model"]
TRAIN, VALIDATION, HELD_OUT = "train", "validation", "held_out"
"""Parts of an examples folder; the last one only exists until the validation part is chosen."""
CHARACTERS_PER_TOKEN = 200
"""A row with more characters than this for every token that fits is not tokenised at all."""
SHOW_EVERY = 50
"""Rows between two updates of the display."""


class Row(NamedTuple):
    """What one row or one episode gives."""

    key: str
    """What is asked: rows with one key are in the same part."""
    examples: list[TrainExample]
    left_out: str = ""
    """Why it gives nothing, other than its length."""


@dataclass(frozen=True, kw_only=True)
class RowCounts:
    """What became of the rows of a data set. A row is a conversation or an episode."""

    source_sha256: str
    columns: str = ""
    """The columns that were read."""
    read: int = 0
    train: int = 0
    validation: int = 0
    too_long: int = 0
    """Examples of more than `limit` tokens. They are left out; none is cut."""
    longest: int = 0
    """Tokens of the longest example that was tokenised, left out or not."""
    limit: int = 0
    left_out: dict[str, int]
    """Other rows that give nothing, by reason."""
    train_examples: int = 0
    validation_examples: int = 0
    asked_in_train: int = 0
    """Held-out examples that were dropped, because the train part asks the same."""
    tokens: int = 0
    targets: int = 0
    """Of the train part: all tokens, and those that are learnt."""
    empty_thoughts: int = 0
    """Replies without a thought, of a model that thinks; the empty thought is not learnt."""

    def summary(self) -> list[tuple[str, str]]:
        rows = [("rows", f"{self.read:,} read, {self.train:,} train, {self.validation:,} held out")]
        if self.columns:
            rows.append(("columns", self.columns))
        if self.too_long:
            what = f"{self.too_long:,} examples, left out (the longest of all: {self.longest:,})"
            rows.append((f"longer than {self.limit:,} tokens", what))
        if self.asked_in_train:
            what = f"{self.asked_in_train:,} held-out examples, dropped"
            rows.append(("train asks the same", what))
        rows += [(reason, f"{count:,} rows, left out") for reason, count in self.left_out.items()]
        if self.empty_thoughts:
            what = f"{self.empty_thoughts:,}; the empty thought before them is not learnt"
            rows.append(("replies without a thought", what))
        share = self.targets / max(1, self.tokens)
        return [*rows, ("tokens", f"{self.tokens:,}, of which {share:.0%} are learnt")]


class RowWriter:
    """Writes rows into the parts of an examples folder."""

    def __init__(self, folder: Path, *, limit: int, share: float) -> None:
        """`limit` is the most tokens of an example, `share` the part of the rows held out."""
        self.folder = folder
        self.limit = limit
        self.share = share

    def write(
        self, rows: Iterable[Row], counts: RowCounts, show: Callable[[int], None]
    ) -> RowCounts:
        """Write all rows and count them; `counts` says where they are from."""
        reasons: dict[str, int] = {}
        train, held = ExampleWriter(self.folder / TRAIN), ExampleWriter(self.folder / HELD_OUT)
        asked, held_asked, groups = array("Q"), array("Q"), dict[str, int]()
        number = too_long = longest = 0
        kept = {TRAIN: 0, VALIDATION: 0}
        with train, held:
            for number, row in enumerate(rows, start=1):
                short = [each for each in row.examples if _length(each) <= self.limit]
                longest = max([longest, *map(_length, row.examples)])
                too_long += len(row.examples) - len(short) + (row.left_out == TOO_LONG)
                if short:
                    part = VALIDATION if is_held_out(row.key, self.share) else TRAIN
                    kept[part] += 1
                    into, questions = (held, held_asked) if part == VALIDATION else (train, asked)
                    group = groups.setdefault(row.key, len(groups)) if part == VALIDATION else 0
                    for example in short:
                        into.add(example, group)
                        questions.append(_question(example))
                elif not row.examples and row.left_out != TOO_LONG:
                    reason = row.left_out or NOTHING
                    reasons[reason] = reasons.get(reason, 0) + 1
                if number % SHOW_EVERY == 0:
                    show(number)
        show(number)
        validation = self._choose_validation(np.array(held_asked), np.array(asked))
        return replace(
            counts,
            read=number,
            train=kept[TRAIN],
            validation=kept[VALIDATION],
            too_long=too_long,
            longest=longest,
            limit=self.limit,
            left_out=reasons,
            train_examples=train.count,
            validation_examples=validation,
            asked_in_train=held.count - validation,
            tokens=train.tokens,
            targets=train.targets,
        )

    def _choose_validation(self, held: np.ndarray, asked: np.ndarray) -> int:
        """Write the held-out examples that train does not ask, by hash; returns their number.

        The first ones are scored (`evaluate_on`): in the file's order they would be of few rows.
        """
        examples = ExampleFile(self.folder / HELD_OUT)
        new = ~np.isin(held, asked)
        with ExampleWriter(self.folder / VALIDATION) as validation:
            for index in np.argsort(held, kind="stable").tolist():
                if new[index]:
                    validation.add(examples[index], examples.groups[index])
        shutil.rmtree(self.folder / HELD_OUT)
        return validation.count


NOTHING = "nothing to learn"
BROKEN = "broken episode"
UNSUCCESSFUL = "not successful"
TOO_LONG = "too long"


def _length(example: TrainExample) -> int:
    return len(example.prompt_ids) + len(example.completion_ids)


def _question(example: TrainExample) -> int:
    """A hash of what an example gives: its prompt, and the later tokens that are not learnt."""
    later = (
        n for n, learnt in zip(example.completion_ids, example.mask, strict=True) if not learnt
    )
    given = np.array((*example.prompt_ids, *later), "<i4").tobytes()
    return int.from_bytes(hashlib.sha256(given).digest()[:8], "big")


def is_held_out(key: str, share: float) -> bool:
    """Whether a row is for validation: a function of what it asks, whatever else is in the file."""
    digest = hashlib.sha256(f"sft validation\n{key}".encode()).digest()
    return int.from_bytes(digest[:4], "big") < share * 2**32


# --- sources --------------------------------------------------------------------------------------


class ChatSource:
    """Rows of conversations; a tokenizer without a chat template takes pairs of texts only."""

    def __init__(
        self,
        source: Path,
        columns: Columns,
        tokenizer: Any,
        *,
        limit: int,
        thinking: Thinking = "auto",
    ) -> None:
        self.source = source
        self.columns = columns
        self.tokenizer = tokenizer
        self.limit = limit
        self.conversation: Conversation | None = None
        if getattr(tokenizer, "chat_template", None):
            self.conversation = Conversation(ChatCodec(tokenizer, thinking=thinking))

    def rows(self) -> Iterator[Row]:
        for row in read_chat_rows(self.source, self.columns):
            key = canonical_json([[each.role, each.content] for each in row.prompt])
            characters = sum(len(message.content) for message in row.messages)
            if characters > self.limit * CHARACTERS_PER_TOKEN:
                yield Row(key, [], TOO_LONG)
                continue
            yield Row(key, self._examples(row))

    def _examples(self, row: ChatRow) -> list[TrainExample]:
        try:
            if self.conversation is None:
                return [plain_example(self.tokenizer, row.messages)]
            return self.conversation.examples(row.messages)
        except StoreError as error:
            raise StoreError(f"{row.where}: {error.where}", error.what, error.remedy) from error


class StoreSource:
    """Episodes of a store, for an agent or for a world model."""

    def __init__(
        self,
        store: EpisodeStore,
        scenes: Scenes,
        codec: Codec,
        *,
        learn: Learn,
        successful: bool,
        outcome: OutcomeCodec | None,
    ) -> None:
        """With `successful`, only episodes that reached their goal are learnt."""
        self.store = store
        self.scenes = scenes
        self.codec = codec
        self.learn = learn
        self.successful = successful
        self.outcome = outcome

    def rows(self) -> Iterator[Row]:
        for episode in self.store.episodes():
            if episode.stop.is_broken:
                yield Row(episode.instance, [], BROKEN)
            elif self.successful and episode.outcome.value != 1.0:
                yield Row(episode.instance, [], UNSUCCESSFUL)
            elif self.learn == "agent":
                example = imitation_example(self.scenes, self.codec, episode)
                yield Row(episode.instance, [example] if example else [])
            else:
                yield Row(
                    episode.instance,
                    list(
                        prediction_examples(self.scenes, self.codec, episode, outcome=self.outcome)
                    ),
                )

"""Recorded steps of web pages as SFT examples: a page and an action, and the changes as the answer.

for example in change_examples(load_steps(Path("runs/pages/train")), codec, tokenizer): ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from terrella.codecs.outcome import OutcomeCodec
from terrella.core.protocols import Codec, Tokenizer
from terrella.core.tokens import TrainExample
from terrella.core.types import Episode, Situation, Transition, Tree, show_text
from terrella.data.store import EpisodeStore
from terrella.verify.tree import parse
from terrella.verify.tree_diff import diff, write_changes

MAX_PAGE = 500
"""Characters of a page that a small model is asked about; longer pages are left out."""
MAX_CHANGES = 160
"""Characters of an answer."""
CHANGE_TOKENS = (
    "^[",
    "~[",
    "+[",
    "-[",
    " focused",
    " -focused",
    ' value="',
    " checked",
    " -checked",
    " selected",
)
"""Frequent parts of changes; each becomes a token of its own."""


def load_steps(folder: Path) -> list[Transition]:
    """The steps of a store that a small model can be asked about, each of them once."""
    steps: dict[tuple[str, str], Transition] = {}
    for episode in EpisodeStore.open(folder).episodes():
        for step in _short_steps(episode):
            steps.setdefault((show_text(step.observation), step.action), step)
    return list(steps.values())


def _short_steps(episode: Episode) -> Iterator[Transition]:
    for step in episode.transitions:
        if len(show_text(step.observation)) <= MAX_PAGE and len(changes_of(step)) <= MAX_CHANGES:
            yield step


def changes_of(step: Transition) -> str:
    """The changes of a step in the form in which a model writes them."""
    old = parse(show_text(step.observation))
    return write_changes(diff(old, parse(show_text(step.next_observation))), old)


def situation_of(step: Transition) -> Situation:
    """The situation before a recorded step."""
    return Situation(
        instruction="", observation=step.observation, actions=(), history=(), steps_left=1
    )


def change_examples(
    steps: Sequence[Transition], codec: Codec, tokenizer: Tokenizer
) -> Iterator[TrainExample]:
    """One example per step; the answer is its changes, then its reward and whether it ended."""
    outcome_codec = OutcomeCodec(tokenizer, codec.stop_ids)
    for step in steps:
        success = step.terminated and bool(step.info.get("success"))
        reply = codec.answer_observation(Tree(changes_of(step)))
        reply += outcome_codec.answer(step.reward, step.terminated, success)
        yield TrainExample(
            prompt_ids=codec.ask_observation(situation_of(step), step.action),
            completion_ids=reply,
            mask=(True,) * len(reply),
        )

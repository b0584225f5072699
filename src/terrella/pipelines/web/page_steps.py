"""Recorded steps of web pages: which of them a model is asked about, and as SFT examples.

A question with its answer must fit into the model's context. A page that does not fit is refused,
left out or cut, as the settings say; what was left out or cut is counted by name.
    selected = StepSelection(store=store, model="smollm2", context_tokens=1024).load()
    selected.steps, selected.counts.left_out
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from terrella.codecs.choose import sft_targets
from terrella.codecs.outcome import MAX_OUTCOME_TOKENS, OutcomeCodec
from terrella.codecs.pages import PageChatCodec, PageCodecConfig, PageForm
from terrella.core.config import Configurable, Local
from terrella.core.errors import ConfigError, StoreError
from terrella.core.protocols import Codec, Tokenizer
from terrella.core.tokens import TrainExample
from terrella.core.types import Situation, Transition, Tree, show_text
from terrella.data.store import EpisodeStore
from terrella.engines.engine import load_tokenizer, max_positions
from terrella.engines.interface import Examples
from terrella.pipelines.shared_prompt import share_prompt
from terrella.pipelines.web.page_cut import cut_step, most_that_fit
from terrella.verify.page_sections import PageSections, write_sections
from terrella.verify.tree import parse
from terrella.verify.tree_diff import TreeDiff, diff, write_changes

LongPages = Literal["refuse", "leave_out", "cut"]
"""What happens to a page that does not fit into the context."""
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
VERIFIERS: dict[PageForm, Configurable.Config] = {
    "changes": TreeDiff.Config(),
    "sections": PageSections.Config(),
}
TOO_LONG, NOT_CUT = "page longer than the context", "page that cannot be cut"
LONG_ANSWER = "answer longer than turn_tokens"
LONG_PAGE_TEXT, LONG_CHANGE_TEXT = "page_characters", "change_characters"


@dataclass(frozen=True, kw_only=True)
class StepCounts:
    """What became of the recorded steps."""

    recorded: int
    repeated: int
    """The same action on the same page: asked about once."""
    kept: int
    cut: int
    """Steps of which a part of the page is shown."""
    hidden: int
    """Steps with a change outside of the part that is shown."""
    left_out: dict[str, int]
    """By reason."""
    longest_prompt: int
    """Tokens, of the steps that were kept."""
    limit: int
    """Tokens that a question and its answer may have together."""


@dataclass(frozen=True)
class SelectedSteps:
    """The steps that a model is asked about."""

    steps: list[Transition]
    counts: StepCounts


@dataclass(frozen=True, kw_only=True)
class StepSelection(Configurable.Config):
    """Where recorded steps are, and which of them a model is asked about."""

    store: Local[Path]
    model: Local[str]
    """Its tokenizer counts."""
    codec: PageCodecConfig = field(default_factory=PageCodecConfig)
    turn_tokens: int = 64
    context_tokens: int = 0
    """Most tokens of a question and its answer; 0 is what the model can read."""
    long_pages: LongPages = "refuse"
    page_characters: int = 0
    """Leave out longer pages; 0 sets no bound."""
    change_characters: int = 0
    """Leave out steps with a longer answer; 0 sets no bound."""
    most: int = 0
    """At most as many steps, evenly chosen before all else; 0 takes all."""
    training: bool = True
    """Leave out steps whose answer is longer than a reply may be; a test asks about them, too."""

    def load(self) -> SelectedSteps:
        """Read the store and choose. The same settings always choose the same steps."""
        return _Selector(self).select()


class _Selector:
    def __init__(self, selection: StepSelection) -> None:
        self.selection = selection
        tokenizer = load_tokenizer(selection.model)
        self.codec = selection.codec.make(tokenizer)
        positions = max_positions(selection.model)
        self.limit = selection.context_tokens or positions
        if self.limit > positions:
            raise ConfigError(
                "context_tokens",
                f"{self.limit} are asked for, {selection.model} reads {positions}",
                f"set at most {positions}",
            )
        self.left_out: Counter[str] = Counter()
        self.cut = self.hidden = self.longest = 0

    def select(self) -> SelectedSteps:
        recorded = 0
        unique: dict[tuple[str, str], Transition] = {}
        for episode in EpisodeStore.open(self.selection.store).episodes():
            recorded += len(episode.transitions)
            for step in episode.transitions:
                unique.setdefault((show_text(step.observation), step.action), step)
        found = list(unique.values())
        count = min(self.selection.most or len(found), len(found))
        asked = [found[i * len(found) // count] for i in range(count)]
        steps = [kept for step in asked if (kept := self._keep(step)) is not None]
        if not steps:
            raise StoreError(
                str(self.selection.store),
                f"no step is left of {recorded}: {dict(self.left_out)}",
                "set long_pages=cut, or larger context_tokens and turn_tokens",
            )
        counts = StepCounts(
            recorded=recorded,
            repeated=recorded - len(unique),
            kept=len(steps),
            cut=self.cut,
            hidden=self.hidden,
            left_out=dict(self.left_out),
            longest_prompt=self.longest,
            limit=self.limit,
        )
        return SelectedSteps(steps, counts)

    def _keep(self, step: Transition) -> Transition | None:
        selection = self.selection
        changes = changes_of(step, selection.codec.form)
        for bound, text, reason in (
            (selection.page_characters, show_text(step.observation), LONG_PAGE_TEXT),
            (selection.change_characters, changes, LONG_CHANGE_TEXT),
        ):
            if bound and len(text) > bound:
                self.left_out[reason] += 1
                return None
        shown = step if self._fits(step) else self._shorten(step)
        if shown is None:
            return None
        if selection.training and self._answer_tokens(shown) > selection.turn_tokens:
            self.left_out[LONG_ANSWER] += 1
            return None
        if shown is not step:
            self.cut += 1
            self.hidden += _count_changes(shown) < _count_changes(step)
        self.longest = max(self.longest, self._prompt_tokens(shown))
        return shown

    def _shorten(self, step: Transition) -> Transition | None:
        """What the settings say about a page that does not fit."""
        needed = self._prompt_tokens(step) + self._room
        if self.selection.long_pages == "refuse":
            page = show_text(step.observation)[:80]
            raise StoreError(
                str(self.selection.store),
                f"a page needs {needed} tokens with its answer, the context has {self.limit}: "
                f"{page!r}",
                "set a larger context_tokens, or long_pages=cut or leave_out",
            )
        if self.selection.long_pages == "leave_out":
            self.left_out[TOO_LONG] += 1
            return None
        lines = show_text(step.observation).count("\n") + 1
        most = most_that_fit(lines, lambda keep: self._fits_cut(step, keep))
        shown = cut_step(step, most) if most else None
        if shown is None:
            self.left_out[NOT_CUT] += 1
        return shown

    def _fits_cut(self, step: Transition, keep: int) -> bool:
        shown = cut_step(step, keep)
        return shown is not None and self._fits(shown)

    def _fits(self, step: Transition) -> bool:
        return self._prompt_tokens(step) + self._room <= self.limit

    @property
    def _room(self) -> int:
        """Tokens of the longest reply, and of the outcome that follows it."""
        return self.selection.turn_tokens + MAX_OUTCOME_TOKENS

    def _prompt_tokens(self, step: Transition) -> int:
        return len(self.codec.ask_observation(situation_of(step), step.action))

    def _answer_tokens(self, step: Transition) -> int:
        answer = Tree(changes_of(step, self.selection.codec.form))
        return len(self.codec.answer_observation(answer))


def changes_of(step: Transition, form: PageForm = "changes") -> str:
    """The changes of a step in the form in which a model writes them."""
    old, new = parse(show_text(step.observation)), parse(show_text(step.next_observation))
    return write_sections(old, new) if form == "sections" else write_changes(diff(old, new), old)


def _count_changes(step: Transition) -> int:
    return len(diff(parse(show_text(step.observation)), parse(show_text(step.next_observation))))


def situation_of(step: Transition) -> Situation:
    """The situation before a recorded step."""
    return Situation(
        instruction="", observation=step.observation, actions=(), history=(), steps_left=1
    )


# --- SFT ------------------------------------------------------------------------------------------


def change_examples(
    steps: Sequence[Transition],
    codec: Codec,
    tokenizer: Tokenizer,
    form: PageForm = "changes",
) -> Iterator[TrainExample]:
    """One example per step; the answer is its changes, then its reward and whether it ended."""
    outcome_codec = OutcomeCodec(tokenizer, codec.stop_ids)
    for step in steps:
        success = step.terminated and bool(step.info.get("success"))
        reply = codec.answer_observation(Tree(changes_of(step, form)))
        outcome = outcome_codec.answer(step.reward, step.terminated, success)
        yield TrainExample(
            prompt_ids=codec.ask_observation(situation_of(step), step.action),
            completion_ids=reply + outcome,
            mask=sft_targets(codec, reply) + (True,) * len(outcome),
        )


def page_examples(
    steps: Sequence[Transition], codec: Codec, tokenizer: Tokenizer, form: PageForm
) -> Examples:
    """The examples of SFT; those of a chat model about one page stay together and share it."""
    examples = list(change_examples(steps, codec, tokenizer, form))
    if not isinstance(codec, PageChatCodec):
        return examples
    pages: dict[str, list[TrainExample]] = {}
    for step, example in zip(steps, examples, strict=True):
        pages.setdefault(show_text(step.observation), []).append(example)
    return [share_prompt(about) for about in pages.values()]

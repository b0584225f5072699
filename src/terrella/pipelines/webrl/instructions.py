"""A curriculum that writes: new instructions from failures, screened before they are practised.

The writer is the actor itself, a model behind an endpoint, or the world's own templates. What it
writes is untrusted. An instruction must be new (also against held-out tasks), the world must be
able to do it, and a model may be asked as well. It is practised with the world's check where the
world can make one; without a check only an outcome model can judge it. Every fate is kept.
    written = InstructionWriter(config).write(record, rollout, models, count=20, rng=rng, ...)
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from terrella.core.bounds import check_least, check_share
from terrella.core.config import Configurable, Local
from terrella.core.errors import ConfigError
from terrella.core.written_tasks import InstructionWorld
from terrella.data.attempts import PracticeTask
from terrella.pipelines.webrl.duplicates import LEAST, Measure, duplicates
from terrella.pipelines.webrl.proposers import MAX_SEED, FailedTask, PracticeRecord
from terrella.policies.endpoint import Endpoint
from terrella.rollout.batch_rollout import BatchRollout

Complete = Callable[[str, int], str]
"""(prompt, seed) -> the text of a reply."""
Fate = Literal["proposed", "repeated", "infeasible", "refused", "unchecked"]
FATES: dict[Fate, str] = {
    "proposed": "goes on to the critic",
    "repeated": "says the same as a known instruction, of any split, or as another new one",
    "infeasible": "the world cannot do it",
    "refused": "a model finds that it cannot be done",
    "unchecked": "the world has no check for it, and no outcome model judges",
}

WRITE_PROMPT = """You are a smart task creator for a website agent. The agent failed these tasks:
{failed}
Write {count} new tasks of the same domain, more diverse and of similar difficulty. Use names and \
values like those in the examples. Write each task between backticks, on a line of its own."""
SCREEN_PROMPT = """Can this task be done on the website? Answer [YES] or [NO].
Tasks that can be done there are, for example:
{known}
Task: `{task}`"""
MAX_CHARS, MIN_CHARS = 300, 8
"""Length of an instruction."""
MAX_REPLY = 20_000
SHOWN_KNOWN = 6


@dataclass(frozen=True, kw_only=True)
class WrittenInstruction:
    """An instruction and what became of it before the critic saw it."""

    family: str
    text: str
    fate: Fate
    reason: str = ""
    task: str = ""
    """The world's task; empty unless it was proposed."""
    checked: bool = False

    @property
    def practice(self) -> PracticeTask:
        seed = zlib.crc32(self.text.encode()) % MAX_SEED
        return PracticeTask(family=self.family, seed=seed, written=self.task)


@dataclass(frozen=True, kw_only=True)
class PhaseInstructions:
    """All that was written for a phase."""

    instructions: list[WrittenInstruction] = field(default_factory=list[WrittenInstruction])
    replies: list[str] = field(default_factory=list[str])
    """What the writer said, as it said it."""

    @property
    def tasks(self) -> list[PracticeTask]:
        return [each.practice for each in self.instructions if each.fate == "proposed"]

    @property
    def fates(self) -> dict[str, int]:
        counts: dict[str, int] = dict(Counter(each.fate for each in self.instructions))
        return counts


@dataclass(frozen=True)
class Models:
    """The models that write and screen instructions; None where no model does."""

    write: Complete | None = None
    screen: Complete | None = None


class InstructionWriter(Configurable):
    """Writes instructions and screens them."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        share: float = 0.0
        """Share of a phase's proposals that are written; 0 writes nothing."""
        writer: Literal["templates", "actor", "endpoint"] = "templates"
        screen: Literal["none", "actor", "endpoint"] = "none"
        """The model that is asked whether a task can be done; the world is always asked."""
        endpoint: Local[Endpoint.Config] = field(default_factory=Endpoint.Config)
        shown: int = 10
        """Failed tasks in one prompt, all of one family."""
        asked: int = 10
        """Instructions that one prompt asks for."""
        turns: int = 2
        """Prompts for each family with failures."""
        reply_tokens: int = 512
        """Longest reply of the actor."""
        duplicates: Measure = "words"
        """How instructions are compared: common words, or embeddings (an extra)."""
        similarity: float | None = None
        """An instruction this similar to a known one that names the same values repeats it.

        None is the default of the measure: 0.8 of the words, or a cosine of 0.95.
        """

        def __post_init__(self) -> None:
            check_least(self, shown=1, asked=1, turns=1, reply_tokens=1)
            if self.similarity is not None:
                check_share(self, "similarity")
            if not 0 <= self.share <= 1:
                raise ConfigError("instructions.share", f"{self.share:g} is not within 0..1")

    config: Config

    def write(
        self,
        record: PracticeRecord,
        rollout: BatchRollout,
        models: Models,
        *,
        count: int,
        rng: np.random.Generator,
        judged: bool,
    ) -> PhaseInstructions:
        """Instructions for at most `count` tasks; `judged` if an outcome model decides success."""
        families = _by_family(record)
        written, replies = [], []
        limit = -(-count // max(1, len(families)))
        for family, failed in families.items():
            with rollout.world(family) as world:
                if not isinstance(world, InstructionWorld):
                    raise ConfigError(
                        "practice.instructions",
                        f"{world.name} takes no instructions",
                        "set share=0, or practise a world that does (webarena)",
                    )
                known = [*world.known_instructions(), *record.instructions]
                texts, said = self._texts(failed, world, models, limit, rng)
                drafts = self._compared(family, texts, known)
                written += self._screened(drafts, failed, world, models, rng, judged=judged)
                replies += said
        return PhaseInstructions(instructions=written, replies=replies)

    def _texts(
        self,
        failed: Sequence[FailedTask],
        world: InstructionWorld,
        models: Models,
        limit: int,
        rng: np.random.Generator,
    ) -> tuple[list[str], list[str]]:
        """New texts, and the replies that they are from."""
        if models.write is None:
            return world.write_instructions(limit, rng), []
        # Without a failure there is nothing to write from.
        turns = self.config.turns if failed else 0
        replies = [self._ask(models.write, failed, rng) for _ in range(turns)]
        texts = [text for reply in replies for text in read_instructions(reply)]
        return texts[:limit], replies

    def _compared(
        self, family: str, texts: Sequence[str], known: Sequence[str]
    ) -> list[WrittenInstruction]:
        """Texts that repeat something are marked."""
        measure, least = self.config.duplicates, self.config.similarity
        repeats = duplicates(
            texts, known, measure=measure, least=LEAST[measure] if least is None else least
        )
        return [
            WrittenInstruction(
                family=family,
                text=text,
                fate="repeated" if earlier else "proposed",
                reason=f"says the same as {earlier!r}" if earlier else "",
            )
            for text, earlier in zip(texts, repeats, strict=True)
        ]

    def _ask(self, write: Complete, failed: Sequence[FailedTask], rng: np.random.Generator) -> str:
        picks = rng.permutation(len(failed))[: self.config.shown]
        shown = "\n".join(f"- `{failed[pick].instruction}`" for pick in picks)
        prompt = WRITE_PROMPT.format(failed=shown, count=self.config.asked)
        return write(prompt, int(rng.integers(MAX_SEED)))[:MAX_REPLY]

    def _screened(
        self,
        drafts: Sequence[WrittenInstruction],
        failed: Sequence[FailedTask],
        world: InstructionWorld,
        models: Models,
        rng: np.random.Generator,
        *,
        judged: bool,
    ) -> list[WrittenInstruction]:
        """The world says whether it can do it, then a model if one screens."""
        examples = [each.instruction for each in failed]  # never held-out tasks
        screened = []
        for each in drafts:
            if each.fate != "proposed":
                screened.append(each)
                continue
            like = failed[int(rng.integers(len(failed)))] if failed else FailedTask("", "")
            draft = world.draft(each.text, like.written or like.instruction)
            if not draft.task:
                screened.append(replace(each, fate="infeasible", reason=draft.reason))
            elif not draft.checked and not judged:
                screened.append(replace(each, fate="unchecked", reason=FATES["unchecked"]))
            elif models.screen is not None and not _feasible(
                models.screen, each.text, examples, rng
            ):
                screened.append(replace(each, fate="refused", reason=FATES["refused"]))
            else:
                screened.append(replace(each, task=draft.task, checked=draft.checked))
        return screened


def read_instructions(reply: str) -> list[str]:
    """What stands between backticks, as the authors' code reads it; bounded, on one line."""
    # Line by line: a backtick that is never closed spoils its own line only.
    found = [text for line in reply.splitlines() for text in re.findall(r"`([^`]{1,2000})`", line)]
    texts = (" ".join(text.split()) for text in found)
    return [text for text in texts if MIN_CHARS <= len(text) <= MAX_CHARS and text.isprintable()]


def _feasible(screen: Complete, text: str, known: Sequence[str], rng: np.random.Generator) -> bool:
    """Whether the model answers [YES]; an answer that is neither counts as [NO]."""
    picks = rng.permutation(len(known))[:SHOWN_KNOWN]
    examples = "\n".join(f"- `{known[pick]}`" for pick in picks) or "(none)"
    reply = screen(SCREEN_PROMPT.format(known=examples, task=text), int(rng.integers(MAX_SEED)))
    answers = re.findall(r"\b(YES|NO)\b", reply[:MAX_REPLY].upper())
    return bool(answers) and answers[0] == "YES"


def _by_family(record: PracticeRecord) -> dict[str, list[FailedTask]]:
    """Failures by family; before the first phase all families, without failures."""
    families: dict[str, list[FailedTask]] = {}
    for task in record.failed:
        families.setdefault(task.family, []).append(task)
    return families or {name: [] for name in record.families}

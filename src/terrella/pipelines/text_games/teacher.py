"""A teacher thinks and answers, and the verifier selects: reasoning for SFT, asked over an API.

Any OpenAI-compatible endpoint can be the teacher. Requests are concurrent. Each reply is appended
to a journal when it arrives, so a killed run asks only what is missing. Of a record's replies
the first whose answer is fully correct is kept, with its thought: an API's reasoning field, what
stands in `<think>`, or the text before the answer.
    teacher = Teacher.Config(url="http://127.0.0.1:8000/v1", model="deepseek-r1").build()
    failed = teacher.ask(questions, verifier, folder, progress)
    replies = read_replies(folder)
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from terrella.codecs.answers import OPEN, read_prediction, split_reply
from terrella.codecs.chat import Message
from terrella.core.config import Configurable, record_from_json
from terrella.core.errors import ConfigError, PolicyError
from terrella.core.instances import plain
from terrella.core.judge import judge
from terrella.core.protocols import Progress, Verifier
from terrella.core.types import Observation, State, Status, same_kind
from terrella.data.row_journal import SUFFIX, RowJournal, read_rows
from terrella.policies.chat_client import ChatClient, ChatReply, ChatSettings, Usage

REPLIES = "replies"
"""Name of the journal in its folder."""
KEY = ("number", "attempt")
FAILURES = 8
"""Requests in a row, of all threads, that may fail before the teacher gives up."""
Kind = Literal["right", "wrong", "unreadable", "truncated", "no_thought"]


@dataclass(frozen=True, kw_only=True)
class Question:
    """What the teacher is asked about one record."""

    number: int
    """Its place among the records of the run; replies are kept by it."""
    messages: list[Message]
    before: Observation
    truth: Observation


@dataclass(frozen=True, kw_only=True)
class TeacherReply:
    """One reply, taken apart and verified. Only right ones keep their texts."""

    number: int
    attempt: int
    kind: Kind
    thought: str = ""
    answer: str = ""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, kw_only=True)
class TeacherReport:
    """What was asked, what came of it, and what it cost."""

    records: int
    failed: int
    """Records that were given up, because the endpoint failed on them (`may_fail`)."""
    replies: dict[str, int] = field(default_factory=dict[str, int])
    """Replies by what they were."""
    usage: Usage = field(default_factory=Usage)


class Teacher(Configurable):
    """Asks an endpoint about records, several at a time."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ChatSettings, Configurable.Config):
        """The endpoint, and how often and how much at once it is asked."""

        max_tokens: int = 4096
        timeout: float = 600.0
        tries: int = 4
        """Replies to a record, at most; the first right one ends it."""
        concurrency: int = 16
        """Requests at a time."""
        ask_for_thought: bool = True
        """Say in the prompt that the model should think; some models think without it."""
        longest: int = 4000
        """Tokens of an example's completion; longer ones are dropped, as RLVR-World did."""
        may_fail: float = 0.0
        """Share of the records that may be given up, because the endpoint failed on them."""

        def __post_init__(self) -> None:
            super().__post_init__()
            for name in ("tries", "concurrency", "longest"):
                if getattr(self, name) < 1:
                    raise ConfigError(f"teacher.{name}", "must be at least 1")
            if not 0.0 <= self.may_fail < 1.0:
                raise ConfigError("teacher.may_fail", f"{self.may_fail} is not in [0, 1)")

    config: Config
    reaches: ClassVar[str] = "a chat endpoint"

    def ask(
        self, questions: Iterable[Question], verifier: Verifier, folder: Path, progress: Progress
    ) -> int:
        """Ask until every record has a right reply or all its tries; returns how many failed.

        Replies go to a journal in the folder; those of earlier starts are not asked again.

        Raises:
            PolicyError: The endpoint fails again and again, or on more than `may_fail` of the
                records. What it had answered is kept.
        """
        with RowJournal(folder, REPLIES, key=KEY) as journal:
            asking = _Asking(self.config, verifier, journal, progress)
            failed, records = asking.run(questions)
            journal.finish()
        if failed > self.config.may_fail * records:
            raise PolicyError(
                asking.client.name,
                f"the endpoint failed on {failed:,} of {records:,} records; the last error: "
                f"{asking.last_error}",
                "mend the cause and run the same command again: it asks only for these; or go on "
                "without them: --set teacher.may_fail=SHARE",
            )
        return failed


class _Asking:
    """One start of the teacher: its threads, and what they share."""

    def __init__(
        self,
        config: Teacher.Config,
        verifier: Verifier,
        journal: RowJournal,
        progress: Progress,
    ) -> None:
        self.config = config
        self.verifier = verifier
        self.journal = journal
        self.progress = progress
        self.client = ChatClient(config, name=f"teacher({config.model})")
        self.counts = Counter(row["kind"] for row in journal.rows.values())
        self._lock = threading.Lock()
        self.last_error = ""
        self._failures = 0
        self._done = 0

    def run(self, questions: Iterable[Question]) -> tuple[int, int]:
        """Ask what is missing; returns how many records failed, and how many there are."""
        tried: dict[int, list[str]] = {}
        for row in self.journal.rows.values():
            tried.setdefault(row["number"], []).append(row["kind"])
        running: set[Future[bool]] = set()
        failed = records = 0
        pool = ThreadPoolExecutor(self.config.concurrency, thread_name_prefix="teacher")
        try:
            # Questions are long, so only as many are written as can be asked at once.
            for question in questions:
                records += 1
                kinds = tried.get(question.number, [])
                if len(kinds) >= self.config.tries or "right" in kinds:
                    self._advance()
                    continue
                running.add(pool.submit(self._ask, question, len(kinds)))
                if len(running) > self.config.concurrency:
                    finished, running = wait(running, return_when=FIRST_COMPLETED)
                    failed += sum(not future.result() for future in finished)
            failed += sum(not future.result() for future in running)
            return failed, records
        finally:
            self.client.close()
            pool.shutdown(cancel_futures=True)

    def _ask(self, question: Question, first: int) -> bool:
        """Ask about one record until a reply is right; False if the endpoint failed."""
        for attempt in range(first, self.config.tries):
            seed = question.number * self.config.tries + attempt
            try:
                reply = self.client.chat(question.messages, seed)
            except PolicyError as error:
                with self._lock:
                    self.last_error = error.what
                    self._failures += 1
                    if self._failures >= FAILURES:
                        raise
                self._advance()
                return False
            row = verified(reply, question, attempt, self.verifier)
            with self._lock:
                self._failures = 0
                self.journal.append(plain(row))
                self.counts[row.kind] += 1
            if row.kind == "right":
                break
        self._advance()
        return True

    def _advance(self) -> None:
        with self._lock:
            self._done += 1
            kinds = {str(kind): float(count) for kind, count in self.counts.items()}
            self.progress.advance(self._done, **kinds)


def verified(
    reply: ChatReply, question: Question, attempt: int, verifier: Verifier
) -> TeacherReply:
    """Take a reply apart and judge its answer."""
    truth = question.truth
    answer = read_prediction(reply.text, as_json=isinstance(truth, State))
    thought = _thought(reply)
    kind = _kind(reply, thought, answer, question, verifier)
    kept = {"thought": thought, "answer": answer or ""} if kind == "right" else {}
    return TeacherReply(
        number=question.number, attempt=attempt, kind=kind, usage=reply.usage, **kept
    )


def _kind(
    reply: ChatReply, thought: str, answer: str | None, question: Question, verifier: Verifier
) -> Kind:
    if answer is None:
        cut = not reply.finished or split_reply(reply.text).truncated
        return "truncated" if cut else "unreadable"
    shown = same_kind(question.truth, answer)
    verdict = judge(verifier, reply=shown, truth=question.truth, before=question.before)
    if verdict.status is Status.UNPARSABLE:
        return "unreadable"
    if verdict.value != 1.0:
        return "wrong"
    return "right" if thought else "no_thought"


def _thought(reply: ChatReply) -> str:
    """The API's reasoning, the thought in the reply, or what stands before the answer."""
    if reply.reasoning.strip():
        return reply.reasoning.strip()
    parts = split_reply(reply.text)
    if parts.thought is not None:
        return parts.thought.strip()
    return parts.rest.partition(OPEN)[0].strip() if OPEN in parts.rest else ""


def read_replies(folder: Path) -> list[TeacherReply]:
    """The replies that a teacher has finished, by record and attempt."""
    rows = read_rows(folder / f"{REPLIES}{SUFFIX}")
    return [record_from_json(TeacherReply, row) for row in rows]


def teacher_report(replies: Iterable[TeacherReply], *, records: int, failed: int) -> TeacherReport:
    """Sums over all replies."""
    counts: Counter[str] = Counter()
    usage = Usage()
    for reply in replies:
        counts[reply.kind] += 1
        usage += reply.usage
    return TeacherReport(
        records=records, failed=failed, replies=dict(sorted(counts.items())), usage=usage
    )

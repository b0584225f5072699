"""The exploit battery: no attack on a verifier may score more than predicting no change.

Every attack (`attacks.py`) must score at most what the no-change reply scores. Where nothing
changed, that reply is the truth and there is nothing to win. On every transition the truth must
score 1, and every verdict must be well-formed and in time. A masked verdict is a failure: it means
that a reply has crashed the verifier.
    example = Example(before=Text("a"), truth=Text("b"), others=(Text("c"),))
    report = run_battery(verifier, [example])
    assert report.passed, report.summary()
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from terrella.core.errors import VerifierError
from terrella.core.judge import attempt
from terrella.core.protocols import Verifier
from terrella.core.types import Frames, Observation, canonical_json, show_text
from terrella.verify import attacks_json
from terrella.verify.attacks import ATTACKS, Attack
from terrella.verify.state import parse_state

__all__ = ["ATTACKS", "BatteryReport", "Example", "Failure", "Win", "attacks_json", "run_battery"]

MAX_SECONDS = 5.0
"""A slower verdict is a failure: a reply could stall training.

The battery cannot interrupt a verifier that never returns; for that, use `isolated.Isolated`.
"""
TOLERANCE = 1e-9
MAX_LISTED = 8
"""Number of wins and failures that a summary lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A transition to attack, and other plausible next observations."""

    before: Observation
    truth: Observation
    others: tuple[Observation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Win:
    """An attack that scored more than the no-change reply."""

    attack: str
    example: Example
    value: float
    allowed: float
    """The score of the no-change reply."""

    def __str__(self) -> str:
        return (
            f"{self.attack} scores {self.value:.3f}, at most {self.allowed:.3f} is allowed, "
            f"on {_brief(self.example)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A verdict that is masked, malformed or late, or a truth that does not score 1.

    In the last case `attack` is "truth".
    """

    attack: str
    example: Example
    reason: str

    def __str__(self) -> str:
        return f"{self.attack}: {self.reason}, on {_brief(self.example)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatteryReport:
    """Result of the battery."""

    wins: tuple[Win, ...] = ()
    failures: tuple[Failure, ...] = ()
    tried: int = 0
    skipped: int = 0
    """Attacks that did not apply, or whose reply was the truth itself."""
    changed: int = 0
    """Examples on which the no-change reply scores less than 1.

    Without one, the attacks had nothing to beat.
    """
    blind: int = 0
    """Examples that did change although the no-change reply scores 1.

    The verifier does not see that change.
    """

    @property
    def passed(self) -> bool:
        """No win, no failure, and at least one example with something to win."""
        return not self.wins and not self.failures and self.changed > 0

    def summary(self) -> str:
        problems = [str(problem) for problem in (*self.wins, *self.failures)]
        if not problems and not self.changed:
            return "the no-change reply scores 1 on every example: nothing was tested"
        hidden = len(problems) - MAX_LISTED
        more = [f"... and {hidden} more"] if hidden > 0 else []
        head = (
            f"{self.tried} attacks, {self.skipped} skipped, {len(self.wins)} wins, "
            f"{len(self.failures)} failures, {self.blind} changes that the verifier does not see"
        )
        return "\n".join([head, *problems[:MAX_LISTED], *more])


def run_battery(
    verifier: Verifier,
    examples: Sequence[Example],
    *,
    attacks: Mapping[str, Attack] | None = None,
    max_seconds: float = MAX_SECONDS,
) -> BatteryReport:
    """Try every attack on every example.

    To add attacks of your own, pass `attacks={**ATTACKS, "my_attack": my_attack}`.
    """
    if not examples:
        raise VerifierError(
            type(verifier).__name__,
            "the battery has no examples",
            "pass transitions of the world",
        )
    if attacks is None:
        attacks = ATTACKS
    report = BatteryReport()
    for example in examples:
        report = _attack_example(Target(verifier, example, max_seconds), attacks, report)
    return report


class Target:
    """One example under attack: scores replies to it and checks the verdicts."""

    def __init__(self, verifier: Verifier, example: Example, max_seconds: float) -> None:
        # Frames have no text to attack: without this check the battery would pass untested.
        if isinstance(example.truth, Frames) or isinstance(example.before, Frames):
            raise VerifierError(
                type(verifier).__name__,
                "the battery attacks text observations, and this example has frames",
            )
        self.verifier = verifier
        self.example = example
        self.max_seconds = max_seconds
        self.before = show_text(example.before)
        self.truth = show_text(example.truth)
        self.kind = type(example.truth)

    def judge(self, attack: str, reply: str) -> float | Failure:
        """The value of a reply, or the failure of its verdict."""
        example = self.example
        began = time.perf_counter()
        verdict = attempt(
            self.verifier, reply=self.kind(reply), truth=example.truth, before=example.before
        )
        seconds = time.perf_counter() - began
        if verdict.value is None:
            return Failure(
                attack=attack,
                example=example,
                reason=f"masked ({verdict.status}): {verdict.evidence}",
            )
        if seconds > self.max_seconds:
            return Failure(attack=attack, example=example, reason=f"took {seconds:.1f} s")
        return verdict.value

    def replies(self, attacks: Mapping[str, Attack]) -> Iterator[tuple[str, str | None]]:
        """Each attack's name and reply; None where it does not apply or gives the truth."""
        # Blank lines at the ends of an observation would become correct lines in the middle of a
        # reply.
        before = self.before.strip("\r\n")
        truth = self.truth.strip("\r\n")
        others = dict.fromkeys(show_text(other).strip("\r\n") for other in self.example.others)
        texts = [text for text in others if text not in (before, truth)]
        half = len(texts) // 2
        for name, attack in attacks.items():
            reply = attack(before, truth, (*texts[:half], truth, *texts[half:]))
            yield name, None if reply is None or self.is_truth(reply) else reply

    def is_truth(self, reply: str) -> bool:
        """Whether the reply equals the truth, as text or as a JSON value."""
        if reply.strip() == self.truth.strip():
            return True
        try:
            return canonical_json(parse_state(reply)) == canonical_json(parse_state(self.truth))
        except (ValueError, RecursionError):
            return False


def _attack_example(
    target: Target, attacks: Mapping[str, Attack], report: BatteryReport
) -> BatteryReport:
    wins = list(report.wins)
    failures = list(report.failures)
    tried = 0
    baseline = _baseline(target, failures)
    for name, reply in target.replies(attacks):
        if reply is None:
            continue
        tried += 1
        value = target.judge(name, reply)
        if isinstance(value, Failure):
            failures.append(value)
        elif value > baseline + TOLERANCE:
            wins.append(Win(attack=name, example=target.example, value=value, allowed=baseline))
    return BatteryReport(
        wins=tuple(wins),
        failures=tuple(failures),
        tried=report.tried + tried,
        skipped=report.skipped + len(attacks) - tried,
        changed=report.changed + (baseline < 1.0),
        blind=report.blind + (baseline >= 1.0 and target.before != target.truth),
    )


def _baseline(target: Target, failures: list[Failure]) -> float:
    """Score of the no-change reply; adds a failure when the truth does not score 1."""
    truth = target.judge("truth", target.truth)
    baseline = target.judge("no_change", target.before)
    failures.extend(score for score in (truth, baseline) if isinstance(score, Failure))
    if not isinstance(truth, Failure) and truth != 1.0:
        failures.append(
            Failure(
                attack="truth", example=target.example, reason=f"the truth scores {truth}, not 1"
            )
        )
    return 0.0 if isinstance(baseline, Failure) else baseline


def _brief(example: Example) -> str:
    def short(observation: Observation) -> str:
        text = show_text(observation)
        return repr(text if len(text) <= 60 else f"{text[:60]}...")

    return f"{short(example.before)} -> {short(example.truth)}"

"""The exploit battery: no reply that is not a prediction may beat predicting that nothing happens.

Every attack (`attacks.py`) must score at most what the no-change reply scores; where nothing changed that reply is
the truth, and there is nothing to win. On every transition the truth scores 1, and each verdict comes in time and is
well-formed: a masked one fails the battery, for a reply has broken the verifier.
    report = run_battery(verifier, [Example(before=Text("a"), truth=Text("b"), others=(Text("c"),))])
    assert report.passed, report.summary()
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from terrella.core.errors import VerifierError
from terrella.core.judge import judge
from terrella.core.protocols import Verifier
from terrella.core.types import Frames, Observation, Verdict, canonical_json, show_text
from terrella.verify import attacks_json
from terrella.verify.attacks import ATTACKS, Attack
from terrella.verify.state import parse_state

__all__ = ["ATTACKS", "BatteryReport", "Example", "Failure", "Win", "attacks_json", "run_battery"]

MAX_SECONDS = 5.0
"""A verdict that takes longer lets a reply spend our time. (One that never comes needs `isolated.Isolated`.)"""
TOLERANCE = 1e-9
LISTED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A transition to attack, and other observations that could plausibly have come next."""

    before: Observation
    truth: Observation
    others: tuple[Observation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Win:
    """An attack that paid more than it may."""

    attack: str
    example: Example
    value: float
    allowed: float
    """What the no-change reply scores."""

    def __str__(self) -> str:
        return (
            f"{self.attack} scores {self.value:.3f}, at most {self.allowed:.3f} is allowed, on {_brief(self.example)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A verdict that is masked, malformed or late, or a truth (`attack == "truth"`) that is not a full 1."""

    attack: str
    example: Example
    reason: str

    def __str__(self) -> str:
        return f"{self.attack}: {self.reason}, on {_brief(self.example)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatteryReport:
    """What came of the battery. Skipped attacks had nothing to work with, or came out as the truth itself."""

    wins: tuple[Win, ...] = ()
    failures: tuple[Failure, ...] = ()
    tried: int = 0
    skipped: int = 0
    changed: int = 0
    """Examples on which the no-change reply scores less than 1: without one, an attack had nothing to beat."""
    blind: int = 0
    """Examples that changed although the no-change reply scores 1: the verifier does not see that change."""

    @property
    def passed(self) -> bool:
        """No win, no failure, and something was there to be won."""
        return not self.wins and not self.failures and self.changed > 0

    def summary(self) -> str:
        """What happened, in a few lines."""
        found = [str(one) for one in (*self.wins, *self.failures)]
        if not found and not self.changed:
            return "the no-change reply scores 1 on every example: nothing was tested"
        more = [f"... and {len(found) - LISTED} more"] if len(found) > LISTED else []
        head = (
            f"{self.tried} attacks, {self.skipped} skipped, {len(self.wins)} wins, {len(self.failures)} failures, "
            f"{self.blind} changes that the verifier does not see"
        )
        return "\n".join([head, *found[:LISTED], *more])


def run_battery(
    verifier: Verifier, examples: Sequence[Example], *, attacks: Mapping[str, Attack] | None = None,
    max_seconds: float = MAX_SECONDS,
) -> BatteryReport:  # fmt: skip
    """Try every attack on every example. A world with attacks of its own adds them: `{**ATTACKS, "mine": mine}`."""
    if not examples:
        raise VerifierError(type(verifier).__name__, "the battery has no examples", "give it transitions of the world")
    chosen, report = ATTACKS if attacks is None else attacks, BatteryReport()
    for example in examples:
        report = _attack_example(Target(verifier, example, max_seconds), chosen, report)
    return report


class Target:
    """One example under attack: judges replies to it, and says what is wrong with a verdict."""

    def __init__(self, verifier: Verifier, example: Example, max_seconds: float) -> None:
        """Frames have no text to attack; saying so beats passing."""
        if isinstance(example.truth, Frames) or isinstance(example.before, Frames):
            raise VerifierError(type(verifier).__name__, "the battery attacks texts, and these are frames")
        self.verifier, self.example, self.max_seconds = verifier, example, max_seconds
        self.before, self.truth = show_text(example.before), show_text(example.truth)
        self.kind = type(example.truth)

    def judge(self, attack: str, reply: str) -> float | Failure:
        """The value of a reply, or why there is none."""
        example, began = self.example, time.perf_counter()
        verdict = judge(self.verifier, reply=self.kind(reply), truth=example.truth, before=example.before)
        seconds = time.perf_counter() - began
        if not isinstance(verdict, Verdict):
            return Failure(attack=attack, example=example, reason=f"returned {type(verdict).__name__}, not a Verdict")
        if verdict.value is None:
            return Failure(attack=attack, example=example, reason=f"masked ({verdict.status}): {verdict.evidence}")
        if seconds > self.max_seconds:
            return Failure(attack=attack, example=example, reason=f"took {seconds:.1f} s")
        return verdict.value

    def replies(self, attacks: Mapping[str, Attack]) -> Iterator[tuple[str, str | None]]:
        """What each attack says; None where it has nothing to work with or comes out as the truth."""
        # Blank lines at the ends of an observation would become true lines in the middle of a reply.
        before, truth = self.before.strip("\r\n"), self.truth.strip("\r\n")
        others = dict.fromkeys(show_text(one).strip("\r\n") for one in self.example.others)
        texts = [text for text in others if text not in (before, truth)]
        half = len(texts) // 2
        for name, attack in attacks.items():
            reply = attack(before, truth, (*texts[:half], truth, *texts[half:]))
            yield name, None if reply is None or self.is_truth(reply) else reply

    def is_truth(self, reply: str) -> bool:
        """True when the reply is the truth after all, by text or as a JSON value."""
        if reply.strip() == self.truth.strip():
            return True
        try:
            return canonical_json(parse_state(reply)) == canonical_json(parse_state(self.truth))
        except (ValueError, RecursionError):
            return False


def _attack_example(target: Target, attacks: Mapping[str, Attack], report: BatteryReport) -> BatteryReport:
    wins, failures, tried = list(report.wins), list(report.failures), 0
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
        wins=tuple(wins), failures=tuple(failures), tried=report.tried + tried,
        skipped=report.skipped + len(attacks) - tried, changed=report.changed + (baseline < 1.0),
        blind=report.blind + (baseline >= 1.0 and target.before != target.truth),
    )  # fmt: skip


def _baseline(target: Target, failures: list[Failure]) -> float:
    """What the no-change reply scores; notes it when the truth does not score 1."""
    truth, baseline = target.judge("truth", target.truth), target.judge("no_change", target.before)
    failures.extend(found for found in (truth, baseline) if isinstance(found, Failure))
    if not isinstance(truth, Failure) and truth != 1.0:
        failures.append(Failure(attack="truth", example=target.example, reason=f"the truth scores {truth}, not 1"))
    return 0.0 if isinstance(baseline, Failure) else baseline


def _brief(example: Example) -> str:
    def short(observation: Observation) -> str:
        text = show_text(observation)
        return repr(text if len(text) <= 60 else f"{text[:60]}...")

    return f"{short(example.before)} -> {short(example.truth)}"

"""Properties of a world's verifier: the truth scores 1, and nothing else gets there.

A verifier that can be exploited would reward the wrong predictions.
    battery_wins_nothing(Subject(FrozenLake.Config()))  # a line of detail, or PropertyError
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from terrella.commands.check.subject import PropertyError, Subject, require
from terrella.core.judge import judge
from terrella.core.seeds import CORRUPTION_STREAM, stream
from terrella.core.types import Frames, Observation, Transition, same_kind, show_text
from terrella.verify.attacks_frames import DAMAGES, FRAME_ATTACKS
from terrella.verify.battery import Example, run_battery

MAX_CANDIDATES = 4
MAX_EXAMPLES = 25
MAX_FRAME_STEPS = 40
"""Frames are slower to verify than text."""


def truth_scores_one(subject: Subject) -> str:
    """The world's verifier gives the truth a full 1, in every view."""
    for view in subject.views:
        for step in view.transitions:
            score = _score(subject, step, step.next_observation)
            require(
                score == 1.0,
                f"view {view.config.view!r}: the truth after {step.action!r} scores {score}",
            )
    return f"{len(subject.views)} views x {len(subject.transitions)} transitions"


def _score(subject: Subject, step: Transition, reply: Observation) -> float | None:
    verdict = judge(
        subject.world.verifier, reply=reply, truth=step.next_observation, before=step.observation
    )
    return verdict.value


# --- corrupted truth ------------------------------------------------------------------------------


def corrupted_truth_scores_less(subject: Subject) -> str:
    """A truth with a changed character, a lost line or an added one scores less than 1."""
    rng = stream(CORRUPTION_STREAM, 0)
    if isinstance(subject.transitions[0].next_observation, Frames):
        return _damaged_frames_score_less(subject, rng)
    count = 0
    for step in subject.transitions:
        text = show_text(step.next_observation)
        for corrupt in (_change_character, _drop_line, _add_line):
            reply = corrupt(text, rng)
            if reply.strip() == text.strip():
                continue
            score = _score(subject, step, same_kind(step.next_observation, reply))
            require(
                score is not None and score < 1.0,
                f"{corrupt.__name__} of the truth scores {score}: {reply!r}",
            )
            count += 1
    require(count > 0, "nothing could be corrupted")
    return f"{count} corruptions"


def _damaged_frames_score_less(subject: Subject, rng: np.random.Generator) -> str:
    steps = subject.transitions[:MAX_FRAME_STEPS]
    for step in steps:
        assert isinstance(step.next_observation, Frames)
        for damage in DAMAGES:
            score = _score(subject, step, damage(step.next_observation, rng))
            require(
                score is not None and score < 1.0,
                f"a truth that was {damage.__name__} scores {score}",
            )
    return f"{len(steps) * len(DAMAGES)} damaged frames"


def _change_character(text: str, rng: np.random.Generator) -> str:
    solid = [i for i, character in enumerate(text) if not character.isspace()]
    index = solid[int(rng.integers(len(solid)))]
    return text[:index] + ("~" if text[index] != "~" else "!") + text[index + 1 :]


def _drop_line(text: str, rng: np.random.Generator) -> str:
    lines = text.splitlines()
    del lines[int(rng.integers(len(lines)))]
    return "\n".join(lines)


def _add_line(text: str, rng: np.random.Generator) -> str:
    return f"{text}\nand more"


# --- exploit battery ------------------------------------------------------------------------------


def battery_wins_nothing(subject: Subject) -> str:
    """No reply of the exploit battery beats predicting 'nothing happens' on changed transitions."""
    if isinstance(subject.transitions[0].next_observation, Frames):
        return _frame_attacks_win_nothing(subject)
    attacks = 0
    for view in subject.views:
        report = run_battery(subject.world.verifier, _examples(view))
        require(report.passed, f"view {view.config.view!r}: {report.summary()}")
        attacks += report.tried
    return f"{attacks} attacks, {len(subject.views)} views"


def _frame_attacks_win_nothing(subject: Subject) -> str:
    changed = [step for step in subject.transitions if step.changed][:MAX_FRAME_STEPS]
    for step in changed:
        before = step.observation
        truth = step.next_observation
        assert isinstance(before, Frames) and isinstance(truth, Frames)
        baseline = _score(subject, step, before)
        if baseline is None:
            raise PropertyError("predicting that nothing happens broke the verifier")
        for name, attack in FRAME_ATTACKS.items():
            score = _score(subject, step, attack(before, truth))
            if score is None:
                raise PropertyError(f"{name} broke the verifier")
            require(score <= baseline, f"{name} scores {score}, nothing happens {baseline}")
    return f"{len(changed) * len(FRAME_ATTACKS)} attacks"


def _examples(subject: Subject) -> list[Example]:
    changed = [step for step in subject.transitions if step.changed]
    chosen = changed[:: max(1, len(changed) // MAX_EXAMPLES)][:MAX_EXAMPLES]
    return [
        Example(
            before=step.observation,
            truth=step.next_observation,
            others=_candidates(changed, step.next_observation),
        )
        for step in chosen
    ]


def _candidates(steps: Sequence[Transition], truth: Observation) -> tuple[Observation, ...]:
    others = (step.next_observation for step in steps if step.next_observation != truth)
    return tuple(dict.fromkeys(others))[:MAX_CANDIDATES]

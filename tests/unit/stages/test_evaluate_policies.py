"""When an imagined frame counts as success."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")

from terrella.stages.evaluate_policies import EvaluatePolicies, Lesson
from terrella.worlds.counter import Counter


class Exact:
    """A tokenizer that loses nothing."""

    def write(self, film, context):
        return None, film

    def read(self, context, ids):
        return ids


def lessons(count, *, seed):
    """Films of noise; every third ends with a bright corner and has succeeded, every fifth shows half of one."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        film, success = rng.integers(0, 60, (12, 16, 16, 3)).astype(np.uint8), np.zeros(12, bool)
        if number % 3 == 0:
            film[-1, :8, :8], success[-1] = 250, True
        elif number % 5 == 0:
            film[6, :8, :8] = 110
        found.append(Lesson(film, np.zeros((11, 2)), success))
    return found


def test_as_many_episodes_are_seen_to_win_as_win():
    stage = EvaluatePolicies(EvaluatePolicies.Config(world=Counter.Config(), classifier_steps=150))
    net, threshold = stage._seer(lessons(120, seed=0), Exact())
    fresh = lessons(60, seed=1)
    seen = [bool((net.read(lesson.film)[:, 0] > threshold).any()) for lesson in fresh]
    won = [bool(lesson.success.any()) for lesson in fresh]
    assert abs(np.mean(seen) - np.mean(won)) <= 0.1
    assert np.mean(np.array(seen) == np.array(won)) >= 0.9

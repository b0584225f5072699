"""Attacks on every verifier, on transitions of the package's own worlds.

Random and expert policies play; each attack (`verify/attacks*.py`) answers in place of a model. No
attack may score more than "nothing changes" on average, no reply may mask a verdict, and no verdict
may take more than a CPU second for a reply of any length.
"""

import importlib.util
import itertools
import json
import lzma
import time
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
from tests.attack.campaign import ROOT, record, trials

from terrella.core.episode import play
from terrella.core.errors import MissingExtraError
from terrella.core.judge import judge
from terrella.core.types import Frames, Kind, State, Text, Tree, show_text
from terrella.policies.basic import Expert, Random
from terrella.verify import registry
from terrella.verify.attacks_frames import FRAME_ATTACKS, FRAME_GUESSES
from terrella.verify.battery import ATTACKS, Example, Target
from terrella.verify.frames import FrameDistance
from terrella.verify.text import longest_reply
from terrella.worlds import world_config

PAIRS = trials(commit=40, nightly=400)
"""Transitions per verifier. Every attack is tried on each of them."""
MAX_SECONDS = 1.0
TOLERANCE = 1e-9
PAGES = ROOT / "tests" / "unit" / "verify" / "page_pairs.json.xz"
WORLDS = {
    "exact": ("countdown", "sokoban", "frozen_lake"),
    "line_gain": ("sokoban", "frozen_lake", "sudoku"),
    "state_diff": ("counter", "bandit", "metamathqa"),
    "tree_diff": (),
    "page_sections": (),
    "bytesized32": ("bytesized32", "bytesized32:view=json"),
    "textworld": ("textworld",),
}
FEW = {"bytesized32": 20}
"""Worlds with few recorded games, and the transitions that they have at least."""
FINDINGS: dict[str, object] = {}
POLICIES = Random.Config().build(), Expert.Config().build()


@dataclass
class Gains:
    """The gain of each attack over no change."""

    by_attack: dict[str, list[float]] = field(default_factory=dict)
    masked: int = 0
    slowest: float = 0.0

    def add(self, attack, value, allowed):
        if value is None:
            self.masked += 1
        else:
            self.by_attack.setdefault(attack, []).append(value - allowed)

    def summary(self, pairs, verifier):
        means = {name: float(np.mean(gains)) for name, gains in self.by_attack.items()}
        best = max(means, key=means.__getitem__)
        return {
            "verifier": verifier,
            "pairs": pairs,
            "attacks": len(means),
            "verdicts": sum(map(len, self.by_attack.values())),
            "masked": self.masked,
            "best_attack": best,
            "best_mean_gain": means[best],
            "wins": sum(gain > TOLERANCE for gains in self.by_attack.values() for gain in gains),
            "slowest_cpu_seconds": round(self.slowest, 3),
        }


def build(name):
    name, *settings = name.split(":view=")
    try:
        return world_config(name, [f"view={view}" for view in settings]).build()
    except MissingExtraError as error:
        pytest.skip(str(error))


@cache
def transitions(world_name):
    """Changed transitions of a world, each seen once."""
    world, found = build(world_name), {}
    for seed in itertools.count():
        for policy in POLICIES:
            for step in play(world, policy, seed=seed).transitions:
                if step.changed:
                    found.setdefault((step.observation, step.next_observation), None)
        if len(found) >= PAIRS or seed > PAIRS:
            return list(found)


def verifier_of(name):
    if name in registry.names():
        return registry.find(name).build()
    return build(name).verifier


def examples(name):
    """Pairs of a verifier's worlds, with other outcomes of the same world as alternatives."""
    if not WORLDS[name]:
        recorded = json.loads(lzma.decompress(PAGES.read_bytes()))
        pairs = [(Tree(before), Tree(after)) for before, after in recorded if before != after]
        pools = [pairs[:: max(1, len(pairs) // PAIRS)]]
    else:
        pools = [transitions(world) for world in WORLDS[name]]
    chosen = []
    for pool in pools:
        share = -(-PAIRS // len(pools))
        others = tuple(dict.fromkeys(after for _, after in pool))
        for index, (before, after) in enumerate(pool[:share]):
            near = [others[(index + k) % len(others)] for k in (1, 2, 5)]
            chosen.append(Example(before=before, truth=after, others=tuple(near)))
    return chosen


@pytest.mark.parametrize("name", WORLDS)
def test_no_attack_on_text_beats_no_change(name):
    verifier, gains = verifier_of(name), Gains()
    chosen = examples(name)
    for example in chosen:
        target = Target(verifier, example, MAX_SECONDS)

        def value(reply, example=example, kind=target.kind):
            began = time.process_time()
            verdict = judge(verifier, reply=kind(reply), truth=example.truth, before=example.before)
            gains.slowest = max(gains.slowest, time.process_time() - began)
            return verdict.value

        allowed = value(target.before)
        assert value(target.truth) == 1.0
        for attack, reply in target.replies(ATTACKS):
            if reply is not None:
                gains.add(attack, value(reply), allowed)
    _check(name, gains, len(chosen), type(verifier).__name__)


# --- frames ---------------------------------------------------------------------------------------


def moving_squares(count, seed=0):
    """Squares on flat and on shaded ground, before and after a move of up to eight pixels."""
    rng, size, pairs = np.random.default_rng(seed), 32, []
    x, y = np.meshgrid(np.linspace(0, 1, size), np.linspace(0, 1, size))
    while len(pairs) < count:
        ground = np.broadcast_to(rng.integers(0, 120, 3), (size, size, 3)).astype(float)
        if len(pairs) % 2:
            ground = ground + np.stack([x, y, (x + y) / 2], -1) * 40
        width, colour = int(rng.integers(4, 10)), rng.integers(200, 256, 3)
        start = rng.integers(0, size - width, 2)
        end = np.clip(start + rng.integers(-8, 9, 2), 0, size - width)
        if (start == end).all():
            continue
        images = []
        for top, left in (start, end):
            image = ground.copy()
            image[top : top + width, left : left + width] = colour
            images.append(Frames.of(image.round().astype(np.uint8)[None]))
        pairs.append((images[0], images[1], Frames.of(ground.round().astype(np.uint8)[None])))
    return pairs


def table_videos(count):
    """Frames of the video world one and four steps apart, with its empty table."""
    if importlib.util.find_spec("mujoco") is None:  # not imported here: the world chooses a backend
        pytest.skip("the video world needs MuJoCo")
    found = []
    for name in ("tabletop", "tabletop:reach"):
        world, pairs, frames = world_config(name).build(), [], []
        for seed in itertools.count():
            for policy in POLICIES:
                episode = play(world, policy, seed=seed)
                seen = [episode.first, *(step.next_observation for step in episode.transitions)]
                frames += [frame.array for frame in seen]
                pairs += [
                    pair for depth in (1, 4) for pair in zip(seen, seen[depth:], strict=False)
                ]
            pairs = [pair for pair in pairs if pair[0] != pair[1]]
            if len(pairs) >= count // 2:
                break
        # The hand is somewhere else in most frames.
        ground = Frames.of(np.median(np.concatenate(frames), 0).round().astype(np.uint8)[None])
        found += [(*pair, ground) for pair in pairs[: count // 2]]
    return found


@pytest.mark.parametrize("source", [moving_squares, table_videos], ids=lambda f: f.__name__)
def test_no_attack_on_frames_beats_no_change(source):
    verifier, gains = FrameDistance.Config().build(), Gains()
    pairs = source(PAIRS)
    for before, truth, ground in pairs:
        attacks = {**FRAME_ATTACKS, "erase what moves": lambda before, truth, g=ground: g}
        allowed = verifier.verify(before, truth, before).value
        assert verifier.verify(truth, truth, before).value == 1.0
        for name, attack in attacks.items():
            reply = attack(before, truth)
            began = time.process_time()
            verdict = judge(verifier, reply=reply, truth=truth, before=before)
            gains.slowest = max(gains.slowest, time.process_time() - began)
            gains.add(name, verdict.value, allowed)
    _check(f"frames, {source.__name__}", gains, len(pairs), "FrameDistance")


LUCKY = 0.06
"""Largest mean gain of a guess; most pairs are not what it guesses."""


@pytest.mark.parametrize("source", [moving_squares, table_videos])
def test_what_a_lucky_guess_earns_is_recorded_and_small(source):
    """Guesses may earn where they are right, so they are not held to no gain; it is shown here."""
    verifier, gains = FrameDistance.Config().build(), Gains()
    pairs = source(PAIRS)
    for before, truth, _ in pairs:
        allowed = verifier.verify(before, truth, before).value
        for name, guess in FRAME_GUESSES.items():
            verdict = verifier.verify(guess(before, truth), truth, before)
            gains.add(name, verdict.value, allowed)
    summary = gains.summary(len(pairs), "FrameDistance")
    FINDINGS[f"frames, {source.__name__}, guesses"] = summary
    assert summary["best_mean_gain"] <= LUCKY, summary


def _check(name, gains, pairs, verifier):
    FINDINGS[name] = summary = gains.summary(pairs, verifier)
    assert summary["pairs"] >= FEW.get(name, PAIRS) and summary["attacks"] >= 40, summary
    assert summary["masked"] == 0 and summary["best_mean_gain"] <= TOLERANCE, summary
    assert summary["slowest_cpu_seconds"] <= MAX_SECONDS, summary
    record("verifiers", {"tolerance": TOLERANCE, "verifiers": FINDINGS})


# --- time -----------------------------------------------------------------------------------------


def costly(truth, before, limit):
    """Replies of the length limit that are hard to read or to compare."""
    units = [
        "[", '{"a":', '"', "\\", " ", "\n", "9", "a ", "a\n", "{}", "[],", '{"a":1},',
        'link "a b"\n', '+[0] link "x"\n', "-[1]\n", "^[1] a b c\n", "  row\n", "in o1 c0;",
        f"{before}\n", f"{truth}\n",
    ]  # fmt: skip
    yield from ((unit * (limit // len(unit) + 1))[:limit] for unit in units)
    yield f"[{','.join(['0'] * (limit // 2 - 2))}]"
    yield "\n".join(f'link "w{n} a b"' for n in range(limit // 18))
    # As many nodes as the page has, all renamed: more would be refused before names are compared.
    yield "\n".join(f'link "x{n} y{n} c d"' for n in range(truth.count("\n") + 1))[:limit]
    yield "\n".join(f"line {n}" for n in range(limit // 12))
    yield json.dumps({f"k{n}": n for n in range(limit // 18)})
    yield ";".join(f"+at o{n} r1" for n in range(limit // 13))
    # A text that is never closed, with a quote to try again at every other place.
    yield '#1="' + '\\"' * ((limit - 4) // 2)
    # Three lists that name every element by its text, the last ones first.
    lines = reversed(before.split("\n"))
    named = [line.replace("'", "\\'").replace('"', "'") for line in map(str.strip, lines)]
    yield "\n".join(["New items:", "None", "Deleted items:", *named, "Updated items:", "None"])[
        :limit
    ]


def siblings(count):
    """A page of many siblings with like names; a reply that renames them all is the worst case."""
    before = "\n".join(f'link "a{n} b{n} c d"' for n in range(count))
    return Tree(before), Tree(f'{before}\nlink "new"')


def unnamed(count):
    """A page of elements without ids: each is named by all that is shown of it."""
    before = "\n".join(f'text "{n}"' for n in range(count))
    return Tree(before), Tree(before.replace('"0"', '"zero"', 1))


def padded(before, truth):
    """A long state, which allows a long reply."""
    things = ";".join(f'#{n}"thing"<#1' for n in range(1000, 1450))
    return Text(f"{show_text(before)};{things}"), truth


@pytest.mark.parametrize("name", WORLDS)
def test_no_verdict_takes_more_than_a_cpu_second(name):
    verifier = verifier_of(name)
    pairs = [(example.before, example.truth) for example in examples(name)]
    pairs = sorted(pairs, key=lambda pair: -len(show_text(pair[1])))[: trials(commit=2, nightly=8)]
    if not WORLDS[name]:
        pairs += [siblings(800), siblings(2000), unnamed(1500)]
    if name == "bytesized32":
        pairs += [padded(*transitions(name)[0])]
    slowest, kind = 0.0, {Kind.TEXT: Text, Kind.STATE: State, Kind.TREE: Tree}[pairs[0][0].kind]
    for before, truth in pairs:
        texts = show_text(truth), show_text(before)
        for reply in costly(*texts, longest_reply(*texts)):
            began = time.process_time()
            verdict = judge(verifier, reply=kind(reply), truth=truth, before=before)
            slowest = max(slowest, time.process_time() - began)
            assert verdict.value is not None and verdict.value < 1.0
            assert slowest <= MAX_SECONDS, (name, len(reply), reply[:60], slowest)
    FINDINGS.setdefault("cpu_seconds_at_the_limit", {})[name] = round(slowest, 3)
    record("verifiers", {"tolerance": TOLERANCE, "verifiers": FINDINGS})

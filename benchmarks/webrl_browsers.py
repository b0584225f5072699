"""Browsers in WebRL: episodes per second, kills of browsers, SIGKILLs of whole runs.

    python benchmarks/webrl_browsers.py speed [--places inline thread ray]   episodes per second
    python benchmarks/webrl_browsers.py browsers                  20 browsers are killed in play
    python benchmarks/webrl_browsers.py runs --runs runs          20 SIGKILLs over the phases
Each writes its part of results/webrl_browsers.json. The model is a stand-in that thinks for a fixed
time and presses what the page and a seed say, so that the browser is what is measured, and so that
the same tasks have the same outcomes however often they are played.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import multiprocessing
import os
import random
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import common
import webrl as phases  # the benchmark beside this one

from terrella.browser import host as browser_host
from terrella.browser.host import descendants
from terrella.codecs.web_prompt import WebCodec, WebCodecConfig
from terrella.core.tokens import Sampled, TokenRequest
from terrella.core.types import Split
from terrella.data.attempts import Attempt, PracticeTask
from terrella.models.characters import character_tokenizer
from terrella.pipelines.webrl.language_player import WritingPlayer
from terrella.pipelines.webrl.pipeline import WebRl
from terrella.recipes import webrl as recipes
from terrella.rollout.env_pool import EnvPool
from terrella.worlds.miniwob import MiniWob

FAMILIES = ("click-button", "click-link", "click-checkboxes", "click-tab-2")
PRESSED = re.compile(r"\[(\d+)\] (?:button|link|checkbox|radio|tab|generic)\b")
MAX_STEPS = 4


class PressingSampler:
    """A stand-in for a model: it thinks, then presses an element by the page and the seed."""

    def __init__(self, codec: WebCodec, think: float) -> None:
        self.codec = codec
        self.think = think

    async def sample(self, request: TokenRequest) -> Sampled:
        await asyncio.sleep(self.think)
        page = self.codec.template.text(request.prompt_ids)
        elements = PRESSED.findall(page)
        action = f"click {elements[request.seed % len(elements)]}" if elements else "scroll down"
        reply = self.codec.reply(action)
        return Sampled(token_ids=reply, logprobs=(0.0,) * len(reply), stopped=True)

    def release(self, session: str) -> None:
        """Nothing is kept."""


def played(
    options: argparse.Namespace, place: str, *, at_once: int = 8
) -> tuple[list[Attempt], float]:
    """Attempts at the same tasks, and the seconds that they took."""
    codec = WebCodecConfig(form="compact", language="plain").make(character_tokenizer())
    player = WritingPlayer(
        {name: MiniWob.Config(families=(name,), max_steps=MAX_STEPS) for name in FAMILIES},
        codec,
        PressingSampler(codec, options.think),
        turn_tokens=32,
        at_once=at_once,
        env_pool=EnvPool.Config(place=place, workers=options.workers, timeout=120.0),
        seed=0,
    )
    tasks = [
        PracticeTask(family=FAMILIES[n % len(FAMILIES)], seed=n) for n in range(options.episodes)
    ]
    began = time.monotonic()
    attempts = player.play(tasks, split=Split.TRAIN)
    return attempts, time.monotonic() - began


def outcomes(attempts: Sequence[Attempt]) -> list[bool | None]:
    return [attempt.success for attempt in attempts]


# --- episodes per second --------------------------------------------------------------------------


def speed(options: argparse.Namespace) -> None:
    """The first round of each row is not counted. Actors of Ray start again in every round."""
    rows: dict[str, Any] = {}
    expected: list[bool | None] | None = None
    for place, at_once in itertools.product(options.places, options.at_once):
        rates = []
        for turn in range(options.rounds + 1):
            attempts, seconds = played(options, place, at_once=at_once)
            expected = expected or outcomes(attempts)
            if outcomes(attempts) != expected:
                raise SystemExit(f"{place}: the same tasks ended differently")
            if turn:
                rates.append(len(attempts) / seconds)
        steps = sum(len(attempt.choices) for attempt in attempts)
        row = f"{place}, {at_once} in flight"
        rows[row] = {
            "episodes_per_second": [round(rate, 3) for rate in rates],
            "steps_per_episode": steps / len(attempts),
            "won": sum(map(bool, outcomes(attempts))),
            "masked": outcomes(attempts).count(None),
        }
        print(row, rows[row], flush=True)
    write(options, "speed", {"rows": rows})


# --- kills of browsers ----------------------------------------------------------------------------


@contextlib.contextmanager
def killer(count: int, every: float) -> Iterator[list[int]]:
    """Kill this process's browser again and again, at random moments."""
    killed: list[int] = []
    stop = threading.Event()
    rng = random.Random(0)

    def kill() -> None:
        while len(killed) < count and not stop.wait(rng.uniform(0.3, 2 * every)):
            for each in list(browser_host._hosts.values()):
                if each.pid:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(each.pid, signal.SIGKILL)
                        killed.append(each.pid)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    yield killed
    stop.set()
    thread.join()


def browsers(options: argparse.Namespace) -> None:
    """With kills, an attempt ends as it does without them, or says nothing; it is never a loss."""
    expected = outcomes(played(options, "thread")[0])
    rounds = masked = same = changed = kills = 0
    while kills < options.count:
        with killer(options.count - kills, options.every) as killed:
            found = outcomes(played(options, "thread")[0])
        rounds, kills = rounds + 1, kills + len(killed)
        masked += found.count(None)
        same += sum(now == then for now, then in zip(found, expected, strict=True))
        changed += sum(
            now is not None and now != then for now, then in zip(found, expected, strict=True)
        )
        print(f"kills {kills}, masked {masked}, same {same}, changed {changed}", flush=True)
    metrics = {
        "kills": kills,
        "rounds": rounds,
        "attempts": rounds * options.episodes,
        "as_without_kills": same,
        "masked": masked,
        "scored_differently": changed,
    }
    write(options, "browser_kills", metrics)
    if changed:
        raise SystemExit("an attempt was scored differently")


# --- SIGKILLs of runs -----------------------------------------------------------------------------


def small_run(folder: Path) -> WebRl.Config:
    """Two families in Chromium, the synchronous schedule."""
    config = recipes.webrl_miniwob_run()
    names = ("click-test-2", "click-tab-2")
    return config.replace(
        families={name: config.families[name] for name in names},
        unseen={},
        demonstrated=names[:1],
        demonstrations=2,
        imitation_updates=3,
        phases=2,
        phase_steps=16,
        validation=1,
        test=1,
        width=16,
        layers=1,
        learner=config.learner.replace(epochs=1, critic_epochs=1),
        base_cache=folder / "bases",
        out=folder / "run",
    )


def run_small(folder: Path) -> None:
    WebRl(small_run(folder)).run(phases.LineProgress())


def start(folder: Path) -> Any:
    child = multiprocessing.get_context("spawn").Process(target=run_small, args=(folder,))
    child.start()
    return child


def kill_all(child: Any) -> None:
    """The run and its browsers: SIGKILL, nobody cleans up."""
    below = descendants(child.pid)
    for pid in (child.pid, *below):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    child.join()


def runs(options: argparse.Namespace) -> None:
    """One run is left alone; others are killed and resumed until they end: the same bits?"""
    folder, rng = options.runs / "webrl_browsers", random.Random(0)
    shutil.rmtree(folder, ignore_errors=True)
    start_whole = start(folder / "whole")
    start_whole.join()
    if start_whole.exitcode:
        raise SystemExit("the undisturbed run failed")
    expected, killed, number = phases.digest(folder / "whole"), 0, 0
    while killed < options.count:
        number += 1
        run = folder / f"killed-{number}"
        while (child := start(run)).exitcode is None:
            phases.wait_for_files(child, run, len(phases.files(run)) + rng.randint(1, 4))
            time.sleep(rng.uniform(0.0, 2.0))
            if child.exitcode is not None or killed == options.count:
                break
            kill_all(child)
            killed += 1
        child.join()
        if phases.digest(run) != expected:
            raise SystemExit(f"run {number} differs")
        print(f"run {number}: {killed} kills, the same {len(expected)} files", flush=True)
    metrics = {
        "sigkills": killed,
        "runs": number,
        "files_compared": len(expected),
        "identical": True,
    }
    write(options, "sigkills", metrics)


def write(options: argparse.Namespace, part: str, metrics: dict[str, Any]) -> None:
    chosen = {name: value for name, value in vars(options).items() if name not in ("call", "runs")}
    words = [options.call.__name__, *(f"--{name}={value}" for name, value in chosen.items())]
    command = common.command(*words)
    common.write_part("webrl_browsers", part, {"settings": chosen, **metrics}, command=command)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for name, call in (("speed", speed), ("browsers", browsers), ("runs", runs)):
        command = commands.add_parser(name)
        command.set_defaults(call=call)
        command.add_argument("--runs", type=Path, default=Path("runs"))
        command.add_argument("--count", type=int, default=20, help="kills")
        command.add_argument("--episodes", type=int, default=32)
        command.add_argument("--workers", type=int, default=2)
        command.add_argument("--think", type=float, default=0.5, help="seconds of the model")
        if name == "speed":
            command.add_argument("--places", nargs="+", default=["inline", "thread"])
            command.add_argument("--at-once", type=int, nargs="+", default=[1, 2, 8])
            command.add_argument("--rounds", type=int, default=3)
        if name == "browsers":
            command.add_argument("--every", type=float, default=3.0, help="mean seconds of a kill")
    options = parser.parse_args()
    options.call(options)


if __name__ == "__main__":
    main()

"""Configs of stages as jobs: a process each, some at once, their words in a file beside their folder.

A job is forked from the main thread: imports are paid once, memory is given back, and a death is one job's.
    for config in run_jobs(configs, at_once=2, started=lambda config: print(log_of(config.out))): ...
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from terrella.core.errors import EngineError
from terrella.show.progress import make_progress


def run_jobs(configs: Iterable[Any], *, at_once: int = 1, started: Callable[[Any], None]) -> Iterator[Any]:
    """Yield each config when its job is done. After a death no job is begun; those that run end, then it is told."""
    waiting, running, dead = deque(configs), dict[ForkProcess, Any](), list[EngineError]()
    while running or (waiting and not dead):
        while waiting and not dead and len(running) < at_once:
            config = waiting.popleft()
            started(config)
            running[_start(config)] = config
        ended = wait([child.sentinel for child in running])
        for child in [child for child in running if child.sentinel in ended]:
            child.join()
            config = running.pop(child)
            if child.exitcode:
                dead.append(_death(config, child.exitcode))
            else:
                yield config
    if dead:
        raise dead[0]


def log_of(folder: Path) -> Path:
    """Where a job's words go: beside its folder."""
    return folder.with_suffix(".log")


def _start(config: Any) -> ForkProcess:
    config.out.parent.mkdir(parents=True, exist_ok=True)
    child = multiprocessing.get_context("fork").Process(target=_job, args=(config, log_of(config.out)))
    child.start()
    return child


def _job(config: Any, log: Path) -> None:
    with log.open("w", encoding="utf-8", buffering=1) as words:
        os.dup2(words.fileno(), 1)
        os.dup2(words.fileno(), 2)
        with contextlib.redirect_stdout(words), contextlib.redirect_stderr(words):
            try:
                with make_progress() as progress:
                    config.build().run(progress)
            except Exception:  # noqa: BLE001  the parent reads the reason from the log
                traceback.print_exc()
                sys.exit(1)


def _death(config: Any, code: int) -> EngineError:
    log = log_of(config.out)
    tail = log.read_text("utf-8", errors="replace")[-1500:] if log.exists() else ""
    return EngineError(config.out.name, f"ended with code {code}:\n{tail}", f"the whole log is in {log}")

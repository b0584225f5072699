"""Run pipelines as jobs: one process each, some at a time, with a log file beside each folder.

A job is forked from the main thread. Imports are paid for once, memory is given back when the job
ends, and a crash ends only that job.
    for config in run_jobs(configs, at_once=2, started=lambda config: print(log_file(config.out))):
        ...
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

from terrella.core.errors import EngineError
from terrella.pipelines.base import Pipeline
from terrella.show.progress import make_progress

LOG_TAIL = 1500
"""Characters of a failed job's log that the error quotes."""


def run_jobs(
    configs: Iterable[Pipeline.Config],
    *,
    at_once: int = 1,
    started: Callable[[Pipeline.Config], None],
) -> Iterator[Pipeline.Config]:
    """Yield each config when its job is done.

    After a failure no further job is started; those that are running finish, then it is raised.
    """
    waiting = deque(configs)
    running: dict[ForkProcess, Pipeline.Config] = {}
    failures: list[EngineError] = []
    while running or (waiting and not failures):
        while waiting and not failures and len(running) < at_once:
            config = waiting.popleft()
            started(config)
            running[_start(config)] = config
        ended = wait([process.sentinel for process in running])
        for process in [process for process in running if process.sentinel in ended]:
            process.join()
            config = running.pop(process)
            if process.exitcode:
                failures.append(_failure(config, process.exitcode))
            else:
                yield config
    if failures:
        raise failures[0]


def log_file(folder: Path) -> Path:
    """The log of the job that writes this folder; it lies beside the folder."""
    return folder.with_suffix(".log")


def _start(config: Pipeline.Config) -> ForkProcess:
    config.out.parent.mkdir(parents=True, exist_ok=True)
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=_run_job, args=(config, log_file(config.out)))
    process.start()
    return process


def _run_job(config: Pipeline.Config, log: Path) -> None:
    with log.open("w", encoding="utf-8", buffering=1) as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            try:
                with make_progress() as progress:
                    config.build().run(progress)
            except Exception:  # noqa: BLE001  the parent reads the reason from the log
                traceback.print_exc()
                sys.exit(1)


def _failure(config: Pipeline.Config, code: int) -> EngineError:
    log = log_file(config.out)
    tail = log.read_text("utf-8", errors="replace")[-LOG_TAIL:] if log.exists() else ""
    return EngineError(
        config.out.name, f"ended with code {code}:\n{tail}", f"the whole log is in {log}"
    )

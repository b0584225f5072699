"""Run pipelines as jobs: one process each, some at a time, with a log file beside each folder.

A job is forked from the main thread. Imports are paid for once, memory is given back when the job
ends, and a crash ends only that job. Each job that runs has GPUs of its own, if there are any; with
`JobProcesses` it has several processes, started by `launch/node.sh`.
    for config in run_jobs(configs, at_once=2, started=lambda config: print(log_file(config.out))):
        ...
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from pathlib import Path

from terrella.core.errors import EngineError
from terrella.core.files import open_unlinked
from terrella.engines.launcher import VISIBLE, Launch, share_gpus, visible_gpus
from terrella.pipelines.base import Pipeline
from terrella.show.progress import make_progress


@dataclass(frozen=True, kw_only=True)
class JobProcesses:
    """Several processes for each job."""

    launch: Launch
    """Of one job."""
    command: Callable[[Pipeline.Config], Sequence[str]]
    """The words after `terrella` that run this job alone."""
    numbers: Mapping[str, int]
    """By folder name; on several nodes the number decides the port at which a job's ranks meet."""


LOG_TAIL = 1500
"""Characters of a failed job's log that the error quotes."""


def run_jobs(
    configs: Iterable[Pipeline.Config],
    *,
    at_once: int = 1,
    started: Callable[[Pipeline.Config], None],
    processes: JobProcesses | None = None,
) -> Iterator[Pipeline.Config]:
    """Yield each config when its job is done.

    The GPUs that are visible are shared out among the jobs that run at the same time. After a
    failure no further job is started; those that are running finish, then it is raised.
    """
    waiting = deque(configs)
    running: dict[ForkProcess, Pipeline.Config] = {}
    places = dict(enumerate(share_gpus(visible_gpus(), at_once)))
    taken: dict[ForkProcess, int] = {}
    failures: list[EngineError] = []
    while running or (waiting and not failures):
        while waiting and not failures and len(running) < at_once:
            config = waiting.popleft()
            started(config)
            place = min(places.keys() - set(taken.values()))
            process = _start(config, places[place], processes)
            running[process], taken[process] = config, place
        ended = wait([process.sentinel for process in running])
        for process in [process for process in running if process.sentinel in ended]:
            process.join()
            config = running.pop(process)
            del taken[process]
            if process.exitcode:
                failures.append(_failure(config, process.exitcode))
            else:
                yield config
    if failures:
        raise failures[0]


def log_file(folder: Path) -> Path:
    """The log of the job that writes this folder; it lies beside the folder."""
    return folder.with_suffix(".log")


def _start(
    config: Pipeline.Config, gpus: tuple[str, ...], processes: JobProcesses | None
) -> ForkProcess:
    config.out.parent.mkdir(parents=True, exist_ok=True)
    fork = multiprocessing.get_context("fork")
    arguments = (config, log_file(config.out), gpus, processes)
    process = fork.Process(target=_run_job, args=arguments)
    process.start()
    return process


def _run_job(
    config: Pipeline.Config, log: Path, gpus: tuple[str, ...], processes: JobProcesses | None
) -> None:
    with open_unlinked(log, "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        if processes is not None:
            _become(config, gpus, processes)
        if gpus:
            os.environ[VISIBLE] = ",".join(gpus)  # CUDA has not been started yet
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            try:
                with make_progress() as progress:
                    config.build().run(progress)
            except Exception:  # noqa: BLE001  the parent reads the reason from the log
                traceback.print_exc()
                sys.exit(1)


def _become(config: Pipeline.Config, gpus: tuple[str, ...], processes: JobProcesses) -> None:
    """Replace this process by the launcher of the job's own processes."""
    launch = dataclasses.replace(processes.launch, gpus=gpus)
    if launch.nodes > 1:
        launch = dataclasses.replace(launch, port=launch.port + processes.numbers[config.out.name])
    words = launch.words(processes.command(config))
    os.execvpe(words[0], words, dict(launch.environment()))


def _failure(config: Pipeline.Config, code: int) -> EngineError:
    log = log_file(config.out)
    tail = log.read_text("utf-8", errors="replace")[-LOG_TAIL:] if log.exists() else ""
    return EngineError(
        config.out.name, f"ended with code {code}:\n{tail}", f"the whole log is in {log}"
    )

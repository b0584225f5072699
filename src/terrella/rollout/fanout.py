"""Run one function over many items, here or on Ray actors, with results in order.

Items are (name, JSON-able spec) pairs and may be endless: only a window of them is in flight. A
killed worker loses nothing: its item goes to a new one. An item that kills three workers stops the
run, and the error names it.
    for table in fan_out(play_chunk, (("chunk 0", spec), ...), workers=8): ...
Ray is imported here and nowhere else, and only when there are workers.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from terrella.core.errors import EngineError, MissingExtraError

R = TypeVar("R")
Item = tuple[str, Any]
OnLoss = Callable[[str], None]

MAX_TRIES = 3
OBJECT_STORE_BYTES = 512 * 1024 * 1024
"""Results in flight are few and small; Ray's own default takes 30% of the machine's memory."""

RAY_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's variable; unless it is 0, a loopback address is replaced by the machine's own."""

logger = logging.getLogger("terrella")


def fan_out(
    function: Callable[[Any], R],
    items: Iterable[Item],
    *,
    workers: int = 0,
    window: int = 0,
    on_loss: OnLoss = logger.warning,
) -> Generator[R]:
    """Yield `function(spec)` for each item in order. `function` is defined at the top of a module.

    `window` bounds the items that are taken but not yet yielded (twice the workers unless given).
    What the function raises ends the run as an EngineError with the item's name. Close the iterator
    to stop early.
    """
    if workers == 0:
        yield from _in_this_process(function, items)
        return
    path, ray = _path_of(function), import_ray()
    with cluster(ray, workers):
        pool = _Pool(ray, path, workers, on_loss)
        try:
            yield from pool.results(items, max(window or 2 * workers, workers))
        finally:
            pool.close()


def _in_this_process(function: Callable[[Any], R], items: Iterable[Item]) -> Iterator[R]:
    for name, spec in items:
        try:
            result = function(spec)
        except Exception as error:
            raise EngineError(name, f"{type(error).__name__}: {error}") from error
        yield result


def _path_of(function: Callable[[Any], Any]) -> str:
    """The function's import path: workers import it, so no code is sent."""
    if function.__module__ == "__main__" or "." in function.__qualname__:
        raise EngineError(
            function.__qualname__,
            "cannot be imported by a worker",
            "define it at the top of a module",
        )
    return f"{function.__module__}:{function.__qualname__}"


def import_ray() -> Any:
    """Ray, or an error with the command that installs it."""
    keep_ray_on_loopback()
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError("ray", "fanning out on workers") from error


def keep_ray_on_loopback() -> None:
    """Keep a Ray that we start off the network; call it before anything imports Ray."""
    if "RAY_ADDRESS" not in os.environ:
        os.environ.setdefault(RAY_CLUSTERS, "0")


@contextlib.contextmanager
def cluster(ray: Any, workers: int) -> Iterator[None]:
    """The running Ray, or a local one on loopback that ends with this process."""
    if ray.is_initialized():
        _check_room(ray, workers)
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unless asked
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if "RAY_ADDRESS" not in os.environ:
        options |= {
            "address": "local",  # otherwise Ray joins any cluster that a file in /tmp names
            "num_cpus": workers,
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
            "object_store_memory": OBJECT_STORE_BYTES,
        }
    ray.init(**options)
    try:
        _check_room(ray, workers)
        yield
    finally:
        ray.shutdown()


def _check_room(ray: Any, workers: int) -> None:
    """Raise where actors would wait for CPUs forever, silently."""
    cpus = int(ray.cluster_resources().get("CPU", 0))
    if cpus < workers:
        raise EngineError(
            "ray",
            f"{workers} workers need one CPU each, this Ray has {cpus}",
            "ask for fewer workers",
        )


def search_path() -> list[str]:
    """Folders where this process looks for modules, for the workers."""
    return [os.path.abspath(folder) for folder in sys.path]  # noqa: PTH100  "" is here


class Worker:
    """Runs in a worker process: imports the function and returns exceptions as text.

    An exception is not sent as an object: unpickling it would run code of its class.
    """

    def __init__(self, search_path: list[str]) -> None:
        """`search_path` has the caller's folders: a user's own world may be in any of them."""
        sys.path += [folder for folder in search_path if folder not in sys.path]

    def run(self, path: str, spec: Any) -> tuple[str, Any]:
        """("ok", result) or ("failed", (what, traceback))."""
        try:
            module, name = path.split(":")
            return "ok", vars(importlib.import_module(module))[name](spec)
        except Exception as error:  # noqa: BLE001  the driver raises it again, with the item's name
            return "failed", (f"{type(error).__name__}: {error}", traceback.format_exc())


@dataclass(slots=True)
class _Job:
    index: int
    name: str
    spec: Any
    slot: int
    tries: int = 1


class _Pool:
    """One actor per slot, one job per actor; jobs of dead actors start again on new ones."""

    def __init__(self, ray: Any, path: str, workers: int, on_loss: OnLoss) -> None:
        self.ray = ray
        self.path = path
        self.on_loss = on_loss
        # Ray's own retries do not count per item, and do not say which worker died on what.
        self.actor_class = ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(Worker)
        self.actors = {slot: self._new_actor() for slot in range(workers)}
        self.idle = list(self.actors)
        self.running: dict[Any, _Job] = {}

    def _new_actor(self) -> Any:
        return self.actor_class.remote(search_path())

    def results(self, items: Iterable[Item], window: int) -> Iterator[Any]:
        """Results in order; at most `window` items run or wait to be yielded."""
        queue = enumerate(items)
        finished: dict[int, Any] = {}
        yielded = 0
        while True:
            self._start_jobs(queue, room=window - len(self.running) - len(finished))
            if not self.running:
                return
            job, result = self._wait()
            finished[job.index] = result
            while yielded in finished:
                result = finished.pop(yielded)
                if isinstance(result, EngineError):
                    raise result  # in its turn, so that earlier results are not lost
                yield result
                yielded += 1

    def _start_jobs(self, queue: Iterator[tuple[int, Item]], room: int) -> None:
        while self.idle and room > 0:
            taken = next(queue, None)
            if taken is None:
                return
            index, (name, spec) = taken
            self._start(_Job(index, name, spec, self.idle.pop()))
            room -= 1

    def _start(self, job: _Job) -> None:
        self.running[self.actors[job.slot].run.remote(self.path, job.spec)] = job

    def _wait(self) -> tuple[_Job, Any]:
        """The next job that ends, with its result or error. Jobs of dead workers restart."""
        while True:
            (done,), _ = self.ray.wait(list(self.running), num_returns=1)
            job = self.running.pop(done)
            try:
                status, result = self.ray.get(done)
            except self.ray.exceptions.RayTaskError as error:
                # The worker lives: Ray could not transport the spec or the result.
                status, result = "failed", (str(error), "")
            except self.ray.exceptions.RayError as error:
                reason = " ".join(str(error).split())[:300]
                self.actors[job.slot] = self._new_actor()
                if job.tries < MAX_TRIES:
                    self._start_again(job, reason)
                    continue
                summary = f"killed its worker {MAX_TRIES} times; the last time: {reason}"
                status, result = "failed", (summary, "")
            self.idle.append(job.slot)
            return job, result if status == "ok" else self._failure(job, *result)

    @staticmethod
    def _failure(job: _Job, what: str, remote_traceback: str) -> EngineError:
        failure = EngineError(job.name, what)
        if remote_traceback:
            failure.add_note(f"In worker {job.slot}:\n{remote_traceback}")
        return failure

    def _start_again(self, job: _Job, reason: str) -> None:
        job.tries += 1
        self.on_loss(
            f"worker {job.slot} was lost during {job.name}; "
            f"try {job.tries} of {MAX_TRIES}: {reason}"
        )
        self._start(job)

    def close(self) -> None:
        """End the actors and whatever they are doing."""
        for actor in self.actors.values():
            self.ray.kill(actor)

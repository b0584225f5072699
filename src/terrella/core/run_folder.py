"""A run's folder: one writer, one spec, parts that are made once, the manifest last.

A folder is whole (it has a manifest) or unfinished (the same command continues it). The spec is
compared before anything old is believed: a changed setting is refused by name. Spec, parts and
manifest carry hashes of their content; the manifest has those of files that later stages read.
    with RunFolder(Path("runs/x"), config, progress=progress) as run:
        before = run.part("before", Metric, lambda: evaluate(model))
        run.finish(result)
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from terrella.core.config import Configurable, dump, record_from_json
from terrella.core.errors import StoreError
from terrella.core.files import SCRATCH, locked, read_json, refuse_links
from terrella.core.instances import plain
from terrella.core.integrity import (
    LISTING,
    MAKE_AGAIN,
    SEAL,
    check_file,
    check_folder,
    content_sha256,
    file_sha256,
    read_sealed,
    write_sealed,
)
from terrella.core.protocols import Progress
from terrella.core.run_clock import RunClock, TimedProgress
from terrella.core.versions import installed_versions

T = TypeVar("T")

SPEC, MANIFEST = "spec.json", "manifest.json"
OLD_SPEC = "plan.json"
"""What releases before schema 2 wrote in place of the spec."""
RUN_DEPTH = 3
"""How far above a file its run's manifest may be: `rl/model/files.json` is the deepest."""
FORMAT, SCHEMA = "terrella-run", 3
WAIT_SECONDS = 0.2
NOT_RESULTS = ("engine", "view", "certificate")
"""Folders inside a run that are no part of its result: logs, pages, and what is measured later."""
WORK_SUFFIXES = ("-sft", "-rlvr", "-train")
"""Ends of the names of folders for checkpoints, which have hashes of their own."""
TOKENS = "tokens"
"""What is kept of such a folder: the recorded tokens, which the viewer shows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a finished run says about itself. It describes; it never decides what runs here."""

    format: str
    schema: int
    config: dict[str, Any]
    metrics: dict[str, Any]
    """The pipeline's result, as plain JSON."""
    versions: dict[str, str]
    seconds: float
    """Wall time of all sessions of the run (`run_clock.py`)."""
    files: dict[str, str]
    """Hashes of the files that later stages read, by path inside the folder."""


class RunFolder:
    """A folder held for one run; use it as a context manager.

    Several processes of one run (ranks) share a folder: rank 0 locks, writes and decides, the
    others wait for what it writes.
    """

    def __init__(
        self,
        path: Path,
        config: Configurable.Config,
        *,
        ignored: Sequence[str] = ("out",),
        wait: bool = False,
        barrier: Callable[[], None] = lambda: None,
        progress: Progress,
    ) -> None:
        """`ignored` are the settings that change no result: where to write, what to keep.

        `wait` is for a folder that several runs use: wait while another process writes there.
        `barrier` makes the ranks of one run wait for each other.
        """
        self.path = path
        self.config = config
        self.ignored = ignored
        self.progress: Progress = progress
        self.wait = wait
        self.barrier = barrier
        self.is_main = rank() == 0
        self.manifest: Manifest | None = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(held(self.path, wait=self.wait, barrier=self.barrier))
        try:
            self._begin()
        except BaseException:
            self._open.close()
            raise
        return self

    def _begin(self) -> None:
        check_spec(self.path, run_spec(self.config, self.ignored))
        if (self.path / MANIFEST).exists():
            self.manifest = read_manifest(self.path)
        self.clock = RunClock(self.path, writes=self.is_main)
        self.progress = TimedProgress(self.progress, self.clock)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def part(
        self, name: str, kind: type[T], make: Callable[[], T], *, collective: bool = False
    ) -> T:
        """A value that is made once and kept as JSON; a resumed run reads it back.

        Rank 0 makes it and the other ranks wait for the file. A `collective` part, such as
        training, is made by all ranks together.
        """
        path = self.path / f"{name}.json"
        if not path.exists() and (self.is_main or collective):
            self._announce(name)
            value = make()
            if self.is_main:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_sealed(path, {"value": plain(value)})
                self.clock.save()
        wait_for(path)
        return record_from_json(kind, read_part(path))

    def model(self, name: str, make: Callable[[Path], object]) -> Path:
        """A folder of weights that is made once. `make` writes it whole; all ranks call it."""
        if not (self.path / name / "config.json").exists():
            self._announce(name)
        return make_once(self.path / name, make)

    def _announce(self, name: str) -> None:
        """Say which part begins: it may take minutes before it has anything to count."""
        if self.is_main:
            self.progress.note(f"{self.path}: {name.replace('_', ' ')} ...")

    @contextlib.contextmanager
    def shared(self, folder: Path, spec: Mapping[str, Any]) -> Iterator[Path]:
        """A folder that several runs use, such as a common base model: held while it is made."""
        with held(folder, wait=True, barrier=self.barrier):
            check_spec(folder, spec)
            yield folder

    def finish(self, result: Any) -> Manifest:
        """Write the manifest. From now on the run is whole.

        It does not say where the run and its caches were: it may be uploaded.
        """
        self.clock.save()
        files = result_files(self.path) if self.is_main else {}
        folders = [name for name in self.ignored if isinstance(getattr(self.config, name, 0), Path)]
        self.manifest = Manifest(
            format=FORMAT,
            schema=SCHEMA,
            config=run_spec(self.config, folders)["config"],
            metrics=plain(result),
            versions=installed_versions(),
            seconds=round(self.clock.seconds(), 3),
            files=files,
        )
        if self.is_main:
            write_sealed(self.path / MANIFEST, dataclasses.asdict(self.manifest))
        return self.manifest


def run_spec(config: Configurable.Config, ignored: Sequence[str]) -> dict[str, Any]:
    """The spec of a run: every setting that its result depends on.

    `ignored` names the others; a name such as `videos.out` is a setting of a nested config.
    """
    settings = dump(config)
    for name in ignored:
        *path, key = name.split(".")
        nested = settings
        for part in path:
            nested = nested.get(part) or {}  # a part that was left out has no settings
        nested.pop(key, None)
    return {"config": settings}


def make_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Call `make` unless the folder already holds a whole model."""
    if not (folder / "config.json").exists():
        make(folder)
    return folder


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a finished run; one of an older schema is refused."""
    data = read_json(folder / MANIFEST)
    is_sealed = isinstance(data, dict) and SEAL in data
    if is_sealed:
        data = read_sealed(folder / MANIFEST)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise _too_old(folder)
    if data.get("schema") != SCHEMA:
        raise StoreError(
            str(folder),
            f"has run schema {data.get('schema')}; this terrella reads {SCHEMA}",
            "use the terrella that wrote it, or start a new folder",
        )
    if not is_sealed:
        data = read_sealed(folder / MANIFEST)  # says that its hash is missing
    return record_from_json(Manifest, data)


def read_part(path: Path) -> Any:
    """The value in a part's file, as plain JSON."""
    return read_sealed(path, MAKE_AGAIN)["value"]


def is_work_folder(here: Path, run: Path) -> bool:
    """Whether a folder of a run holds checkpoints. The run itself may have any name."""
    return here != run and here.name.endswith(WORK_SUFFIXES)


def result_files(folder: Path) -> dict[str, str]:
    """Hashes of the files in a run's folder; a folder with a listing is represented by it.

    Episode stores and other runs inside have manifests of their own.
    """
    hashes: dict[str, str] = {}
    for place, folders, names in os.walk(folder):
        here = Path(place)
        if LISTING in names:
            names, folders[:] = [LISTING], []
        elif here != folder and MANIFEST in names:
            names, folders[:] = [], []
        elif is_work_folder(here, folder):
            names, folders[:] = [], [name for name in folders if name == TOKENS]
        folders[:] = sorted(
            name for name in folders if name not in NOT_RESULTS and not name.endswith(SCRATCH)
        )
        for name in sorted(names):
            path = here / name
            left_out = here == folder and name in (SPEC, MANIFEST)
            if not left_out and path.suffix not in (SCRATCH, ".log"):
                hashes[path.relative_to(folder).as_posix()] = file_sha256(path)
    return hashes


def check_result(path: Path) -> None:
    """Refuse a file of a finished run that differs from the run's manifest.

    Files that no manifest lists are not checked: of unfinished runs, or from elsewhere.
    """
    for folder in list(path.absolute().parents)[:RUN_DEPTH]:
        if is_run(folder):
            listed = read_manifest(folder).files
            name = path.absolute().relative_to(folder).as_posix()
            if name in listed:
                check_file(path, listed[name])
            return


def is_run(folder: Path) -> bool:
    """Whether a folder holds a finished run of a pipeline."""
    if not (folder / MANIFEST).is_file():
        return False
    manifest = read_json(folder / MANIFEST)
    return isinstance(manifest, dict) and manifest.get("format") == FORMAT


def check_model(model: str | Path) -> None:
    """Refuse a model folder that was damaged since a run of terrella wrote it.

    Only a folder of ours has a listing. Others, and models on the hub, are not checked here.
    """
    folder = Path(model)
    if folder.is_dir():
        check_result(folder / LISTING)
        if (folder / LISTING).exists():
            check_folder(folder)


def check_spec(folder: Path, spec: Mapping[str, Any], *, ignore: Sequence[str] = ()) -> str:
    """Write the spec, or check that the folder was begun with the same one; return its hash.

    Every setting that differs is named. `ignore` holds top-level keys that may differ.
    """
    path, wanted = folder / SPEC, {"schema": SCHEMA, **spec}
    if not path.exists() and rank() == 0:
        _refuse_foreign(folder)
        write_sealed(path, wanted)
    wait_for(path)
    known = read_sealed(path)
    _refuse_another_kind(folder, known, wanted)
    lines = differences(known, plain(wanted))
    changed = [line for line in lines if line.split(".")[0].split(" ")[0] not in ignore]
    if changed:
        what = "was started with other settings: " + "; ".join(changed)
        raise StoreError(str(folder), what, "choose another folder, or use the same settings")
    return content_sha256(spec)


def _refuse_another_kind(folder: Path, known: Any, asked: Mapping[str, Any]) -> None:
    """A run of another class differs in nearly every setting; its name says enough."""
    there, here = _kind(known), _kind(asked)
    if there and here and there != here:
        what = f"was written by another command ({there} there, {here} here)"
        raise StoreError(str(folder), what, "choose another folder with --out")


def _kind(spec: Any) -> str:
    """The name of the class of a spec's config; empty for a spec without one."""
    config = spec.get("config") if isinstance(spec, Mapping) else None
    name = config.get("class", "") if isinstance(config, Mapping) else ""
    return str(name).rpartition(":")[2]


def _refuse_foreign(folder: Path) -> None:
    """A folder that already holds something is not ours to fill."""
    if (folder / OLD_SPEC).exists():
        raise _too_old(folder)
    names = sorted(entry.name for entry in folder.iterdir() if entry.suffix != SCRATCH)
    if names:
        what = f"holds other files ({', '.join(names[:3])}) and no {SPEC}"
        raise StoreError(str(folder), what, "choose an empty or a new folder")


def _too_old(folder: Path) -> StoreError:
    return StoreError(
        str(folder),
        "was made by an earlier terrella (before run schema 2), whose settings have other names",
        "start a new folder; the old one can be read with the version that wrote it",
    )


def differences(known: Any, asked: Any, where: str = "") -> list[str]:
    """One line for each value that differs between two nested mappings."""
    if not (isinstance(known, Mapping) and isinstance(asked, Mapping)):
        return [] if known == asked else [f"{where} is {known!r} there, {asked!r} here"]
    lines: list[str] = []
    if known.keys() == asked.keys() and list(known) != list(asked):
        lines.append(f"{where} has another order: {list(known)} there, {list(asked)} here")
    for key in sorted(known.keys() | asked.keys()):
        lines += differences(known.get(key), asked.get(key), f"{where}.{key}" if where else key)
    return lines


@contextlib.contextmanager
def held(
    folder: Path, *, wait: bool = False, barrier: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Lock a folder for this run: rank 0 holds the lock, the other ranks wait until it does.

    A folder with links in it is refused: who prepared it would choose where this run writes.
    """
    with locked(folder, wait=wait) if rank() == 0 else contextlib.nullcontext():
        if rank() == 0:
            refuse_links(folder)
        barrier()
        yield


def rank() -> int:
    """This process among those of the run, as the launcher numbered them."""
    return int(os.environ.get("RANK", "0"))


def processes() -> int:
    """How many processes the launcher started for this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def machine_count() -> int:
    """How many machines the launcher started them on."""
    return processes() // int(os.environ.get("LOCAL_WORLD_SIZE", processes()))


def wait_for(path: Path, is_ready: Callable[[Path], bool] = Path.exists) -> None:
    """Wait for a file that rank 0 writes. A launcher ends all ranks when one of them fails."""
    while not is_ready(path):
        time.sleep(WAIT_SECONDS)

"""`terrella push FOLDER REPO` and `terrella pull REPO FOLDER`: runs on a Hugging Face hub.

Only known kinds of files are pushed (safetensors, JSON, Parquet, pages, pictures), with a card made
from the run's own manifest; checkpoints and models in between stay here. A pulled run is pinned to
a commit and comes without pages. A repository with files of any other kind, with names that could
leave the folder or with code behind a model is refused.
    push(Path("runs/lake"), "me/lake")
    pull("me/lake", Path("runs/lake"), revision="abc123")
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from terrella.core.errors import ConfigError, MissingExtraError, StoreError
from terrella.core.files import SCRATCH, locked, write_json
from terrella.core.integrity import LISTING
from terrella.core.run_folder import TOKENS, check_model, check_result, is_work_folder
from terrella.core.untrusted import inside, reading
from terrella.data.store import EpisodeStore
from terrella.models.foreign_code import refuse_code
from terrella.pipelines.evaluate.models import FINAL_FOLDERS
from terrella.show.cards import card
from terrella.show.runs import STRANGE, read_run

ALLOWED = (
    "*.safetensors",
    "*.json",
    "*.jsonl",
    "*.parquet",
    "*.md",
    "*.html",
    "*.png",
    "*.txt",
    "*.jinja",
    "*.sha256",
)
PAGES = ("*.html", "*certificate.png")
"""Not downloaded: no hash says that they show what the run's files hold, and a page may hold code.
`terrella view` makes a page of one's own."""
SCRATCH_FOLDERS = ("start", "warm", "served", "engine", "view")
"""Models that a run began with, logs and pages, which nobody else needs."""
BESIDE = (".gitattributes", ".gitignore", "LICENSE", "LICENSE.txt", "NOTICE")
"""Files that hubs and people put into a repository; they are not downloaded."""
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ =+-]*")
"""A part of a path: no other separators, no drives, nothing hidden, no control characters."""
REPO_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
Kind = Literal["model", "dataset"]


def push(folder: Path, repo: str, *, private: bool = True) -> str:
    """Upload a run with its card; return the URL of the commit.

    The token is `HF_TOKEN`, or that of your login.
    """
    _check_name(repo)
    run = read_run(folder)
    api = _hub().HfApi()
    kind: Kind = "dataset" if run.kind == "store" else "model"
    with tempfile.TemporaryDirectory() as scratch, _asking(repo):
        staged = _stage(folder, Path(scratch), card(run))
        api.create_repo(repo, repo_type=kind, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo,
            repo_type=kind,
            folder_path=staged,
            commit_message=f"terrella: {run.name}",
        )
    return str(commit.commit_url)


def _stage(folder: Path, scratch: Path, card_text: str) -> Path:
    """Link the files to upload into a folder of their own, and write the card there."""
    files = _uploaded_files(folder)
    if not files:
        raise ConfigError(
            str(folder), "holds nothing to push", f"known kinds: {', '.join(ALLOWED)}"
        )
    for path in files:
        name = path.relative_to(folder)
        inside(folder, name.as_posix())  # a link could publish any file of this machine
        target = scratch / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path.resolve())
    readme = scratch / "README.md"
    readme.unlink(missing_ok=True)
    readme.write_text(card_text, "utf-8")
    return scratch


def _uploaded_files(folder: Path) -> list[Path]:
    """Results of known kinds, without checkpoints, scratch files and models in between."""
    found: list[Path] = []
    dropped: set[Path] = set()
    for place, folders, names in os.walk(folder):
        here = Path(place)
        dropped |= _models_in_between(here)
        if is_work_folder(here, folder):
            names, folders[:] = [], [name for name in folders if name == TOKENS]
        folders[:] = [
            name
            for name in folders
            if name not in SCRATCH_FOLDERS
            and not name.endswith(SCRATCH)
            and here / name not in dropped
        ]
        found += [here / name for name in names if _is_allowed(name)]
    return sorted(path for path in found if path.is_file())


def _models_in_between(run: Path) -> set[Path]:
    """The folders of weights that a run made before its last ones."""
    made = [run / name for name in FINAL_FOLDERS if (run / name / "config.json").is_file()]
    phases = [path.parent for path in run.glob("phase-*/*/config.json")]  # actors and critics
    return {*made[1:], *phases}


def pull(repo: str, folder: Path, *, kind: Kind = "model", revision: str | None = None) -> str:
    """Download a run, without its pages, into a new folder; return the commit it is pinned to."""
    _check_name(repo)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(str(folder), "is not empty", "choose a new folder")
    hub = _hub()
    with _asking(repo):
        info = hub.HfApi().repo_info(repo, repo_type=kind, revision=revision)
    _refuse_others(repo, [file.rfilename for file in info.siblings or ()])
    with locked(folder):
        with _asking(repo):
            hub.snapshot_download(
                repo,
                repo_type=kind,
                revision=info.sha,
                local_dir=folder,
                allow_patterns=list(ALLOWED),
                ignore_patterns=list(PAGES),
            )
        _verify(folder)
        write_json(folder / "pulled.json", {"repo": repo, "commit": str(info.sha)})
    return str(info.sha)


def _refuse_others(repo: str, names: list[str]) -> None:
    """Refuse the whole repository: a file that could run code is not just skipped.

    Kinds are allowed, not forbidden: nobody knows all that some program would run or unpickle.
    """
    strange = [name for name in names if name not in BESIDE and not _is_plain(name)]
    if strange:
        raise ConfigError(repo, f"holds names that could leave the folder: {strange[0]!a}")
    others = [name for name in names if name not in BESIDE and not _is_allowed(name)]
    if others:
        raise ConfigError(
            repo,
            f"holds files that could run code: {', '.join(others[:3])}",
            f"ask its owner for these kinds only: {', '.join(ALLOWED)}",
        )


def _is_plain(name: str) -> bool:
    return all(FILE_NAME.fullmatch(part) for part in name.split("/"))


def _is_allowed(name: str) -> bool:
    """By its last ending as it is written; `.PY`, `.so.1` and `.json.exe` are other kinds."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in ALLOWED)


def _verify(folder: Path) -> None:
    """Check the hashes of the run and of its episode store, and that models are data."""
    for config in folder.rglob("*config.json"):
        refuse_code(config.parent)
    run = read_run(folder)
    with reading(str(folder), STRANGE):
        listed = [inside(folder, name) for name in run.manifest.get("files", {})]
    for path in listed:
        if path.exists():  # checkpoints and models in between are not pushed
            check_model(path.parent) if path.name == LISTING else check_result(path)
    if run.kind == "store":
        EpisodeStore.open(folder).verify()
    elif run.store is not None:
        run.store.verify()
    elif run.kind == "world model":
        raise StoreError(str(folder), "the model's data is missing from the download", "pull again")


def _check_name(repo: str) -> None:
    if not REPO_NAME.fullmatch(repo):
        raise ConfigError(repo, "is not the name of a repository", "write owner/name")


@contextlib.contextmanager
def _asking(repo: str) -> Iterator[None]:
    """Turn errors of the hub and of the way to it into ours."""
    from huggingface_hub import constants
    from huggingface_hub import errors as hub_errors

    errors: Any = hub_errors  # its HTTPError is there, but not exported by name
    try:
        yield
    except errors.HfHubHTTPError as error:  # the hub answered
        raise ConfigError(
            repo,
            f"{constants.ENDPOINT} refused: {_first_line(error)}",
            "check the name, the revision, and that HF_TOKEN may do this",
        ) from error
    except (
        errors.HTTPError,  # of the library beneath, whose name changes with the hub's version
        errors.OfflineModeIsEnabled,
        errors.LocalEntryNotFoundError,
    ) as error:
        raise ConfigError(
            constants.ENDPOINT,
            f"cannot be reached ({_first_line(error)})",
            "check the network, HF_ENDPOINT and HF_TOKEN",
        ) from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtraError("hub", "pushing and pulling") from error
    return huggingface_hub

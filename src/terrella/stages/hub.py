"""`terrella push FOLDER REPO` and `terrella pull REPO FOLDER`: runs to and from a Hugging Face hub.

What is pushed is a list of known kinds of files (weights as safetensors, JSON, Parquet, pages, pictures) and a card
made from the run's own manifest. What is pulled is pinned to a commit, and files that could run code are refused.
    push(Path("runs/lake"), "me/lake"); pull("me/lake", Path("runs/lake"), revision="abc123")
"""

from __future__ import annotations

import fnmatch
import tempfile
from pathlib import Path
from typing import Any, Literal

from terrella.core.errors import ConfigError, MissingExtraError, StoreError
from terrella.data.store import EpisodeStore, write_atomic
from terrella.show.cards import card
from terrella.show.runs import read_run

ALLOWED = ("*.safetensors", "*.json", "*.jsonl", "*.parquet", "*.md", "*.html", "*.png", "*.txt", "*.jinja")
LEFT_OUT = ("sft/*", "rlvr/*", "fitted/*", "warm/*", "served/*", "view/*", "*.tmp", "*.log")
"""Checkpoints and scratch: not what somebody else wants."""
CODE = (".py", ".pkl", ".pickle", ".pt", ".pth", ".bin", ".so", ".sh")
Kind = Literal["model", "dataset"]


def push(folder: Path, repo: str, *, private: bool = True, message: str = "") -> str:
    """Upload a run with its card; returns the commit's address. The token is `HF_TOKEN`, or that of your login."""
    run = read_run(folder)
    api = _hub().HfApi()
    kind: Kind = "dataset" if run.kind == "store" else "model"
    api.create_repo(repo, repo_type=kind, private=private, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        staged = _stage(folder, Path(scratch), card(run))
        commit = api.upload_folder(
            repo_id=repo, repo_type=kind, folder_path=staged, commit_message=message or f"terrella: {run.name}"
        )
    return str(commit.commit_url)


def _stage(folder: Path, scratch: Path, words: str) -> Path:
    """The files that go, linked into a folder of their own, with the card."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and _goes(path.relative_to(folder))]
    if not files:
        raise ConfigError(str(folder), "holds nothing to push", f"known kinds: {', '.join(ALLOWED)}")
    for path in files:
        target = scratch / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path.resolve())
    (scratch / "README.md").unlink(missing_ok=True)
    (scratch / "README.md").write_text(words, "utf-8")
    return scratch


def _goes(path: Path) -> bool:
    name = path.as_posix()
    wanted = any(fnmatch.fnmatch(path.name, pattern) for pattern in ALLOWED)
    return wanted and not any(fnmatch.fnmatch(name, pattern) for pattern in LEFT_OUT)


def pull(repo: str, folder: Path, *, kind: Kind = "model", revision: str | None = None) -> str:
    """Download a run into a new folder; returns the commit that it is pinned to."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(str(folder), "is not empty", "choose a new folder")
    hub = _hub()
    info = hub.HfApi().repo_info(repo, repo_type=kind, revision=revision)
    _refuse_code(repo, [file.rfilename for file in info.siblings or ()])
    hub.snapshot_download(repo, repo_type=kind, revision=info.sha, local_dir=folder, allow_patterns=list(ALLOWED))
    _check(folder)
    write_atomic(folder / "pulled.json", f'{{"repo": "{repo}", "commit": "{info.sha}"}}\n'.encode())
    return str(info.sha)


def _refuse_code(repo: str, names: list[str]) -> None:
    """A file that Python could run, or unpickle, is a reason to stop, not to skip it."""
    bad = [
        name for name in names if Path(name).suffix in (".py", ".pkl", ".pickle", ".pt", ".pth", ".bin", ".so", ".sh")
    ]
    if bad:
        raise ConfigError(
            repo, f"holds files that could run code: {', '.join(bad[:3])}", "ask its owner for safetensors"
        )
    climbing = [name for name in names if Path(name).is_absolute() or ".." in Path(name).parts]
    if climbing:
        raise ConfigError(repo, f"holds paths that leave the folder: {climbing[0]}")


def _check(folder: Path) -> None:
    """The hashes that the run itself promises: a store's parts."""
    run = read_run(folder)
    if run.kind == "store":
        EpisodeStore.open(folder).verify()
    elif run.store is not None:
        run.store.verify()
    elif run.kind == "world model":
        raise StoreError(str(folder), "the model's data did not come with it", "pull again")


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtraError("hub", "pushing and pulling") from error
    return huggingface_hub

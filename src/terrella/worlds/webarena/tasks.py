"""Task files of WebArena, WebArena-Lite and WebArena-Verified, read as they are, strictly.

Each file keeps its dialect, because the same words mean different things: `webarena`, `vab` (Lite) or `verified`.
    tasks = load_tasks("webarena")            # 812, from the PyPI package libwebarena
    tasks = load_tasks("webarena_lite"); load_tasks("webarena_verified"); load_tasks("mini"); load_tasks("my.json")
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from terrella.core.errors import ConfigError, MissingExtraError

Dialect = Literal["webarena", "vab", "verified"]
PLACEHOLDERS = (
    "__SHOPPING_ADMIN__", "__SHOPPING__", "__REDDIT__", "__GITLAB__", "__MAP__", "__WIKIPEDIA__", "__HOMEPAGE__",
)  # fmt: skip
SOURCES: dict[str, tuple[str, str, Dialect, str]] = {
    "webarena": ("webarena", "test.raw.json", "webarena", "libwebarena"),
    "webarena_lite": ("browsergym.webarenalite", "test_webarena_lite.raw.json", "vab", "browsergym-webarenalite"),
    "webarena_verified": (
        "webarena_verified", "assets/dataset/webarena-verified.json", "verified", "webarena-verified",
    ),
}  # fmt: skip
"""name -> (module that holds the file, path in it, dialect, PyPI package)."""
MINI = Path(__file__).parent / "mini_tasks.json"
STRING_RULES = ("exact_match", "must_include", "fuzzy_match", "must_exclude", "one_of", "required_values")
EVAL_TYPES = ("string_match", "url_match", "program_html", "db_query")
EVALUATORS = ("AgentResponseEvaluator", "NetworkEventEvaluator")


@dataclass(frozen=True, kw_only=True)
class PageCheck:
    """One `program_html` check: where to look, what to read there, what it must hold."""

    url: str
    locator: str
    required: Mapping[str, Any]
    prepare: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Query:
    """A check of a site's database: what a SELECT must return, row by row."""

    site: str
    query: str
    expected: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, kw_only=True)
class WebTask:
    """One task in the words of its file."""

    dialect: Dialect
    task_id: int
    sites: tuple[str, ...]
    intent: str
    start_urls: tuple[str, ...]
    template: int
    require_login: bool = True
    eval_types: tuple[str, ...] = ()
    answers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    string_note: str = ""
    reference_url: str = ""
    url_note: str = ""
    pages: tuple[PageCheck, ...] = ()
    queries: tuple[Query, ...] = ()
    evaluators: tuple[Mapping[str, Any], ...] = ()
    """Verified dialect: its evaluators as they stand in the file."""
    oracle: tuple[str, ...] = ()
    """Mini-arena: a script that solves it (see `oracle.py`)."""

    @property
    def needs_judge(self) -> bool:
        """Whether some check asks for an opinion."""
        return "fuzzy_match" in self.answers or any("fuzzy_match" in page.required for page in self.pages)


def load_tasks(name: str) -> list[WebTask]:
    """All tasks of a known collection, or of a JSON file."""
    if name == "mini":
        return [read_task(row, "vab") for row in json.loads(MINI.read_text("utf-8"))]
    if name in SOURCES:
        module, path, dialect, package = SOURCES[name]
        found = _find_module(module)
        if found is None:
            raise MissingExtraError("web", f"the tasks of {name} (pip install --no-deps {package})")
        return [read_task(row, dialect) for row in json.loads((found / path).read_text("utf-8"))]
    file = Path(name)
    if not file.is_file():
        raise ConfigError("webarena.tasks", f"no collection {name!r}", f"known: mini, {', '.join(SOURCES)}, or a file")
    return [read_task(row, _guess_dialect(row)) for row in json.loads(file.read_text("utf-8"))]


def _find_module(name: str) -> Path | None:
    """The folder of a package, found without importing it (its own imports may be missing)."""
    top, *rest = name.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    folders = [Path(place) for place in spec.submodule_search_locations or []]
    return next((path for folder in folders if (path := folder.joinpath(*rest)).is_dir()), None)


def _guess_dialect(row: Mapping[str, Any]) -> Dialect:
    if isinstance(row.get("eval"), list):
        return "verified"
    return "vab" if "old_task_id" in row else "webarena"


def read_task(row: Mapping[str, Any], dialect: Dialect) -> WebTask:
    """One task; ConfigError names what cannot be read."""
    where = f"task {row.get('task_id')}"
    try:
        return _read_verified(row) if dialect == "verified" else _read_classic(row, dialect)
    except (KeyError, TypeError) as error:
        raise ConfigError(where, f"is not a {dialect} task: {type(error).__name__} {error}") from error


def _read_verified(row: Mapping[str, Any]) -> WebTask:
    _only(row["task_id"], {one["evaluator"] for one in row["eval"]}, EVALUATORS)
    return WebTask(
        dialect="verified", task_id=int(row["task_id"]), sites=tuple(row["sites"]), intent=row["intent"],
        start_urls=tuple(row["start_urls"]), template=int(row["intent_template_id"]), evaluators=tuple(row["eval"]),
    )  # fmt: skip


def _read_classic(row: Mapping[str, Any], dialect: Dialect) -> WebTask:
    told = row["eval"]
    answers = told.get("reference_answers") or {}
    pages = tuple(_read_page(row["task_id"], page) for page in told.get("program_html") or ())
    _only(row["task_id"], set(told["eval_types"]), EVAL_TYPES)
    _only(row["task_id"], set(answers), STRING_RULES)
    return WebTask(
        dialect=dialect, task_id=int(row["task_id"]), sites=tuple(row["sites"]), intent=row["intent"],
        start_urls=tuple(row["start_url"].split(" |AND| ")), template=int(row["intent_template_id"]),
        require_login=bool(row["require_login"]), eval_types=tuple(told["eval_types"]), answers=answers,
        string_note=told.get("string_note") or "", reference_url=told.get("reference_url") or "",
        url_note=told.get("url_note") or "", pages=pages, queries=tuple(map(_read_query, told.get("db_query") or ())),
        oracle=tuple(row.get("oracle", ())),
    )  # fmt: skip


def _read_page(task: int, page: Mapping[str, Any]) -> PageCheck:
    _only(task, set(page), ("url", "locator", "required_contents", "prep_actions"))
    _only(task, set(page["required_contents"]), STRING_RULES)
    prepare = tuple(page.get("prep_actions") or ())
    return PageCheck(url=page["url"], locator=page["locator"], required=page["required_contents"], prepare=prepare)


def _read_query(row: Mapping[str, Any]) -> Query:
    return Query(site=row["site"], query=row["query"], expected=tuple(map(tuple, row["expected"])))


def _only(task: int, found: set[str], known: tuple[str, ...]) -> None:
    unknown = found - set(known)
    if unknown:
        raise ConfigError(f"task {task}", f"unknown {sorted(unknown)[0]!r}", f"known: {', '.join(known)}")

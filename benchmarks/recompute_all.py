"""Which numbers of the pages are computed again, and which have no rows.

`FROM_ROWS` and `INSIDE` say how a result follows from its rows. A number that a page reads and that
they do not give is named: its part of the result has no rows. A file of rows that nothing reads is
a fault.
    differences, without_rows = recompute_all()
"""

import json
import math

import common
import recompute
import recompute_coverage
from table_rows import PARTS, SECTIONS
from watched import numbers_read

from terrella.core.result_rows import read_rows

ROWS = common.RESULTS / "rows"
REPRODUCTIONS = (
    "spa_frozen_lake",
    "spa_sokoban",
    "spa_sokoban_one_base",
    "spa_sudoku",
    "spa_smollm2_lake",
    "webrl_sokoban",
    "webrl_miniwob",
    "webrl_miniwob_unseen",
    "webrl_smollm2_miniwob",
    "webrl_smollm2_arena",
)
FROM_ROWS = {
    **dict.fromkeys(REPRODUCTIONS, recompute.reproduction),
    "bytesized32": recompute.text_games,
    "spa_smollm2_choose": recompute.choices,
    "trust_coverage": recompute_coverage.coverage,
    "trust_gate": recompute.gate,
    "teaching": recompute.teaching,
    "textworld": recompute.textworld,
    "video_contact": recompute.policy_rankings,
    "video_model": recompute.video,
    "web_pages": recompute.pages,
    "web_plan_parts": recompute.web_parts,
    "webrl_judge": recompute.judged,
}
"""How a result follows from its rows. A name also stands for those that go on with `_`."""
INSIDE = {
    "evaluate_sokoban": recompute.evaluated_agent,
    "smollm2_counter": recompute.validated,
    "video_plan": recompute.planned,
}
"""Results that hold the values of each instance themselves; pages quote them."""
FROM_OTHER_NUMBERS = {
    **dict.fromkeys(REPRODUCTIONS, recompute.claims),
    "webrl_judge": recompute.flips,
}
"""What follows from other numbers of the record. Those may have no rows."""
QUOTED = ("trust_certificates",)
"""Results whose verdicts stand in rows of others: the README and docs/numbers.md read them."""
NO_INSTANCES = (
    "foundation",
    "engine",
    "engine_verl",
    "engine_matrix",
    "engine_vllm",
    "engine_fsdp2",
    "engine_async",
    "engine_memory",
    "engine_tinker",
    "video_listens",
    "web_arena",
    "web_miniwob",
    "serve_load",
    "viewer",
)
"""Counts, timings and checks of one run: there is no claim over instances to compute again."""
SETTINGS = ("margin", "looks", "level", "least_after", "least_seeds", "attempts")
"""What was stated before a result was measured."""


def recompute_all():
    """What differs, and what the pages show without rows: results, and parts of results."""
    differences, without_rows = unread_rows(), []
    shown = [name for names in SECTIONS.values() for name in names]
    for name in dict.fromkeys((*shown, *QUOTED, *with_rows(), *INSIDE)):
        record = common.read_results(name)
        if record and name not in NO_INSTANCES:
            changed, missing = recompute_one(name, record)
            differences, without_rows = [*differences, *changed], [*without_rows, *missing]
    return differences, without_rows


def recompute_one(name, record):
    """What differs in one result, and which of its parts have no rows."""
    fresh = from_instances(name, record)
    differences = compare(record, fresh, name)
    if check := reader(FROM_OTHER_NUMBERS, name):
        differences += compare(record, as_json(check(record)), name)
    return differences, uncovered(name, record, fresh)


def with_rows():
    return [path.name.removesuffix(".json.gz") for path in sorted(ROWS.glob("*.json.gz"))]


def unread_rows():
    """Files of rows that no function reads, or that belong to no result."""
    found = []
    for name in with_rows():
        if reader(FROM_ROWS, name) is None:
            found.append(f"{name}: has rows, but nothing computes it from them")
        elif not common.read_results(name):
            found.append(f"{name}: has rows, but there is no results/{name}.json")
    return found


def reader(functions, name):
    """The function of the longest name that this one is, or goes on from."""
    fits = [known for known in functions if f"{name}_".startswith(f"{known}_")]
    return functions[max(fits, key=len)] if fits else None


def from_instances(name, record):
    """What follows from the rows, as it stands in a JSON file; nothing without rows."""
    path, read = ROWS / f"{name}.json.gz", reader(FROM_ROWS, name)
    if path.exists() and read:
        return as_json(read(record, read_rows(path)))
    return as_json(INSIDE[name](record)) if name in INSIDE else {}


def as_json(value):
    return json.loads(json.dumps(value))


def uncovered(name, record, fresh):
    """The result, or those of its parts, whose numbers a page reads and no row gives."""
    if not fresh:
        return [name]
    if name not in PARTS:
        return []
    parts = {
        part_of(path, fresh): None
        for path in numbers_read(PARTS[name], record)
        if path[-1] not in SETTINGS and not given(path, fresh)
    }
    return [f"{name}: {', '.join(part)}" for part in parts]


def given(path, fresh):
    """Whether the rows give the number at this path."""
    for key in path:
        if not isinstance(fresh, dict) or key not in fresh:
            return False
        fresh = fresh[key]
    return True


def part_of(path, fresh):
    """The shortest beginning of a path of which the rows give nothing."""
    lengths = range(1, len(path) + 1)
    return path[: next(n for n in lengths if not given(path[:n], fresh))]


def compare(record, fresh, path):
    """Where the record differs from what was computed; it may hold more."""
    if isinstance(fresh, dict) and isinstance(record, dict):
        found = []
        for key, value in fresh.items():
            if str(key) not in record:
                found.append(f"{path}.{key}: is missing")
            else:
                found += compare(record[str(key)], value, f"{path}.{key}")
        return found
    if isinstance(fresh, list | tuple) and isinstance(record, list):
        if len(fresh) != len(record):
            return [f"{path}: {len(record)} values there, {len(fresh)} computed"]
        pairs = enumerate(zip(record, fresh, strict=True))
        return [each for n, pair in pairs for each in compare(*pair, f"{path}[{n}]")]
    both = isinstance(record, int | float) and isinstance(fresh, int | float)
    same = math.isclose(record, fresh, rel_tol=1e-9, abs_tol=1e-9) if both else record == fresh
    return [] if same else [f"{path}: {record} there, {fresh} computed"]

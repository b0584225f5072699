"""Measures text-game world models into results/bytesized32_*.json and results/textworld_*.json.

TERRELLA_BYTESIZED32=FOLDER python results/measure_text_games.py rewards baselines
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from terrella.core.stats import wilson
from terrella.core.types import Split
from terrella.verify.properties import REWARDS, reward
from terrella.worlds.bytesized32.baselines import NearestNeighbour, no_change
from terrella.worlds.bytesized32.records import Record
from terrella.worlds.bytesized32.rewards import released
from terrella.worlds.bytesized32.sources import data_folder
from terrella.worlds.bytesized32.splits import load_pools
from terrella.worlds.bytesized32.things import SCORE, Things

HERE = Path(__file__).parent
SPLITS = ("official", "official_dedup", "held_out_games")


def write(name: str, part: str, found: Any) -> None:
    """One file per topic; a part is replaced, the others stay."""
    path = HERE / f"{name}.json"
    told = json.loads(path.read_text("utf-8")) if path.exists() else {}
    command = " ".join(["TERRELLA_BYTESIZED32=FOLDER", "python", "results/measure_text_games.py", *sys.argv[1:]])
    machine = f"{platform.machine()}, one core, no GPU"
    told[part] = {"command": command, "machine": machine, "when": time.strftime("%Y-%m-%d"), **found}
    path.write_text(json.dumps(told, indent=1) + "\n", "utf-8")


def need_data() -> None:
    if data_folder(None) is None:
        sys.exit("set TERRELLA_BYTESIZED32 to the folder with the data: the made sample is not worth measuring")


def share(right: int, n: int) -> dict[str, Any]:
    low, high = wilson(right, n)
    return {"right": right, "n": n, "share": round(right / n, 4), "interval": [round(low, 4), round(high, 4)]}


# --- what each reward gives to whom -----------------------------------------------------------------------------------


def with_bogus(before: Things, after: Things) -> Things:
    """The truth, with an invented property on every object that changes."""
    changed = {key for key in after if key != SCORE and before.get(key) != after[key]}
    return {key: {**thing, "isBogus": "true"} if key in changed else thing for key, thing in after.items()}


def without_removals(before: Things, after: Things) -> Things:
    """The truth, but nothing is said to be gone: what should be is nowhere."""
    kept = {key: {**thing, ":in": "nowhere"} for key, thing in before.items() if key not in after}
    return {**after, **kept}


REPLIES: dict[str, Callable[[Things, Things], Things]] = {
    "truth": lambda before, after: after,
    "nothing happens": lambda before, after: before,
    "truth with invented properties": with_bogus,
    "truth without removals": without_removals,
}


def rewards() -> None:
    need_data()
    rows = load_pools(None, "official")[Split.TEST]
    values: dict[tuple[str, str], dict[bool, list[float]]] = defaultdict(lambda: {False: [], True: []})
    faults: Counter[str] = Counter()
    for row in rows:
        before, after = row.question("full")
        said = {name: reply(before, after) for name, reply in REPLIES.items()}
        for name, state in said.items():
            for kind in REWARDS:
                values[name, kind][row.changed].append(float(reward(kind, before, state, after).value or 0.0))
        old = {name: float(released(before, state, after).value or 0.0) for name, state in said.items()}
        for name, value in old.items():
            values[name, "released"][row.changed].append(value)
        count_faults(faults, before, after, old)
    table = {name: {kind: means(values[name, kind]) for kind in (*REWARDS, "released")} for name in REPLIES}
    whole = all(table["truth"][kind]["least"] == 1.0 for kind in REWARDS)
    write("bytesized32_rewards", "official test", {"n": len(rows), "truth scores 1 everywhere but released": whole,
                                                   "table": table, "faults of released": dict(faults)})  # fmt: skip


def count_faults(faults: Counter[str], before: Things, after: Things, old: dict[str, float]) -> None:
    if after.keys() - before.keys():
        faults["rows that create objects"] += 1
        faults["rows that create objects: truth scores 0"] += old["truth"] == 0
    if before.keys() - after.keys():
        faults["rows that remove objects"] += 1
        faults["rows that remove objects: 1 without saying so"] += old["truth without removals"] == 1
    if before != after and old["truth"] == 1:
        faults["changed rows whose truth scores 1"] += 1
        faults["changed rows whose truth scores 1: 1 with invented properties"] += (
            old["truth with invented properties"] == 1
        )


def means(values: dict[bool, list[float]]) -> dict[str, float]:
    both = values[False] + values[True]
    found = {"unchanged": values[False], "changed": values[True], "overall": both}
    return {**{name: round(sum(some) / len(some), 4) for name, some in found.items()}, "least": min(both)}


# --- what needs no model ----------------------------------------------------------------------------------------------


def baselines() -> None:
    need_data()
    for splits in SPLITS:
        pools = load_pools(None, splits)
        learnt = [*pools[Split.TRAIN], *pools[Split.VALIDATION]]
        copies = {
            "no_change": no_change, "nearest_neighbour": NearestNeighbour(learnt).predict,
            "nearest_neighbour_inside_tables": NearestNeighbour(learnt, inside_tables=True).predict,
        }  # fmt: skip
        sizes = {split.value: len(rows) for split, rows in pools.items()}
        found = {name: accuracy(pools[Split.TEST], predict) for name, predict in copies.items()}
        games = sorted({row.game for row in pools[Split.TEST]})
        write("bytesized32_baselines", splits, {"rows": sizes, "test games": len(games), **found})


def accuracy(rows: Any, predict: Callable[[Record], Things]) -> dict[str, Any]:
    """Exact matches: unchanged, changed, overall."""
    counts: Counter[tuple[str, bool]] = Counter()
    for row in rows:
        right = predict(row) == row.question("full")[1]
        for name in ("changed" if row.changed else "unchanged", "overall"):
            counts[name, right] += 1
    names = ("unchanged", "changed", "overall")
    return {name: share(counts[name, True], counts[name, True] + counts[name, False]) for name in names}


PARTS = {"rewards": rewards, "baselines": baselines}

if __name__ == "__main__":
    for wanted in sys.argv[1:] or PARTS:
        PARTS[wanted]()

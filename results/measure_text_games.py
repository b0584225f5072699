"""Measures text-game world models into results/bytesized32_*.json and results/textworld_*.json.

TERRELLA_BYTESIZED32=FOLDER python results/measure_text_games.py rewards baselines
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from terrella.core.stats import wilson
from terrella.core.types import Split, Text
from terrella.use.pass_at_k import paired_difference
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


# --- arms of bytesized32_tiny, compared row by row --------------------------------------------------------------------

ARMS = ("sft", "exact", "task_specific", "sft_all", "nearest_neighbour", "nearest_neighbour_inside_tables")
PAIRS = (("exact", "sft"), ("task_specific", "sft"), ("task_specific", "exact"), ("sft_all", "sft"),
         ("sft_all", "nearest_neighbour"), ("exact", "nearest_neighbour"), ("task_specific", "nearest_neighbour"),
         ("sft_all", "nearest_neighbour_inside_tables"))  # fmt: skip


def tiny() -> None:
    need_data()
    folder = Path(os.environ.get("TERRELLA_RUNS", "runs")) / "bytesized32_tiny"
    rows = load_pools(None, "official")[Split.TEST]
    fresh = {row.key for row in load_pools(None, "official_dedup")[Split.TEST]}
    changed = np.array([row.changed for row in rows])
    sets = {"changed": changed, "unchanged": ~changed, "overall": np.ones(len(rows), bool)}
    dedup = np.array([row.key in fresh for row in rows])
    sets |= {f"dedup_{name}": chosen & dedup for name, chosen in sets.items()}
    marks, arms = {}, {}
    for arm in ARMS:
        paths = sorted(folder.glob(f"{arm}-[0-9]*/manifest.json"))
        told = [json.loads(path.read_text("utf-8")) for path in paths]
        if arm.startswith("nearest_neighbour") and not told:
            learnt = [*load_pools(None, "official")[Split.TRAIN], *load_pools(None, "official")[Split.VALIDATION]]
            copy = NearestNeighbour(learnt, inside_tables=arm.endswith("tables"))
            told = [{"marks": "".join(str(int(copy.predict(row) == row.question("full")[1])) for row in rows)}]
        if told:
            marks[arm] = np.array([[mark == "1" for mark in one["marks"]] for one in told], float)
            arms[arm] = arm_of(told, marks[arm], sets, rows)
            curves = [path.parent / "sharpened" / "curve.jsonl" for path in paths]
            arms[arm]["groups without spread"] = [without_spread(curve) for curve in curves if curve.exists()]
    pairs = [compared(marks, sets, *pair) for pair in PAIRS if pair[0] in marks and pair[1] in marks]
    write("bytesized32_tiny", "arms", {"n": {name: int(chosen.sum()) for name, chosen in sets.items()}, **arms})
    write("bytesized32_tiny", "differences", {"paired": pairs})


def without_spread(curve: Path) -> float:
    """The share of RLVR's groups that were all right or all wrong."""
    shares = [json.loads(line)["zero_variance"] for line in curve.read_text("utf-8").splitlines()]
    return round(sum(shares) / len(shares), 4)


def arm_of(told: Any, marks: Any, sets: Any, rows: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"seeds": len(told)}
    for name, chosen in sets.items():
        values = marks[:, chosen].mean(axis=1)
        found[name] = {"mean": round(float(values.mean()), 4), "per_seed": [round(float(value), 4) for value in values]}
    if "test" in told[0]:
        for name in ("invalid", "created", "removed"):
            found[name] = [round(one["test"][name], 4) for one in told]
        found["seconds"] = [round(one["seconds"]) for one in told]
        found["curves"] = [one["rl"].get("curve", []) for one in told]
        found["validation"] = [one["rl"].get("validation") for one in told]
        games = [by_game(rows, one["marks"]) for one in told]
        found["by game"] = {game: round(sum(one[game] for one in games) / len(games), 3) for game in games[0]}
    return found


def by_game(rows: Any, marks: str) -> dict[str, float]:
    found: dict[str, list[bool]] = defaultdict(list)
    for row, mark in zip(rows, marks, strict=True):
        found[row.game].append(mark == "1")
    return {game: sum(right) / len(right) for game, right in sorted(found.items())}


def compared(marks: Any, sets: Any, better: str, worse: str) -> dict[str, Any]:
    first, second = marks[better], marks[worse]
    runs = min(len(first), len(second)) if len(second) > 1 else len(first)
    second = second[:runs] if len(second) > 1 else np.repeat(second, runs, axis=0)
    found: dict[str, Any] = {"better": better, "worse": worse, "seeds": runs}
    for name, chosen in sets.items():
        estimate = paired_difference(first[:runs, chosen], second[:, chosen])
        found[name] = [round(estimate.mean, 4), round(estimate.low, 4), round(estimate.high, 4)]
    return found


# --- TextWorld: games that were never seen ----------------------------------------------------------------------------

QUESTIONS = 400


def textworld(seed: int) -> None:
    import terrella.recipes.text_games as recipes
    from terrella.engines.episodes.driver import Driver
    from terrella.engines.sampling.local_sampler import LocalSampler
    from terrella.models.presets import load_model
    from terrella.show.progress import make_progress
    from terrella.stages.tasks import PredictionTasks
    from terrella.use.world_models import codec_for

    out = Path(os.environ.get("TERRELLA_RUNS", "runs")) / f"textworld_model-{seed}"
    config = recipes.textworld_model().replace(seed=seed, out=out)
    with make_progress() as progress:
        config.build().run(progress)
    model, tokenizer = load_model(str(out / "model"))
    limits = Driver.Config(world=config.world, max_turns=1, turn_tokens=config.turn_tokens, temperature=0.0)
    driver, sampler = Driver(limits, codec_for(tokenizer)), LocalSampler(model.eval())
    learn = PredictionTasks(config.world, split=Split.TRAIN, seed=99)
    habits = verb_habits([learn(number).transition for number in range(2000)])
    test = PredictionTasks(config.world, split=Split.TEST, seed=99)
    # Few games of the recipe's sixty are test games. Games of other numbers are as new, whichever split they fall into.
    others = PredictionTasks(config.world.replace(first=1000, games=40), split=Split.TRAIN, seed=99)
    for part, ask in ((f"seed {seed}", test), (f"seed {seed}, other games", others)):
        tasks = [ask(number) for number in range(QUESTIONS)]
        episodes = driver.run(sampler, tasks, group_size=1, seed=0)
        games = len({task.situation.observation.text.split("/")[0] for task in tasks})
        found = asked_games(driver.verifier, tasks, episodes, habits)
        write("textworld_unseen_games", part, {"test games": games, "questions": len(tasks), "accuracy": found})


def asked_games(verifier: Any, tasks: Any, episodes: Any, habits: dict[str, str]) -> dict[str, Any]:
    """Right answers of the model and of what needs none, by what changes, rooms, objects and verb."""
    from terrella.core.judge import judge

    right: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for task, episode in zip(tasks, episodes, strict=True):
        step = task.transition
        said = {"model": episode.outcome.value == 1.0}
        for name, reply in (("no_change", Text("=")), ("verb_habit", habit(habits, step))):
            verdict = judge(verifier, reply=reply, truth=step.next_observation, before=step.observation)
            said[name] = verdict.value == 1.0
        _, rooms, objects = step.observation.text.split(";")[0].split("/")
        kind = "unchanged" if step.next_observation.text == "=" else "changed"
        for group in ("overall", kind, f"{rooms} rooms", f"{objects} objects", f"verb {step.action.split()[0]}"):
            for name, ok in said.items():
                right[group][name].append(ok)
    return {group: {name: share(sum(marks), len(marks)) for name, marks in by.items()}
            for group, by in sorted(right.items())}  # fmt: skip


def verb_habits(steps: Any) -> dict[str, str]:
    """Per verb, the change it makes most often on train games, with the command's own things for places."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for step in steps:
        change = step.next_observation.text
        for place, thing in enumerate(re.findall(r"\b[a-z]\d+\b", step.action)):
            change = re.sub(rf"\b{thing}\b", f"<{place}>", change)
        room = re.search(r"at P (r\d+)", step.observation.text)
        counts[step.action.split()[0]][change.replace(room[1], "<room>") if room else change] += 1
    return {verb: found.most_common(1)[0][0] for verb, found in counts.items()}


def habit(habits: dict[str, str], step: Any) -> Text:
    change = habits.get(step.action.split()[0], "=")
    for place, thing in enumerate(re.findall(r"\b[a-z]\d+\b", step.action)):
        change = change.replace(f"<{place}>", thing)
    room = re.search(r"at P (r\d+)", step.observation.text)
    return Text(change.replace("<room>", room[1]) if room else change)


PARTS = {"rewards": rewards, "baselines": baselines, "tiny": tiny}

if __name__ == "__main__":
    for wanted in sys.argv[1:] or PARTS:
        name, _, seed = wanted.partition(":")
        textworld(int(seed)) if name == "textworld" else PARTS[name]()

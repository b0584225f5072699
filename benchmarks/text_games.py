"""Measures text-game world models into results/bytesized32_*.json and results/textworld_*.json.

    TERRELLA_BYTESIZED32=FOLDER python benchmarks/text_games.py rewards baselines tiny smollm2
    python benchmarks/text_games.py textworld:0             trains and tests seed 0
    python benchmarks/text_games.py textworld_smollm2:0     the same with SmolLM2, and RLVR
`tiny` and `smollm2` read the finished jobs of `terrella reproduce bytesized32_tiny` and
`bytesized32_smollm2` in TERRELLA_RUNS (runs/).
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import numpy as np
from recompute import group_counts

from terrella.core.files import read_json_lines
from terrella.core.run_folder import read_manifest
from terrella.core.stats import wilson
from terrella.core.types import Split, Status, Text, Transition
from terrella.verify.properties import REWARDS, reward
from terrella.worlds.bytesized32.baselines import NearestNeighbour, no_change
from terrella.worlds.bytesized32.records import Record
from terrella.worlds.bytesized32.rewards import released
from terrella.worlds.bytesized32.sources import data_folder
from terrella.worlds.bytesized32.splits import Splits, load_pools
from terrella.worlds.bytesized32.things import SCORE, Things

RUNS = Path(os.environ.get("TERRELLA_RUNS", "runs"))
SPLITS = ("official", "official_dedup", "held_out_games")


def write(name: str, part: str, metrics: Mapping[str, Any]) -> None:
    command = common.command(*sys.argv[1:], TERRELLA_BYTESIZED32="FOLDER")
    common.write_part(name, part, metrics, command=command)


def require_data() -> None:
    if data_folder(None) is None:
        sys.exit(
            "TERRELLA_BYTESIZED32 is not set: set it to the folder with the ByteSized32 data "
            "(the built-in sample is too small to measure)"
        )


def fraction(right: int, n: int) -> dict[str, Any]:
    low, high = wilson(right, n)
    return {
        "right": right,
        "n": n,
        "share": round(right / n, 4),
        "interval": [round(low, 4), round(high, 4)],
    }


# --- what each reward gives to which reply --------------------------------------------------------


def with_bogus(before: Things, after: Things) -> Things:
    """The truth, with an invented property on every object that changes."""
    changed = {key for key in after if key != SCORE and before.get(key) != after[key]}
    return {
        key: {**thing, "isBogus": "true"} if key in changed else thing
        for key, thing in after.items()
    }


def without_removals(before: Things, after: Things) -> Things:
    """The truth, but objects that disappear stay, and are in no place."""
    remaining = {
        key: {**thing, ":in": "nowhere"} for key, thing in before.items() if key not in after
    }
    return {**after, **remaining}


REPLIES: dict[str, Callable[[Things, Things], Things]] = {
    "truth": lambda before, after: after,
    "nothing happens": lambda before, after: before,
    "truth with invented properties": with_bogus,
    "truth without removals": without_removals,
}


def rewards() -> None:
    require_data()
    records = load_pools(None, "official")[Split.TEST]
    values: dict[tuple[str, str], dict[bool, list[float]]] = defaultdict(
        lambda: {False: [], True: []}
    )
    faults: Counter[str] = Counter()
    for record in records:
        before, after = record.before_and_after("full")
        old: dict[str, float] = {}
        for name, make_reply in REPLIES.items():
            state = make_reply(before, after)
            for kind in REWARDS:
                value = reward(kind, before, state, after).value
                values[name, kind][record.changed].append(float(value or 0.0))
            old[name] = float(released(before, state, after).value or 0.0)
            values[name, "released"][record.changed].append(old[name])
        count_faults(faults, before, after, old)
    table = {
        name: {kind: means(values[name, kind]) for kind in (*REWARDS, "released")}
        for name in REPLIES
    }
    metrics = {
        "n": len(records),
        "truth scores 1 everywhere but released": all(
            table["truth"][kind]["least"] == 1.0 for kind in REWARDS
        ),
        "table": table,
        "faults of released": dict(faults),
    }
    write("bytesized32_rewards", "official test", metrics)


def count_faults(
    faults: Counter[str], before: Things, after: Things, old: dict[str, float]
) -> None:
    """Count where the released reward, `old` by reply, is wrong."""
    if after.keys() - before.keys():
        faults["rows that create objects"] += 1
        faults["rows that create objects: truth scores 0"] += old["truth"] == 0
    if before.keys() - after.keys():
        faults["rows that remove objects"] += 1
        faults["rows that remove objects: 1 without saying so"] += (
            old["truth without removals"] == 1
        )
    if before != after and old["truth"] == 1:
        faults["changed rows whose truth scores 1"] += 1
        faults["changed rows whose truth scores 1: 1 with invented properties"] += (
            old["truth with invented properties"] == 1
        )


def means(values: dict[bool, list[float]]) -> dict[str, float]:
    both = values[False] + values[True]
    groups = {"unchanged": values[False], "changed": values[True], "overall": both}
    rounded = {name: round(sum(group) / len(group), 4) for name, group in groups.items()}
    return {**rounded, "least": min(both)}


# --- baselines that need no model -----------------------------------------------------------------


def baselines() -> None:
    require_data()
    for splits in SPLITS:
        pools = load_pools(None, splits)
        known = [*pools[Split.TRAIN], *pools[Split.VALIDATION]]
        predictors: dict[str, Callable[[Record], Things]] = {
            "no_change": no_change,
            "nearest_neighbour": NearestNeighbour(known).predict,
            "nearest_neighbour_inside_tables": NearestNeighbour(known, inside_tables=True).predict,
        }
        metrics: dict[str, Any] = {
            "rows": {split.value: len(records) for split, records in pools.items()},
            "test games": len({record.game for record in pools[Split.TEST]}),
        }
        for name, predict in predictors.items():
            metrics[name] = accuracy(pools[Split.TEST], predict)
        write("bytesized32_baselines", splits, metrics)


def accuracy(records: Sequence[Record], predict: Callable[[Record], Things]) -> dict[str, Any]:
    """Exact matches: unchanged, changed, overall."""
    right: dict[str, list[bool]] = {"unchanged": [], "changed": [], "overall": []}
    for record in records:
        correct = predict(record) == record.before_and_after("full")[1]
        right["changed" if record.changed else "unchanged"].append(correct)
        right["overall"].append(correct)
    return {name: fraction(sum(marks), len(marks)) for name, marks in right.items()}


# --- arms of a comparison, compared record by record ----------------------------------------------

ARMS = (
    "sft",
    "exact",
    "task_specific",
    "exact_refill",
    "sft_all",
    "nearest_neighbour",
    "nearest_neighbour_inside_tables",
)
SMOLLM2_ARMS = ("sft", "exact", "no_change", "nearest_neighbour")


@dataclass(frozen=True)
class ArmRuns:
    """The finished runs of one arm, one per seed."""

    marks: np.ndarray
    """Whether each test record was answered correctly, [seed, record]."""
    results: list[dict[str, Any]]
    """The result of each run with its `seconds`; empty for a baseline that was predicted here."""
    zero_variance: list[float]
    """Fraction of RLVR's groups that were all right or all wrong, by seed."""


def tiny() -> None:
    compare("bytesized32_tiny", "official", ARMS)


def smollm2() -> None:
    compare("bytesized32_smollm2", "held_out_games", SMOLLM2_ARMS)


def compare(name: str, splits: Splits, names: Sequence[str]) -> None:
    """The arms of a comparison whose jobs are finished, and their rows.

    `tables.py` decides the claims from the arms.
    """
    require_data()
    pools = load_pools(None, splits)
    records = pools[Split.TEST]
    sets = record_sets(records, dedup=splits == "official")
    found = {arm: read_arm(RUNS / name, arm, pools) for arm in names}
    arms = {arm: runs for arm, runs in found.items() if runs is not None}
    counts = {"n": {each: int(chosen.sum()) for each, chosen in sets.items()}}
    metrics = {arm: arm_metrics(runs, sets, records) for arm, runs in arms.items()}
    rows = {
        "records": [list(record.key) for record in records],
        "sets": {each: as_bits(chosen) for each, chosen in sets.items()},
        "arms": {arm: [as_bits(marks) for marks in runs.marks] for arm, runs in arms.items()},
    }
    common.write_rows(name, rows)
    write(name, "arms", {"splits": splits, **counts, **metrics})


def as_bits(flags: np.ndarray) -> str:
    return "".join("1" if flag else "0" for flag in flags)


def record_sets(records: Sequence[Record], *, dedup: bool) -> dict[str, np.ndarray]:
    """Groups of test records by name; `dedup_` leaves out those that also occur in train."""
    changed = np.array([record.changed for record in records])
    sets = {"changed": changed, "unchanged": ~changed, "overall": np.ones(len(records), bool)}
    if not dedup:
        return sets
    unseen = {record.key for record in load_pools(None, "official_dedup")[Split.TEST]}
    is_unseen = np.array([record.key in unseen for record in records])
    return sets | {f"dedup_{name}": chosen & is_unseen for name, chosen in sets.items()}


def read_arm(out: Path, name: str, pools: Mapping[Split, Sequence[Record]]) -> ArmRuns | None:
    """The runs of an arm; nearest neighbours are predicted here if they were not run."""
    folders = [path.parent for path in sorted(out.glob(f"{name}-[0-9]*/manifest.json"))]
    if not folders and name.startswith("nearest_neighbour"):
        known = [*pools[Split.TRAIN], *pools[Split.VALIDATION]]
        neighbour = NearestNeighbour(known, inside_tables=name.endswith("tables"))
        right = [
            neighbour.predict(each) == each.before_and_after("full")[1]
            for each in pools[Split.TEST]
        ]
        return ArmRuns(np.array([right], float), [], [])
    if not folders:
        return None
    manifests = [read_manifest(folder) for folder in folders]
    results = [{**manifest.metrics, "seconds": manifest.seconds} for manifest in manifests]
    marks = [[mark == "1" for mark in result["marks"]] for result in results]
    curves = [folder / "curve.jsonl" for folder in folders]
    return ArmRuns(
        np.array(marks, float),
        results,
        [zero_variance(curve) for curve in curves if curve.exists()],
    )


def zero_variance(curve: Path) -> float:
    fractions = [row["zero_variance"] for row in read_json_lines(curve)]
    return round(sum(fractions) / len(fractions), 4)


def arm_metrics(
    runs: ArmRuns, sets: Mapping[str, np.ndarray], records: Sequence[Record]
) -> dict[str, Any]:
    metrics: dict[str, Any] = {"seeds": len(runs.marks)}
    for name, chosen in sets.items():
        values = runs.marks[:, chosen].mean(axis=1)
        metrics[name] = {
            "mean": round(float(values.mean()), 4),
            "per_seed": [round(float(value), 4) for value in values],
        }
    if runs.results:
        for name in ("invalid", "created", "removed"):
            values = [result["test"].get(name) for result in runs.results]
            metrics[name] = [None if value is None else round(value, 4) for value in values]
        rl = [result["rl"] for result in runs.results]
        metrics["seconds"] = [round(result["seconds"]) for result in runs.results]
        metrics["curves"] = [part["reward"] for part in rl]
        metrics["validation"] = [[part["before"], part["after"]] for part in rl]
        metrics["by game"] = by_game(records, runs.marks)
    metrics["groups without spread"] = runs.zero_variance
    return metrics


def by_game(records: Sequence[Record], marks: np.ndarray) -> dict[str, float]:
    """Fraction of correct answers by game, mean over seeds."""
    games = np.array([record.game for record in records])
    return {
        str(game): round(float(marks[:, games == game].mean(axis=1).mean()), 3)
        for game in sorted(set(games))
    }


# --- TextWorld: unseen games ----------------------------------------------------------------------

TASKS = 400


def textworld(seed: int, recipe: str = "textworld_model") -> None:
    """Train a recipe and test it on games that it never saw; before RLVR, too, if it has RLVR."""
    from terrella.codecs.choose import codec_for
    from terrella.engines.engine import load_tokenizer, open_sampler
    from terrella.pipelines.world_model import TrainWorldModel
    from terrella.recipes import find_recipe
    from terrella.rollout.rollout import Rollout
    from terrella.rollout.tasks import PredictionTasks
    from terrella.show.progress import make_progress

    out = RUNS / f"{recipe}-{seed}"
    config = find_recipe(recipe)().replace(seed=seed, out=out)
    with make_progress() as progress:
        TrainWorldModel(config).run(progress)
    limits = Rollout.Config(
        world=config.world, max_turns=1, turn_tokens=config.turn_tokens, temperature=0.0
    )
    rollout = Rollout(limits, codec_for(load_tokenizer(out / "model")))
    train = PredictionTasks(config.world, split=Split.TRAIN, seed=99)
    habits = verb_habits([train(number).transition for number in range(2000)])
    # Few games of the recipe's sixty are test games. Games with other numbers are as new, whichever
    # split they fall into.
    other_games = config.world.replace(first=1000, games=40)
    parts = {
        f"seed {seed}": PredictionTasks(config.world, split=Split.TEST, seed=99),
        f"seed {seed}, other games": PredictionTasks(other_games, split=Split.TRAIN, seed=99),
    }
    name = "textworld_unseen_games" if recipe == "textworld_model" else recipe
    models = {"": out / "model"}
    if config.rlvr.steps:
        models = {", sft": out / "fitted", ", rlvr": out / "model"}
    for stage, model in models.items():
        sampler = open_sampler(model, work=out / "engine")
        for part, make_task in parts.items():
            tasks = [make_task(number) for number in range(TASKS)]
            episodes = rollout.run(sampler, tasks, group_size=1, seed=0)
            seen = {task.situation.observation.text.split("/")[0] for task in tasks}
            metrics = {
                "test games": len(seen),
                "questions": len(tasks),
                "invalid": fraction(sum(map(is_invalid, episodes)), len(episodes)),
            }
            marks = mark_questions(rollout.verifier, tasks, episodes, habits)
            rows = common.read_rows(name)
            common.write_rows(name, {**rows, f"{part}{stage}": marks})
            metrics["accuracy"] = accuracy_by_group(marks)
            write(name, f"{part}{stage}", metrics)


def is_invalid(episode: Any) -> bool:
    return episode.outcome.status is Status.UNPARSABLE


def mark_questions(
    verifier: Any, tasks: Any, episodes: Any, habits: Mapping[str, str]
) -> dict[str, Any]:
    """Whether the model and two baselines are right about each question, and its groups."""
    from terrella.core.judge import judge

    right: dict[str, list[str]] = defaultdict(list)
    groups: list[tuple[str, ...]] = []
    for task, episode in zip(tasks, episodes, strict=True):
        step = task.transition
        correct = {"model": episode.outcome.value == 1.0}
        replies = {"no_change": Text("="), "verb_habit": habit_reply(habits, step)}
        for name, reply in replies.items():
            verdict = judge(
                verifier, reply=reply, truth=step.next_observation, before=step.observation
            )
            correct[name] = verdict.value == 1.0
        groups.append(groups_of(step))
        for name, value in correct.items():
            right[name].append("1" if value else "0")
    return {"groups": groups, "right": {name: "".join(marks) for name, marks in right.items()}}


def accuracy_by_group(marks: Mapping[str, Any]) -> dict[str, Any]:
    """Accuracy of the model and of two baselines, by change, rooms, objects and verb."""
    return {
        group: {name: fraction(right, n) for name, (right, n) in counts.items()}
        for group, counts in group_counts(marks).items()
    }


def groups_of(step: Transition) -> tuple[str, ...]:
    _, rooms, objects = step.observation.text.split(";")[0].split("/")
    return (
        "overall",
        "unchanged" if step.next_observation.text == "=" else "changed",
        f"{rooms} rooms",
        f"{objects} objects",
        f"verb {verb_of(step)}",
    )


def verb_of(step: Transition) -> str:
    return step.action.split()[0]


def objects_in(step: Transition) -> list[str]:
    """The objects that the command names."""
    return re.findall(r"\b[a-z]\d+\b", step.action)


def room_of(step: Transition) -> str | None:
    room = re.search(r"at P (r\d+)", step.observation.text)
    return room[1] if room else None


def verb_habits(steps: Sequence[Transition]) -> dict[str, str]:
    """Per verb, its most frequent change on train games, with placeholders for room and objects."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for step in steps:
        change = step.next_observation.text
        for index, name in enumerate(objects_in(step)):
            change = re.sub(rf"\b{name}\b", f"<{index}>", change)
        room = room_of(step)
        counts[verb_of(step)][change.replace(room, "<room>") if room else change] += 1
    return {verb: changes.most_common(1)[0][0] for verb, changes in counts.items()}


def habit_reply(habits: Mapping[str, str], step: Transition) -> Text:
    """The habit of the command's verb, with the placeholders filled in."""
    change = habits.get(verb_of(step), "=")
    for index, name in enumerate(objects_in(step)):
        change = change.replace(f"<{index}>", name)
    room = room_of(step)
    return Text(change.replace("<room>", room) if room else change)


PARTS = {"rewards": rewards, "baselines": baselines, "tiny": tiny, "smollm2": smollm2}
TRAINED = {"textworld": "textworld_model", "textworld_smollm2": "textworld_smollm2"}
"""Parts that train the recipe of a seed."""


def main() -> None:
    for argument in sys.argv[1:] or PARTS:
        name, _, seed = argument.partition(":")
        if name in TRAINED:
            textworld(int(seed), TRAINED[name])
        else:
            PARTS[name]()


if __name__ == "__main__":
    main()

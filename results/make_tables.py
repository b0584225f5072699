"""Writes the README's tables from results/*.json; `--check` exits 1 if the README is not what they say.

python results/make_tables.py
"""

import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
MARKS = ("<!-- numbers: written by `python results/make_tables.py`, checked by a test -->", "<!-- /numbers -->")


def foundation(record):
    splits, collect, kills = record["splits"], record["collect"], record["kills"]
    worlds = [value for value in splits.values() if isinstance(value, dict)]
    million, shared = collect["1000000"], sum(world["train_and_test"] for world in worlds)
    fuzz, checks = record["fuzz"], record["checks"]
    return [
        (
            "worlds and presets checked, broken properties",
            f"{checks['worlds_and_presets']}, {checks['broken_properties']}",
        ),
        (
            "instances in both train and test",
            f"{shared} ({len(worlds)} worlds, {worlds[0]['train_draws']:,} train and "
            f"{worlds[0]['test_draws']:,} test draws each)",
        ),
        (
            "`collect frozen_lake`, 10^6 transitions",
            f"{million['seconds']:.0f} s, {million['bytes_per_transition']} bytes each, "
            f"peak {million['peak_mib']} MiB ({collect['peak_ratio_1e6_to_1e5']} x that of 10^5)",
        ),
        (
            f"killed by SIGKILL {kills['kills']} times and resumed",
            "byte-identical" if kills["byte_identical"] else "NOT identical",
        ),
        (
            f"{fuzz['replies_per_verifier']:,} fuzzed replies per verifier",
            "no crash, nothing outside [0, 1], battery wins 0" if fuzz["passed"] else "FAILED",
        ),
    ]


def engine(record):
    """One row per recipe (all its seeds), then the shapes that were compared with the bare engine."""
    rows = [(f"`terrella rlvr {name}`, held-out reward", curve_cell(seeds)) for name, seeds in curves(record)]
    for part, what in (("ratio", "GRPO step, bare engine / ours"), ("prefix", "the same, long shared prompt")):
        for shape in record.get(part, {}).get("shapes", []):
            cell = (
                f"{shape['ratio']} x ({shape['bare_generate_s']} + {shape['bare_train_s']} s / {shape['our_step_s']} s)"
            )
            size = f"{shape['groups']} x {shape['group_size']} answers of {shape['answer']} tokens to {shape['prompt']}"
            rows.append((f"{what}: {shape['model']}, {size}", cell))
    if "interleaving" in record:
        cost = record["interleaving"]["cost"]
        rows.append(("8 turns with forced world tokens / the same tokens in one go", f"{cost} x the time"))
    if "kills" in record:
        same = "bit-identical weights" if record["kills"]["passed"] else "NOT identical"
        rows.append((f"RLVR killed by SIGKILL {record['kills']['kills']} times and resumed", same))
    return rows


def curves(record):
    return record.get("curves", {}).get("recipes", {}).items()


def curve_cell(seeds):
    before = ", ".join(f"{one['before']['mean']:.2f}" for one in seeds.values())
    after = ", ".join(
        f"{one['after']['mean']:.2f} [{one['after']['low']:.2f}, {one['after']['high']:.2f}]" for one in seeds.values()
    )
    seconds = max(one["seconds"] for one in seeds.values())
    return f"{before} -> {after} (seeds {', '.join(seeds)}; at most {seconds} s)"


def table():
    rows = foundation(json.loads((HERE / "foundation.json").read_text()))
    rows += engine(json.loads((HERE / "engine.json").read_text()))
    lines = ["| what | measured |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join([MARKS[0], *lines, MARKS[1]])


def main():
    text = README.read_text()
    pattern = re.escape(MARKS[0]) + ".*?" + re.escape(MARKS[1])
    fresh = re.sub(pattern, lambda _: table(), text, flags=re.S)
    if "--check" in sys.argv:
        sys.exit(0 if fresh == text else 1)
    README.write_text(fresh)


if __name__ == "__main__":
    main()

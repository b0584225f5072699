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


def table():
    rows = foundation(json.loads((HERE / "foundation.json").read_text()))
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

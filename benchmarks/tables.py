"""Writes docs/numbers.md and the table of the README from results/*.json.

    python benchmarks/tables.py [--check | --recompute]
`--check` changes nothing, and exits with 1 if one of the two is out of date. `--recompute` also
computes every number that has rows (results/rows/) again, names the results without rows, and exits
with 1 if a number differs.
"""

import re
import sys

import common
from first_claims import first_claim_lines
from provenance import naming_moved_scripts, without_commit
from recompute_all import NO_INSTANCES, recompute_all
from table_rows import PARTS, SECTIONS

README = common.ROOT / "README.md"
PAGE = common.ROOT / "docs/numbers.md"
MARKS = (
    "<!-- numbers: written by `python benchmarks/tables.py`, checked by a test -->",
    "<!-- /numbers -->",
)

INTRODUCTION = """\
Written by `python benchmarks/tables.py` from [`results/`](../results/), where every figure stands
with the command that made it. {moved} of these files name `results/measure_NAME.py`, which is
`benchmarks/NAME.py` today and may take other options.

A claim `holds`, `fails` (the opposite is shown) or is `undecided`. It is tested with seeds as the
unit: instances are paired inside a seed, a one-sided t-test at 0.025 is corrected (Holm) for all
claims of its table, and "not below" means not more than the stated margin below. Intervals are 95%:
of arms and claims over seeds, of other figures as their file says.

Fewer than three seeds decide nothing, and seeds that share a base or a model count as one.

`python benchmarks/tables.py --recompute` computes the numbers again from the per-instance rows in
`results/rows/`. What has no rows is named at the end of this page, and so is what was made before
commits were recorded."""


def table(rows):
    return ["| what | measured |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def section_rows(section):
    rows = []
    for name in SECTIONS[section]:
        if record := common.read_results(name):
            rows += PARTS[name](record)
    return rows


def readme_table():
    return "\n".join([MARKS[0], *first_claim_lines(), MARKS[1]])


def page():
    lines = ["# Numbers", "", INTRODUCTION.format(moved=len(naming_moved_scripts()))]
    for section in SECTIONS:
        lines += ["", f"## {section}", "", *table(section_rows(section))]
    lines += ["", "## What is not computed again", "", *gaps()]
    return "\n".join(lines) + "\n"


def gaps():
    """Results and parts without rows, and those without a commit, by name."""
    _, without_rows = recompute_all()
    told = (
        ("Without rows, so that nothing shows that a number was changed", without_rows),
        ("Counts, timings and checks of one run, without instances", NO_INSTANCES),
        ("Made before commits were recorded", without_commit()),
    )
    lines = ["`NAME: PART` is a part of a result whose other parts have what it lacks."]
    for what, names in told:
        lines += ["", f"{what}: {', '.join(f'`{name}`' for name in names)}."]
    return lines


def fresh_pages():
    """Both files as they should be."""
    pattern = re.escape(MARKS[0]) + ".*?" + re.escape(MARKS[1])
    readme = re.sub(pattern, lambda _: readme_table(), README.read_text(), flags=re.S)
    return {README: readme, PAGE: page()}


def out_of_date():
    return [path for path, text in fresh_pages().items() if path.read_text() != text]


def main():
    if "--recompute" in sys.argv:
        differences, without_rows = recompute_all()
        for name in without_rows:
            print(f"no rows: {name}")
        for difference in differences:
            print(f"DIFFERS: {difference}")
        sys.exit(1 if differences or out_of_date() else 0)
    if "--check" in sys.argv:
        sys.exit(1 if out_of_date() else 0)
    for path, text in fresh_pages().items():
        path.write_text(text)


if __name__ == "__main__":
    main()

"""Writes docs/numbers.md, and the README's short table, from results/*.json.

python results/make_tables.py            `--check` changes nothing and exits 1 if one of them is not what they say
"""

import json
import re
import sys
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
PAGE = HERE.parent / "docs/numbers.md"
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


def verl(record):
    rows = []
    for part, what in (("curve", "tiny_counter, GRPO"), ("lake", "tiny_lake_agent, PPO with a critic")):
        rise = record[part]["last_ten_minus_first_ten"]
        cell = f"{interval(rise, sign='+')} reward in {record[part]['steps']} steps"
        rows.append((f"`--set engine=verl`: {what}, last ten steps minus first ten", cell))
    worst = max(record[part]["mismatch_max"] for part in ("curve", "lake"))
    rows.append(("verl: sampler and trainer differ at most by (log-probability of a token)", f"{worst:.1e}"))
    lost = record["nodes"]
    what = f"verl: a node lost while {lost['episodes']:,} episodes are collected"
    rows.append((what, f"{lost['lost']} lost, {lost['duplicated']} doubled"))
    return rows


def coverage(record):
    cell = ", ".join(f"{name} {world['resplit']['mean']:.3f}" for name, world in record["worlds"].items())
    return [("conformal risk at 90%: coverage on held-out steps, five seeds", cell)]


def gate(record, world):
    found, seeds = record["summary"], len(record["seeds"])
    if found is None:  # one seed says nothing about spread
        (row,) = record["seeds"].values()
        told = (
            f"{row['gated']:.3f} against {row['real']:.3f} in reality, {row['factor']:.2f} x fewer real steps, one seed"
        )
        return [(f"the gate on {world}: success", told)]
    return [
        (f"the gate on {world}: success minus that of real training, {seeds} seeds",
         interval(found["gated_minus_real"], digits=4)),
        (f"the gate on {world}: times fewer real steps, all counted", interval(found["factor"])),
    ]  # fmt: skip


def arms(record, name):
    """A reproduction: its arms, and its claims."""
    cells = [f"{arm} {figure['pass@1']['mean']:.3f}" for arm, figure in record["arms"].items()]
    seeds = {len(figure["seeds"]) for figure in record["arms"].values()}
    spread = f"{min(seeds)} to {max(seeds)}" if min(seeds) < max(seeds) else max(seeds)
    rows = [(f"`terrella reproduce {name}`, pass@1 (seeds: {spread})", ", ".join(cells))]
    for claim in record["claims"]:
        if claim["holds"] is not None:
            words = "not below" if claim["not_below"] else "above"
            told = "reproduced" if claim["holds"] else "NOT reproduced"
            what = f"{name}: {claim['better']} {words} {claim['worse']}, pass@{claim['k']}, paired"
            rows.append((what, f"{told}: {interval(claim, sign='+')}, {count(range(claim['seeds']))}"))
    if any(record.get("unseen_families", {}).values()):
        cells = [f"{arm} {sum(of) / len(of):.3f}" for arm, of in record["unseen_families"].items()]
        rows.append((f"{name}: families neither shown nor practised", ", ".join(cells)))
    return rows


def each_arm(record, name):
    """For the page: a row an arm, with its spread over seeds, beside play that needs no model."""
    known = record.get("known") or {}
    rows = (
        [(f"{name}: random, optimal (exact)", f"{known['random']['1']:.3f}, {known['optimal']:.3f}")] if known else []
    )
    for arm, figure in record["arms"].items():
        kinds = [kind for kind in ("pass@1", "pass@8") if kind in figure]
        cell = ", ".join(f"{kind} {over_seeds(figure[kind])}" for kind in kinds)
        rows.append((f"{name}: {arm}", f"{cell} ({count(figure['seeds'])})"))
    return rows + arms(record, name)[1:]


def over_seeds(figure):
    spread = figure["interval"]
    return f"{figure['mean']:.3f}" + (f" [{spread[0]:.3f}, {spread[1]:.3f}]" if spread else "")


def count(seeds):
    return "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"


def serve(record):
    rows = []
    for part, each in (("load", "one question"), ("load_of_eight", "eight questions")):
        if part in record:
            load = record[part]
            low, high = load["ratio_interval"]
            what = f"`terrella serve`, {load['clients']} clients for 60 s, {each} a request: served / bare predictions"
            told = f"{load['ratio']} [{low}, {high}]; {load['errors']} errors in {load['requests']:,} requests"
            rows.append((what, told))
    if "malformed" in record:
        wrong = record["malformed"]
        told = f"{wrong['server_errors']} server errors, {wrong['tracebacks_leaked']} tracebacks leaked"
        rows.append((f"{wrong['requests']:,} malformed requests to a server", told))
    return rows


def miniwob(record):
    sweep, rate, kill, rest = (record[part] for part in ("sweep", "rate", "kill", "leftovers"))
    one, two = (rate[f"{count}_in_place"]["per_second"] for count in ("one_browser", "two_browsers"))
    return [
        (f"MiniWoB++ in Chromium, {sweep['episodes']} episodes of {sweep['families']} families",
         f"{sweep['harness_errors']} errors of ours; {one:.0f} episodes/s with one browser, {two:.0f} with two"),
        (f"a browser killed in {kill['kills']} of {kill['episodes']} episodes",
         f"{kill['succeeded']} succeed, {kill['masked']} masked, {kill['scored_0']} scored 0; "
         f"{rest['leftover_processes']} processes left after {rest['episodes']:,} episodes"),
    ]  # fmt: skip


def pages(record):
    found = record["pages --seed 0"]
    arms = {"no change": found["baselines"]["no_change"], "SFT": found["sft"], "RLVR": found["rlvr"]}
    cells = [f"{name} {interval(arm['changed']['f1'])}" for name, arm in arms.items()]
    return [("page model, unseen MiniWoB++ families: F1 of what changes, seed 0", ", ".join(cells))]


def look_ahead(record):
    cells = [
        f"{arm} {row['success']:.2f} [{row['low']:.2f}, {row['high']:.2f}]"
        for arm, row in record["mpc"]["arms"].items()
    ]
    return [("web agent, 100 held-out seeds: success by depth of looking ahead", ", ".join(cells))]


def viewer(record):
    page = record["open"]
    seconds = f"{page['seconds']['median']} s (median of 10; worst {page['seconds']['worst']})"
    return [(f"`terrella view`, {page['episodes']:,} episodes opened in Chromium", seconds)]


def text_games(record):
    found = record["arms"]
    cell = "; ".join(f"{name} {100 * found[name]['changed']['mean']:.1f} / {100 * found[name]['overall']['mean']:.1f}"
                     for name in ("sft", "exact", "task_specific", "sft_all"))  # fmt: skip
    seeds = ", ".join(f"{name} {found[name]['seeds']}" for name in ("exact", "task_specific", "sft_all"))
    rows = [(f"bytesized32, 1.2M parameters: % right of changed / all official test rows (seeds: {seeds})", cell)]
    pairs = {(pair["better"], pair["worse"]): pair for pair in record["differences"]["paired"]}
    for better, worse, rows_of in TEXT_CLAIMS:
        mean, low, high = (100 * value for value in pairs[better, worse][rows_of])
        name = f"bytesized32: {better} minus {worse}, {rows_of.replace('_', ', ')} rows, paired"
        rows.append((name, f"{mean:+.1f} points [{low:.1f}, {high:.1f}]"))
    return rows


TEXT_CLAIMS = (
    ("exact", "sft", "changed"),
    ("task_specific", "sft", "changed"),
    ("exact", "sft", "overall"),
    ("sft_all", "nearest_neighbour", "dedup_overall"),
    ("sft_all", "nearest_neighbour_inside_tables", "dedup_overall"),
)


def game_baselines(record):
    cells = [f"{name.replace('_', ' ')} {100 * found['nearest_neighbour']['overall']['share']:.1f}"
             for name, found in record.items()]  # fmt: skip
    still = 100 * record["official"]["no_change"]["overall"]["share"]
    return [("bytesized32, no model: nearest neighbour, % of rows", f"{', '.join(cells)} (no change: {still:.1f})")]


def unseen_games(record):
    runs = [record[f"seed {seed}, other games"] for seed in range(3)]
    cells = []
    for name in ("model", "verb_habit", "no_change"):
        shares = [[run["accuracy"][group][name]["share"] for run in runs] for group in ("changed", "overall")]
        cells.append(f"{name.replace('_', ' ')} " + " / ".join(f"{sum(each) / len(each):.3f}" for each in shares))
    games = runs[0]["test games"]
    return [(f"textworld, {games} unseen games, 3 seeds: share right of what changes / all", "; ".join(cells))]


def video(record):
    cell = ", ".join(f"{name.upper()} {interval(record['all'][name]['difference_by_seed'], sign='+')}"
                     for name in ("lpips", "ssim", "psnr"))  # fmt: skip
    still = record["baselines"]["still"]
    after = {name: record["all"][name]["after"] for name in ("lpips", "psnr")}
    beside = ", ".join(f"{name.upper()} {mean:.3f} (the last frame for ever: {still[name]['mean']:.3f})"
                       for name, mean in after.items())  # fmt: skip
    seeds = len(record["seeds"])
    return [
        (f"video on the tabletop, 7 frames ahead: RLVR minus SFT, {seeds} seeds", cell),
        ("the same, after RLVR", beside),
    ]


def listening(record):
    worse = [row["figures"]["psnr"]["difference"] for row in record["seeds"]]
    cell = ", ".join(interval(one, digits=2, sign="+") for one in worse)
    return [("the same clips told the actions of other clips: PSNR, seed by seed", cell)]


def ladder(record):
    tasks = {
        task: [row["pearson"]["value"] for row in record["runs"] if row["task"] == task] for task in ("push", "reach")
    }
    cell = "; ".join(f"{task} {', '.join(f'{value:.2f}' for value in values)}" for task, values in tasks.items())
    pooled = ", ".join(f"{value:.2f}" for value in record["pearson_over_both_tasks"].values() if value is not None)
    return [
        ("eight policies in the video model and in the simulator: Pearson r, seed by seed", f"{cell}; both {pooled}")
    ]


def arena(record):
    found = record["arena"]
    cell = f"script {found['oracle']}, null agent {found['null']} of {found['tasks']}; "
    return [("mini-arena of three real applications", f"{cell}reset {found['reset_seconds_median']:.2f} s (median)")]


def interval(figure, *, digits=3, sign=""):
    return f"{figure['mean']:{sign}.{digits}f} [{figure['low']:.{digits}f}, {figure['high']:.{digits}f}]"


GATES = {
    name: partial(gate, world=world)
    for name, world in (("trust_gate", "frozen_lake"), ("trust_gate_sokoban", "sokoban"))
}
REPRODUCTIONS = ("spa_frozen_lake", "spa_sokoban", "webrl_sokoban", "webrl_miniwob")
PARTS = {
    "foundation": foundation, "engine": engine, "engine_verl": verl, "trust_coverage": coverage, **GATES,
    **{name: partial(arms, name=name) for name in REPRODUCTIONS},
    "bytesized32_baselines": game_baselines, "bytesized32_tiny": text_games,
    "textworld_unseen_games": unseen_games, "video_model": video,
    "video_listens": listening, "video_policies": ladder, "web_arena": arena,
    "web_miniwob": miniwob, "web_pages": pages, "web_mpc": look_ahead,
    "serve_load": serve, "viewer": viewer,
}  # fmt: skip
"""Files of results and what is told of each; one that is not there is not told."""
LONGER = {name: partial(each_arm, name=name) for name in REPRODUCTIONS}
"""What the page tells in place of it."""

SECTIONS = {
    "Worlds and data": ("foundation",),
    "Engine": ("engine", "engine_verl"),
    "Trust": ("trust_coverage", "trust_gate", "trust_gate_sokoban"),
    "SPA": ("spa_frozen_lake", "spa_sokoban"),
    "Text games": ("bytesized32_baselines", "bytesized32_tiny", "textworld_unseen_games"),
    "Video": ("video_model", "video_listens", "video_policies"),
    "Web": ("web_arena", "web_miniwob", "web_pages", "web_mpc"),
    "WebRL": ("webrl_sokoban", "webrl_miniwob"),
    "Served and shown": ("serve_load", "viewer"),
}

FRONT = (
    "instances in both", "`collect", "killed by SIGKILL", "rlvr tiny_lake", "GRPO step.*smollm2", "engine=verl.*GRPO",
    "conformal", "the gate", "reproduce spa_", "spa_.*above (vanilla|state)", "1.2M parameters",
    "exact minus sft, changed", "sft_all minus nearest_neighbour,", "textworld", "7 frames ahead", "eight policies",
    "MiniWoB.. in Chromium", "page model", "looking ahead", "reproduce webrl", "webrl_paper above (sft|fixed)",
    "one question a request",
)  # fmt: skip
"""Which rows the README shows: what was claimed, reached or not."""


def rows_of(section, parts):
    found = [(parts[name], HERE / f"{name}.json") for name in SECTIONS[section]]
    return [row for part, path in found if path.exists() for row in part(json.loads(path.read_text()))]


def lines(rows):
    return ["| what | measured |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def front():
    rows = [row for section in SECTIONS for row in rows_of(section, PARTS)]
    chosen = [row for row in rows if any(re.search(pattern, row[0]) for pattern in FRONT)]
    idle = [pattern for pattern in FRONT if not any(re.search(pattern, name) for name, _ in rows)]
    if idle:
        sys.exit(f"FRONT names rows that are not there: {idle}")
    return "\n".join([MARKS[0], *lines(chosen), MARKS[1]])


TOLD = """Written by `python results/make_tables.py` from [`results/`](../results/), where every figure stands with the
command that made it. Intervals are 95%: of a reproduction's arm over its seeds, of its claims over seeds and test
instances, both resampled; of other figures as their file says."""


def page():
    written = ["# Numbers", "", TOLD]
    for section in SECTIONS:
        written += ["", f"## {section}", "", *lines(rows_of(section, {**PARTS, **LONGER}))]
    return "\n".join(written) + "\n"


def main():
    text = README.read_text()
    pattern = re.escape(MARKS[0]) + ".*?" + re.escape(MARKS[1])
    fresh = {README: re.sub(pattern, lambda _: front(), text, flags=re.S), PAGE: page()}
    if "--check" in sys.argv:
        sys.exit(0 if all(path.exists() and path.read_text() == new for path, new in fresh.items()) else 1)
    for path, new in fresh.items():
        path.write_text(new)


if __name__ == "__main__":
    main()

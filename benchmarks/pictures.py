"""Draws docs/pictures/ and results/trust_plan.png from results/*.json. Needs matplotlib.

python benchmarks/pictures.py
"""

import statistics

import common
import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from table_rows import SMALL_POLICY

from terrella.show.certificate_plots import draw

COLOURS = ("#0072B2", "#D55E00", "#009E73")  # safe for colour-blind readers
SMOOTH = 10
"""Steps that one point of a reward curve averages over."""


def teaching_curves():
    """Reward by step of the recipes that teach, one line per fresh seed.

    Dots are the held-out reward before and after; the dotted line is the baseline without a model.
    """
    recipes = common.read_rows("teaching")["recipes"]
    figure, axes = plt.subplots(
        1, len(recipes), figsize=(4.2 * len(recipes), 3.2), sharey=True, squeeze=False
    )
    for axis, (name, seeds) in zip(axes[0], recipes.items(), strict=True):
        for run in seeds.values():
            draw_run(axis, run)
        axis.axhline(run["baseline"], color="0.3", linestyle=":", label="without a model")
        axis.set(title=f"{name}, {len(seeds)} seeds", xlabel="RLVR step", ylim=(0, 1.02))
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8, loc="lower right")
    axes[0][0].set_ylabel(f"reward (mean of {SMOOTH} steps)")
    figure.tight_layout()
    figure.savefig(common.PICTURES / "teaching_curves.png", dpi=110)


def draw_run(axis, run):
    curve = run["curve"]
    means = [sum(curve[i : i + SMOOTH]) / SMOOTH for i in range(len(curve) - SMOOTH + 1)]
    steps = range(SMOOTH // 2, SMOOTH // 2 + len(means))
    axis.plot(steps, means, color=COLOURS[0], linewidth=1, alpha=0.6)
    for step, part in ((0, "before"), (len(curve), "after")):
        held_out = statistics.fmean(run[part].values())
        axis.plot([step], [held_out], "o", color=COLOURS[1], markersize=4)


def spa_arms():
    """pass@1 of every arm of SPA, one dot per seed, compared with exact random play."""
    names = ("spa_frozen_lake", "spa_sokoban_one_base")
    figure, axes = plt.subplots(1, len(names), figsize=(9.5, 3.6), sharex=True)
    for axis, name in zip(axes, names, strict=True):
        record = common.read_results(name)
        arms = list(record["arms"].items())[::-1]
        for height, (_, metrics) in enumerate(arms):
            draw_arm(axis, metrics["pass@1"], height)
        axis.axvline(
            record["reference_scores"]["random"]["1"],
            color="0.5",
            linestyle=":",
            label="random play (exact)",
        )
        axis.set_yticks(
            range(len(arms)), [f"{arm} ({len(metrics['seeds'])})" for arm, metrics in arms]
        )
        axis.set(title=name, xlabel="pass@1: each seed, and the mean", xlim=(0, 1))
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].legend(frameon=False, fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(common.PICTURES / "spa_arms.png", dpi=110)


def draw_arm(axis, scores, height):
    values = scores["per_seed"]
    axis.plot(values, [height] * len(values), "o", color=COLOURS[0], alpha=0.6, markersize=5)
    axis.plot([scores["mean"]], [height], "|", color=COLOURS[1], markersize=16, markeredgewidth=2)


def plan_parts():
    """Success of a planning web agent, each part learnt or an oracle; a dot a training seed."""
    record = common.read_results("web_plan_parts")[SMALL_POLICY]
    arms = list(record["arms"].items())[::-1]
    figure, axis = plt.subplots(figsize=(8.5, 3.8))
    depths = list(arms[0][1])
    for height, (_, scores) in enumerate(arms):
        for place, depth in enumerate(depths):
            y = height + 0.18 * (len(depths) / 2 - 0.5 - place)
            seeds = scores[depth]["per_seed"]
            axis.plot(seeds, [y] * len(seeds), "o", color=COLOURS[place], markersize=4, alpha=0.6)
            axis.plot([scores[depth]["mean"]], [y], "|", color=COLOURS[place], markersize=12)
    for place, depth in enumerate(depths):
        axis.plot([], [], "o", color=COLOURS[place], label=f"looking ahead, {depth}")
    axis.set_yticks(range(len(arms)), [name.replace("; ", ", ") for name, _ in arms], fontsize=8)
    axis.set(xlim=(0, 1.02), xlabel="success")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="center right")
    figure.tight_layout()
    figure.savefig(common.PICTURES / "web_plan_parts.png", dpi=110)


def draw_plan():
    """Success and cost of planning by depth; results/trust_plan.png."""
    metrics = common.read_results("trust_plan")
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    rows = [row for row in metrics["rows"] if row["method"] == "enumerate"]
    depths = [row["depth"] for row in rows]
    means = [row["success"]["mean"] for row in rows]
    left.plot(depths, means, color="#0072B2", marker="o", label="MPC, enumeration")
    left.fill_between(
        depths,
        [row["success"]["low"] for row in rows],
        [row["success"]["high"] for row in rows],
        alpha=0.15,
    )
    left.axhline(
        metrics["random"]["success"]["mean"], color="#777777", linestyle=":", label="random"
    )
    left.axhline(
        metrics["expert"]["success"]["mean"], color="#009E73", linestyle="--", label="optimal"
    )
    marks = {"beam": ("^", "#D55E00"), "best_of_n": ("s", "#CC79A7")}
    for row in metrics["rows"]:
        if row["method"] in marks:
            mark, colour = marks[row["method"]]
            left.plot(row["depth"], row["success"]["mean"], mark, color=colour, label=row["method"])
    left.set(
        xlabel="depth",
        ylabel="success",
        ylim=(0, 1.05),
        title=f"sokoban 6x6, {metrics['rooms']} test rooms",
    )
    left.legend(fontsize=8)
    right.plot(
        depths,
        [row["different_questions"] / metrics["rooms"] for row in rows],
        color="#0072B2",
        marker="o",
    )
    right.set(xlabel="depth", ylabel="distinct queries per room", title="cost", yscale="log")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(common.RESULTS / "trust_plan.png", dpi=110)


def certificate_lake():
    """The certificate of `lake_model`, as its own page shows it."""
    certificate = common.read_results("trust_certificates")["models"]["lake"]
    draw(certificate, common.PICTURES / "certificate_lake.png")


if __name__ == "__main__":
    common.PICTURES.mkdir(parents=True, exist_ok=True)
    teaching_curves()
    spa_arms()
    draw_plan()
    plan_parts()
    certificate_lake()

"""Draws docs/pictures/ from results/*.json. Needs matplotlib.

python results/make_pictures.py
"""

import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
OUT = HERE.parent / "docs" / "pictures"
COLOURS = ("#0072B2", "#D55E00", "#009E73")  # safe for colour-blind readers
SMOOTH = 10


def engine_curves():
    """Reward by step of the tiny recipes, a line per seed; held-out before and after as dots; the no-model baseline."""
    recipes = json.loads((HERE / "engine.json").read_text())["curves"]["recipes"]
    figure, axes = plt.subplots(1, len(recipes), figsize=(4.2 * len(recipes), 3.2), sharey=True, squeeze=False)
    for axis, (name, seeds) in zip(axes[0], recipes.items(), strict=True):
        for (seed, run), colour in zip(seeds.items(), COLOURS, strict=False):
            draw(axis, run, colour, f"seed {seed}")
        baseline = run["baselines"].get("random_exact", run["baselines"].get("no_change"))
        axis.axhline(
            baseline, color="0.5", linestyle=":", label="random" if "random" in run["baselines"] else "no change"
        )
        axis.set(title=name, xlabel="RLVR step", ylim=(0, 1.02))
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8, loc="lower right")
    axes[0][0].set_ylabel(f"reward (mean of {SMOOTH} steps)")
    figure.tight_layout()
    figure.savefig(OUT / "engine_curves.png", dpi=110)


def spa_arms():
    """pass@1 of every arm of SPA, a dot a seed, beside exact random play."""
    names = ("spa_frozen_lake", "spa_sokoban")
    figure, axes = plt.subplots(1, len(names), figsize=(9.5, 3.6), sharex=True)
    for axis, name in zip(axes, names, strict=True):
        record = json.loads((HERE / f"{name}.json").read_text())
        told = list(record["arms"].items())[::-1]
        for place, (_, figures) in enumerate(told):
            values = figures["pass@1"]["per_seed"]
            axis.plot(values, [place] * len(values), "o", color=COLOURS[0], alpha=0.6, markersize=5)
            axis.plot([figures["pass@1"]["mean"]], [place], "|", color=COLOURS[1], markersize=16, markeredgewidth=2)
        axis.axvline(record["known"]["random"]["1"], color="0.5", linestyle=":", label="random play (exact)")
        axis.set_yticks(range(len(told)), [f"{arm} ({len(figures['seeds'])})" for arm, figures in told])
        axis.set(title=name, xlabel="pass@1: each seed, and the mean", xlim=(0, 1))
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].legend(frameon=False, fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(OUT / "spa_arms.png", dpi=110)


def draw(axis, run, colour, label):
    curve = run["curve"]
    means = [sum(curve[i : i + SMOOTH]) / SMOOTH for i in range(len(curve) - SMOOTH + 1)]
    axis.plot(range(SMOOTH // 2, SMOOTH // 2 + len(means)), means, color=colour, label=label)
    for place, held_out in ((0, run["before"]), (len(curve), run["after"])):
        spread = [[held_out["mean"] - held_out["low"]], [held_out["high"] - held_out["mean"]]]
        axis.errorbar([place], [held_out["mean"]], spread, fmt="o", color=colour, markersize=4)


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    engine_curves()
    spa_arms()

"""Wraps and checks Gymnasium's own envs: results/gymnasium_envs.json and docs/gymnasium.md.

    python benchmarks/gymnasium_envs.py --wrap KIND   # only wrap: seconds
    python benchmarks/gymnasium_envs.py               # wrap and check all; minutes
    python benchmarks/gymnasium_envs.py --models 6    # also model, certify and plan; hours
    python benchmarks/gymnasium_envs.py --page        # only the page, from the results
An env that is in the results is not measured again.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import common
import gymnasium

from terrella.commands.wrap import wrap
from terrella.core.errors import TerrellaError

KINDS = ("classic_control", "toy_text", "box2d", "mujoco")
MODELLED = (
    "CliffWalking-v1",
    "FrozenLake-v1",
    "Taxi-v4",
    "Blackjack-v1",
    "CartPole-v1",
    "MountainCar-v0",
)
CERTIFY = ("exploited_on=10", "ranked_on=20", "horizon_episodes=40")
"""Fewer episodes than usual where a slow model takes most of the time."""
CERTIFY_NUMBERS = ("exploited_on=2", "ranked_on=20", "horizon_episodes=40", "plan_depth=2")
"""Where observations are measured numbers, each prediction has new ones, and plans grow fast."""
NUMBERS = ("CartPole-v1", "MountainCar-v0")
PAGE = common.ROOT / "docs/gymnasium.md"
TOP = """# Which of Gymnasium's envs work

Each env of Gymnasium's classic control, toy text, Box2D and MuJoCo, in its newest version, was
wrapped by `terrella wrap` as it is, and its world tested by `terrella check`. Nothing was edited.
Written by `python benchmarks/gymnasium_envs.py`.

Wrapped and checked before `wrap` chose digits by the change per step, which tells more initial
states apart (MountainCar then needs no walk), and before `check` tested other processes and the
price of nonsense.

"Starts" says how instances differ: by what `reset` draws, by a random walk after it, or by the path
of that walk, which gives a weaker certificate ([your_env.md](your_env.md)). "n/a" counts properties
that a wrapped env cannot have: it lists no exact outcomes and has no expert.
"""


NOT_RUN = """
"not run": wrapped, but the check of this version has not been run yet.
"""


def env_ids():
    """The newest version of each env, by kind."""
    newest = {}
    for spec in gymnasium.registry.values():
        kind = re.search(r"gymnasium\.envs\.(\w+)", str(spec.entry_point))
        if kind and kind[1] in KINDS and spec.version is not None:
            known = newest.get(spec.name)
            if known is None or spec.version > known[1].version:
                newest[spec.name] = (kind[1], spec)
    return [(kind, spec.id) for kind, spec in sorted(newest.values(), key=lambda row: row[1].id)]


def terrella(folder, *words, timeout=3600):
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "250",
        "PYTHONWARNINGS": "ignore",
    }
    return subprocess.run(
        [sys.executable, "-m", "terrella.cli", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=timeout,
    )


def wrapped(env_id, folder):
    """What `wrap` finds out about an env."""
    try:
        wrap(env_id, Path(folder), "tried")
    except TerrellaError as error:
        return {"wrapped": False, "reason": error.what[:160]}
    text = Path(folder, "tried.py").read_text()
    return {
        "wrapped": True,
        "starts": re.search(r'class Config.*?"""(.*?)"""', text, re.S)[1],
        "walk": int(re.search(r"walk: int = (\d+)", text)[1]),
        "split_by": re.search(r'split_by: .* = "(\w+)"', text)[1],
        "success": re.search(r"def succeeded.*?return (.*?)\n", text, re.S)[1],
    }


def checked(folder):
    """What `check` says about the world that was written."""
    done = terrella(folder, "check", "tried")
    marks = re.findall(r"^│ ([\w ]+?) +│ (ok|n/a|BROKEN) +│ (.*?) +│", done.stdout, re.M)
    broken = {name: detail for name, mark, detail in marks if mark == "BROKEN"}
    if not marks:
        broken = {"check": done.stderr.strip().splitlines()[-1][:160]}
    counts = {mark: sum(row[1] == mark for row in marks) for mark in ("ok", "n/a", "BROKEN")}
    return {"checks": counts, "broken": broken}


def modelled(env_id, folder):
    """A model of the world `tried`: certified or refused with reasons, and a plan inside it."""
    trained = terrella(folder, "train-world-model", "tried.tried_model", "--out", "runs/tried")
    if trained.returncode:
        return {"model": "failed", "reason": trained.stderr.strip().splitlines()[-1][:200]}
    settings, depth = (CERTIFY_NUMBERS, 2) if env_id in NUMBERS else (CERTIFY, 4)
    changes = [word for setting in settings for word in ("--set", setting)]
    certified = terrella(folder, "certify", "runs/tried", "tried", *changes, timeout=5400)
    found = json.loads(Path(folder, "runs/tried/certificate/certificate.json").read_text())
    planned = terrella(folder, "plan", "runs/tried", "tried", "--set", f"planner.depth={depth}")
    return {
        "certify": settings,
        "certified": certified.returncode == 0,
        "reasons": found["reasons"],
        "caveat": found["about"]["caveat"],
        "safe_horizon": found["safe_horizon"],
        "one_step": found["one_step"]["all"],
        "plan": planned.stdout.strip().splitlines()[-6:],
    }


def page(record):
    unchecked = any(row["wrapped"] and "checks" not in row for row in record["envs"].values())
    lines = [
        TOP + NOT_RUN * unchecked,
        "| env | kind | starts | checks | |",
        "|---|---|---|---|---|",
    ]
    for env_id, row in record["envs"].items():
        if not row["wrapped"]:
            lines.append(f"| {env_id} | {row['kind']} | | | not wrapped: {row['reason']} |")
            continue
        starts = (
            "by path" if row["split_by"] == "path" else "by walk" if row["walk"] else "by reset"
        )
        counts = row.get("checks")
        cell = "not run"
        if counts:
            cell = f"{counts['ok']} ok, {counts['n/a']} n/a, {counts['BROKEN']} broken"
        broken = "; ".join(f"{name}: {detail}" for name, detail in row.get("broken", {}).items())
        lines.append(
            f"| {env_id} | {row['kind']} | {starts} | {cell} | {broken.replace('|', '/')} |"
        )
    models = {env_id: row["model"] for env_id, row in record["envs"].items() if "model" in row}
    if models:
        lines += ["", "## Models of them", "", MODELS_TOLD, ""]
        lines += ["| env | right, one step | no change | certificate |", "|---|---|---|---|"]
        lines += [model_row(env_id, found) for env_id, found in models.items()]
    return "\n".join(lines) + "\n"


MODELS_TOLD = (
    "0.3M parameters, 20,000 random steps, one seed; measured with `batch_size=32 "
    "learning_rate=2e-3`, every digit of an observation required, and CartPole and MountainCar "
    "shown with three digits, while `wrap` now writes `batch_size=16 learning_rate=1e-3`, a "
    "tolerance of one unit of the last digit, and four digits. `certify` with "
    f"`{' '.join(CERTIFY)}` unless the row says otherwise: where every prediction has new numbers, "
    "plans grow fast. A refusal has its reasons."
)


def model_row(env_id, found):
    if "one_step" not in found:
        return f"| {env_id} | | | failed: {found['reason']} |"
    right, lazy = (found["one_step"][name]["mean"] for name in ("model", "no_change"))
    verdict = (
        f"{found['safe_horizon']} steps" if found["certified"] else "; ".join(found["reasons"])
    )
    if "cannot list its outcomes" in found.get("caveat", ""):
        verdict += "; the same step has different results (chance, or what the view leaves out)"
    settings = found.get("certify", CERTIFY)
    if tuple(settings) != CERTIFY:
        verdict += f"; with `{' '.join(settings)}`"
    return f"| {env_id} | {right:.3f} | {lazy:.3f} | {verdict} |"


def measure(envs, env_id, kind, arguments):
    """Add what is missing about an env."""
    known = envs.get(env_id, {})
    wants_model = env_id in MODELLED[: arguments.models] and "model" not in known
    wants_check = not arguments.wrap and known.get("wrapped", True) and "checks" not in known
    if known and not wants_model and not wants_check:
        return
    with tempfile.TemporaryDirectory() as folder:
        row = {**known, "kind": kind.replace("_", " "), **wrapped(env_id, folder)}
        if row["wrapped"] and wants_check:
            row |= checked(folder)
        if row["wrapped"] and wants_model:
            row["model"] = modelled(env_id, folder)
    envs[env_id] = row
    print(env_id, json.dumps(row), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=int, default=0)
    parser.add_argument("--env", help="only this one")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--wrap", choices=KINDS)
    arguments = parser.parse_args()
    path = common.RESULTS / "gymnasium_envs.json"
    record = json.loads(path.read_text()) if path.exists() else {"envs": {}}
    if not arguments.page:
        record |= {
            "command": "python benchmarks/gymnasium_envs.py",
            "gymnasium": gymnasium.__version__,
        }
        for kind, env_id in env_ids():
            if arguments.wrap in (None, kind) and arguments.env in (None, env_id):
                measure(record["envs"], env_id, kind, arguments)
                record["envs"] = dict(sorted(record["envs"].items()))
                path.write_text(json.dumps(record, indent=1) + "\n")
    PAGE.write_text(page(record), "utf-8")


if __name__ == "__main__":
    main()

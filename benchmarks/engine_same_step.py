"""Measures how far TRL and verl differ on the same episodes: results/engine_same_step.json.

In the environment that .ci/verl makes:
    python benchmarks/engine_same_step.py engines|names|learners
`engines` compares a step of both engines for every setting of the maths. `names` compares our named
algorithms with TRL's own trainers, with 0, 1 and 2 of 4 groups without variance.
`learners` compares an update of a learner from the same rows, with each of WebRL's losses and with
those of RLVR.
"""

import json
import sys
import tempfile
from pathlib import Path

import common

SEEDS = (0, 1, 2)
MODEL = "Llama, 2 layers, width 32, fp32, random weights"
LIMIT = 1e-4
PARTS = ("loss", "grad_norm", "advantage", "weight")


def engines(folder):
    """The largest difference of each quantity, over seeds of the model's weights."""
    from tests.support.verl_cpu import use

    use()
    from tests.support.verl_cpu.same_step import CASES, compare

    rows = {}
    for name, case in CASES.items():
        found = [
            compare(case, folder / f"{len(rows)}-{seed}", seed=seed) | {"seed": seed}
            for seed in SEEDS
        ]
        rows[name] = row(case, found)
        print(name, rows[name]["largest_difference"], flush=True)
    return summary(MODEL, rows)


def summary(model, cases):
    worst = max(max(row["largest_difference"].values()) for row in cases.values())
    return {
        "model": model,
        "seeds": list(SEEDS),
        "limit": LIMIT,
        "worst": worst,
        "within": worst < LIMIT,
        "cases": cases,
    }


def row(case, found):
    return {
        "settings": case.settings | ({"allowed_ids": True} if case.allowed else {}),
        "episodes": [each["episodes"] for each in found],
        "episodes_that_count": [each["counted"] for each in found],
        "tokens_that_count": [each["tokens"] for each in found],
        "loss_trl": [each["loss"]["trl"] for each in found],
        "loss_verl": [each["loss"]["verl"] for each in found],
        "grad_norm_trl": [each["grad_norm"]["trl"] for each in found],
        "grad_norm_verl": [each["grad_norm"]["verl"] for each in found],
        "largest_difference": {
            part: max(each[part]["difference"] for each in found) for part in PARTS
        },
        "sampler_mismatch": max(each["mismatch"] for each in found),
    }


def names(folder):
    """Gradient norms of TRL's trainer and of ours, by the number of unanimous groups."""
    common.quiet_trl()
    from tests.support.stock_trl import GROUPS, SIZE, our_steps, stock_steps

    rows = []
    for algorithm in ("grpo", "dr_grpo", "dapo", "rloo"):
        turns = 1 if algorithm == "rloo" else 3
        for unanimous in (0, 1, 2):
            where = folder / f"{algorithm}-{unanimous}"
            options = {"turns": turns, "unanimous": unanimous, "algorithm": algorithm}
            rollout, every = our_steps(where / "all", denominator="all", **options)
            _, few = our_steps(where / "informative", **options)
            (stock,) = stock_steps(algorithm, rollout, where / "trl")
            rows.append(
                {
                    "algorithm": algorithm,
                    "turns": turns,
                    "groups_without_variance": f"{unanimous} of {GROUPS}",
                    "grad_norm_trl": stock["grad_norm"],
                    "grad_norm_all": every[0]["grad_norm"],
                    "grad_norm_informative": few[0]["grad_norm"],
                    "all_over_trl": every[0]["grad_norm"] / stock["grad_norm"],
                    "informative_over_trl": few[0]["grad_norm"] / stock["grad_norm"],
                }
            )
            print(rows[-1], flush=True)
    return {"model": MODEL, "seed": 0, "episodes": GROUPS * SIZE, "rows": rows}


def learners(folder):
    """Loss and gradient norm of one update with each named loss, on TRL and on verl."""
    from tests.support.verl_cpu import use, wide_model

    use()
    from tests.support.learner_steps import CALLS, WEBRL, steps, trl_learner
    from tests.support.verl_cpu.one_learner import one_learner

    wide_model(folder / "model")
    cases = {}
    for loss, knobs in (*WEBRL, *CALLS):
        found = []
        for seed in SEEDS:
            work = folder / f"{loss}-{len(cases)}-{seed}"
            with trl_learner(folder / "model", "token", work) as learner:
                by_trl = steps(learner, [(loss, knobs)], seed)
            by_verl = steps(one_learner(folder / "model", "token", work), [(loss, knobs)], seed)
            found.append((by_trl, by_verl))
        name = ", ".join([loss, *(f"{key} {value}" for key, value in knobs.items())])
        cases[name] = learner_row(found)
        print(name, cases[name]["largest_difference"], flush=True)
    return summary("tiny-0.3m-vllm, fp32, random weights times 4", cases)


def learner_row(found):
    """What two learners returned of one update, seed by seed, and how far they differ."""
    row = {"largest_difference": {}}
    for part in ("loss", "grad_norm"):
        on_trl = row[f"{part}_trl"] = [by_trl[0][part] for by_trl, _ in found]
        on_verl = row[f"{part}_verl"] = [by_verl[0][part] for _, by_verl in found]
        row["largest_difference"][part] = largest_difference(on_trl, on_verl)
    # What AdamW makes of the gradient: it divides by its size, so that rounding weighs more.
    row["logprob_after_differs"] = max(
        largest_difference(by_trl[-1]["outputs"], by_verl[-1]["outputs"])
        for by_trl, by_verl in found
    )
    return row


def largest_difference(ones, others):
    return max(abs(one - other) for one, other in zip(ones, others, strict=True))


PARTS_OF_RESULT = {"engines": engines, "names": names, "learners": learners}

if __name__ == "__main__":
    part = sys.argv[1]
    with tempfile.TemporaryDirectory() as scratch:
        metrics = PARTS_OF_RESULT[part](Path(scratch))
    written = common.write_part("engine_same_step", part, metrics, command=common.command(part))
    print(json.dumps({name: written[name] for name in written if name != "cases"}, indent=1)[:1500])

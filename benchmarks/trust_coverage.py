"""Coverage of a certificate from validation to test: several models per world.

    OMP_NUM_THREADS=1 python benchmarks/trust_coverage.py [WORLD ...] [--models 5] [--first 5]
Writes results/trust_coverage.json and its rows. Each model is trained with its own seed, calibrated
on validation instances and measured on test instances; the models are the units. The seeds begin at
`--first`: the fit was chosen on seeds 0 to 4, so these are no test of it. The same command resumes:
a model that is measured is not measured again. `--small` trains with less data, to see that it runs
(results/trust_coverage_small.json). On one quiet core a model takes 2 to 10 minutes.
"""

import argparse
from pathlib import Path

import common
from recompute_coverage import coverage, model_figures

from terrella.data.store import EpisodeStore
from terrella.pipelines.certify.pipeline import Certify
from terrella.pipelines.certify.records import Evidence
from terrella.pipelines.certify.risk import prediction_sets, risk_threshold
from terrella.pipelines.certify.sections import Sections
from terrella.pipelines.world_model import TrainWorldModel
from terrella.policies.basic import Expert, Mixture, Random
from terrella.recipes import trust as recipes
from terrella.show.progress import SilentProgress
from terrella.trust.nearness import NearestData
from terrella.trust.risk import FIT_SHARE
from terrella.world_models.language import load_world_model

LEVEL = 0.9
RECIPES = {
    "lake": recipes.lake_model,
    "counter": recipes.counter_model,
    "sokoban": recipes.sokoban_model,
    "lake_slip": recipes.lake_slip_model,
}
SAMPLES = {"lake": 4, "counter": 4, "sokoban": 6, "lake_slip": 12}
SMALL = {"transitions": 2500, "calibration": 120, "held_out": 120}


def train(name, model, chosen):
    """The world model of one seed, in a folder of its own."""
    common.quiet_trl()
    recipe = RECIPES[name]()
    if chosen.small:
        recipe = recipe.replace(transitions=SMALL["transitions"])
    config = recipe.replace(out=chosen.runs / f"{name}-{model}", seed=model)
    TrainWorldModel(config).run(SilentProgress())
    return config


def certify_config(name, model, trained, chosen):
    """The certificate of one model: three policies, and other steps for each model."""
    sizes = {key: SMALL[key] for key in ("calibration", "held_out")} if chosen.small else {}
    return Certify.Config(
        world=trained.world,
        folder=trained.out,
        policy=Mixture.Config(share=0.5),
        beside=(Random.Config(), Expert.Config()),
        samples=SAMPLES[name],
        level=LEVEL,
        seed=model,
        **sizes,
    )


def measure(name, model, chosen):
    """The rows of one model: for each held-out step the size of its set and whether it held."""
    trained = train(name, model, chosen)
    config = certify_config(name, model, trained, chosen)
    predictor = load_world_model(trained.out / "model", samples=config.samples)
    data = NearestData.of_episodes(EpisodeStore.open(trained.out / "data").episodes())
    sections = Sections(config, Evidence(config.world.build(), predictor, data))
    risk, held_out = sections.risk_model, sections.held_out
    if risk is None:
        raise SystemExit(f"{name}: {sections.calibration.distinct} instances calibrate nothing")
    risks = risk.risks(held_out.signals)
    threshold = risk_threshold(
        risk,
        sections.calibration,
        config.step_error,
        sections.policy_names,
        seed=config.seed,
    )
    sizes, covered = prediction_sets(risk, risks, held_out, sections.evidence.world.verifier)
    return {
        "commit": common.commit(),
        "policy_names": sections.policy_names,
        "calibration": sections.calibration.distinct,
        "fit_share": FIT_SHARE,
        "shuffled": True,
        "quantile": risk.quantile,
        "threshold": threshold.value,
        "instances": held_out.instances,
        "policies": held_out.policies.tolist(),
        "sizes": sizes,
        "covered": [round(value, 6) for value in covered],
        "lengths": held_out.lengths.tolist(),
        "wrong": [round(float(value), 6) for value in held_out.wrong],
        "risks": [round(float(value), 6) for value in risks],
    }


def write(result, rows, arguments):
    """The result from its rows, by the same functions as `tables.py --recompute`."""
    common.write_rows(result, rows)
    metrics = {
        "level": LEVEL,
        "confidence": 0.95,
        "seeds": sorted({model for models in rows["worlds"].values() for model in models}, key=int),
        **coverage({"level": LEVEL}, rows),
    }
    command = common.command(*arguments, OMP_NUM_THREADS=1)
    common.write_results(result, metrics, command=command, replace=True)


def measured_rows(result, first):
    """What is measured already; models of seeds before the first one are left out."""
    worlds = common.read_rows(result).get("worlds", {})
    kept = {
        name: {model: steps for model, steps in models.items() if int(model) >= first}
        for name, models in worlds.items()
    }
    return {"worlds": {name: models for name, models in kept.items() if models}}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("worlds", nargs="*", choices=[*RECIPES, []], default=list(RECIPES))
    parser.add_argument("--models", type=int, default=5)
    parser.add_argument("--first", type=int, default=5)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--runs", type=Path, default=Path("runs/coverage"))
    chosen = parser.parse_args(arguments)
    result = "trust_coverage_small" if chosen.small else "trust_coverage"
    rows = measured_rows(result, chosen.first)
    for name in chosen.worlds:
        for model in range(chosen.first, chosen.first + chosen.models):
            if str(model) in rows["worlds"].get(name, {}):
                continue
            with common.Timer() as timer:
                measured = measure(name, model, chosen)
            rows["worlds"].setdefault(name, {})[str(model)] = measured
            seeds = ("--models", chosen.models, "--first", chosen.first)
            write(result, rows, (*chosen.worlds, *seeds, *["--small"] * chosen.small))
            print(name, model, f"{timer.seconds:.0f} s", model_figures(measured), flush=True)


if __name__ == "__main__":
    main()

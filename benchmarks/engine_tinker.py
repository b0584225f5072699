"""engine=tinker beside engine=trl, on SkyRL's open server: results/engine_tinker.json.

`.ci/nightly` makes the environments and runs both commands, with the server between them:
    python benchmarks/engine_tinker.py base FOLDER       # fits the base model with TRL
    python benchmarks/engine_tinker.py run FOLDER URL    # SFT and 15 steps of GRPO at the endpoint
The pipeline is `terrella rlvr tiny_lake_model`. The episodes of its first step are kept, and the
TRL engine computes the gradient of the same adapter on them.
"""

import json
import sys
import tarfile
import time
from pathlib import Path

import common

common.quiet_trl()
RECIPE = "tiny_lake_model"
CORRECT_FRACTION = 0.5
"""Half of the base's examples are right: groups of answers differ from the first step on."""
SETTINGS = (
    "warmup_examples=640",
    f"correct_fraction={CORRECT_FRACTION}",
    "warmup.learning_rate=1e-3",
    "warmup.warmup_steps=2",
    "rlvr.steps=15",
    "rlvr.groups=32",
    "rlvr.learning_rate=2e-3",
    "rlvr.kl=0",
    "rlvr.save_every=5",
    "evaluate_on=128",
)
"""Chosen with engine=trl and an adapter of the same rank, on seeds 0 and 1."""


def base(folder: Path) -> None:
    from terrella.engines.configs import EngineConfig
    from terrella.engines.engine import load_tokenizer, make_engine, start_model
    from terrella.pipelines.warmup import warmup_examples
    from terrella.recipes import find_recipe
    from terrella.show.progress import make_progress

    config = find_recipe(RECIPE)()
    world = config.world.build()
    world.reset(seed=0)
    start = start_model(config.model, folder / "start", vocabulary=world.vocabulary())
    examples = warmup_examples(
        config.world,
        config.build().codec_config().make(load_tokenizer(start)),
        ask=config.ask,
        count=config.warmup_examples,
        seed=0,
        correct_fraction=CORRECT_FRACTION,
    )
    with make_progress() as progress, make_engine(EngineConfig(), work=folder) as engine:
        engine.sft(start, examples, config.warmup, folder / "base", seed=0, progress=progress)


def run(folder: Path, url: str) -> None:
    from terrella.core.config_override import override
    from terrella.engines.engine import read_curve
    from terrella.engines.tinker import tinker_engine
    from terrella.engines.tinker.trainer import SavedProgress
    from terrella.recipes import find_recipe
    from terrella.show.progress import make_progress

    where = [f"model={folder / 'base'}", f"tinker.url={url}", f"out={folder / 'run'}"]
    config = override(find_recipe(RECIPE)(), ["engine=tinker", *where, *SETTINGS])
    first, reductions = kept_first_step(folder), []
    measured = tinker_engine.measure
    tinker_engine.measure = lambda *words, **named: (
        reductions.append(measured(*words, **named)) or reductions[-1]
    )
    began = time.perf_counter()
    with make_progress() as progress:
        result = config.build().run(progress)
    seconds = time.perf_counter() - began
    curve = read_curve(folder / "run" / "curve.jsonl")
    losses = [row["loss"] for row in SavedProgress(folder / "run" / "warm-sft").curve]
    record = {
        "before": common_metric(result.before),
        "after": common_metric(result.after),
        "sft loss": [round(losses[0], 4), round(losses[-1], 4)],
        "reward": [round(row["reward"], 4) for row in curve],
        "mismatch mean": max(row.get("mismatch/mean", 0.0) for row in curve),
        "mismatch max": max(row.get("mismatch/max", 0.0) for row in curve),
        "gradient norm": {"tinker": curve[0]["grad_norm"], "trl": trl_norm(folder, first)},
        "gradient norms": [round(row.get("grad_norm", 0.0), 4) for row in curve],
        "seconds a step": {
            name: round(sum(row[f"seconds/{name}"] for row in curve) / len(curve), 2)
            for name in ("sync", "generate", "train")
        },
        "seconds": round(seconds, 1),
        "reduction": reductions[0]._asdict(),
        "settings": list(SETTINGS),
    }
    (folder / "measured.json").write_text(json.dumps(record, indent=1))
    what = "SFT and GRPO of a LoRA adapter at SkyRL 0.3.0's open server (JAX on a CPU)"
    common.write_part("engine_tinker", RECIPE, record, command=".ci/nightly", what=what)


def common_metric(metric) -> dict:
    from terrella.core.instances import plain

    return plain(metric)


def kept_first_step(folder: Path) -> dict:
    """Keeps the first step's episodes, and downloads the adapter that played them."""
    from terrella.engines.tinker.loop import RlvrLoop
    from terrella.engines.tinker.tinker_engine import TinkerEngine

    kept: dict = {}
    prepare, enter = RlvrLoop._prepare, TinkerEngine.__enter__

    def entered(engine):
        kept["engine"] = engine
        return enter(engine)

    def keep(loop, scored):
        if "scored" not in kept:
            kept.update(scored=scored, config=loop.config, rollout=loop.rollout)
            archive = folder / "first.tar.gz"
            path = loop.trainer.adapter.save_for_sampling("first")
            kept["engine"].endpoint.download(path, archive)
            with tarfile.open(archive) as tar:
                tar.extractall(folder / "first", filter="data")
        return prepare(loop, scored)

    TinkerEngine.__enter__, RlvrLoop._prepare = entered, keep
    return kept


def trl_norm(folder: Path, first: dict) -> float:
    """The TRL engine's gradient norm, on the same adapter and the same episodes."""
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
    from tests.support.trl_gradient import trl_gradient_norm

    from terrella.engines.tinker.adapter_folder import read_adapter
    from terrella.models.presets import load_model

    weights, settings = read_adapter(folder / "first")
    model, _ = load_model(str(folder / "base"), device="cpu")
    lora = LoraConfig(
        r=settings["r"],
        lora_alpha=settings["lora_alpha"],
        target_modules=settings["target_modules"],
    )
    adapted = get_peft_model(model, lora)
    loaded = set_peft_model_state_dict(adapted, weights)
    absent = [name for name in loaded.missing_keys if "lora_" in name]
    assert not absent and not loaded.unexpected_keys, (absent, loaded.unexpected_keys)
    return trl_gradient_norm(
        adapted, first["scored"], first["config"], first["rollout"], folder / "trl"
    )


if __name__ == "__main__":
    verb, place, *rest = sys.argv[1:]
    {"base": base, "run": run}[verb](Path(place), *rest)

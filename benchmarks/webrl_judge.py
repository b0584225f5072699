"""An outcome model by YES and NO tokens on real pages, against the world's verdicts.

    python benchmarks/webrl_judge.py --runs runs                  results/webrl_judge.json
    python benchmarks/webrl_judge.py --attempts 13 --injected 5   a few minutes, to see it work
Attempts are an expert's with random actions, on MiniWoB++ in Chromium. The model is fitted on 13
families and measured on other instances of them and on five families that it never saw, before
and after it was fitted. Then 50 pages get lines that claim the opposite of the truth. Every part
is a file of the run: the same command continues after a kill.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import common
from recompute import judged

from terrella.codecs.web_prompt import WebCodecConfig
from terrella.core.files import write_atomic
from terrella.core.seeds import TASK_STREAM, stream
from terrella.core.types import Split
from terrella.data.attempts import (
    Attempt,
    PracticeTask,
    read_attempts,
    scored_attempts,
    write_attempts,
)
from terrella.engines.configs import EngineConfig, LearnerConfig
from terrella.engines.engine import load_tokenizer, make_engine, start_model
from terrella.models.policy_input import PolicyInput
from terrella.pipelines.webrl.injections import count_flips
from terrella.pipelines.webrl.language_agent import LanguageAgent, LanguageAgentConfig
from terrella.pipelines.webrl.outcome_model import Calibration, OutcomeModel, truths
from terrella.pipelines.webrl.updates import fit_judge
from terrella.recipes.webrl import PRACTISED, SHOWN, UNSEEN
from terrella.rollout.batch_rollout import BatchRollout, Chosen, WorldSlot
from terrella.worlds.miniwob import MiniWob

RANDOM_SHARE = 0.35
"""Of the actions: about one attempt of four fails."""
AGENT = LanguageAgentConfig(
    act="score",
    codec=WebCodecConfig(form="compact", language="named", prompt_tokens=640),
    judge=LearnerConfig(top_layers=15, pack_tokens=2048),
)
SETS = {
    "train": (Split.TRAIN, (*SHOWN, *PRACTISED), 1.0),
    "calibrate": (Split.VALIDATION, (*SHOWN, *PRACTISED), 0.25),
    "test": (Split.TEST, (*SHOWN, *PRACTISED), 0.5),
    "held_out_families": (Split.TEST, UNSEEN, 0.5),
}
"""Set -> split, families, share of `--attempts`."""
PARTS = ("untrained", "fitted", "flips")


def clumsy(inputs: Sequence[PolicyInput], slots: Sequence[WorldSlot]) -> list[Chosen]:
    """The expert's action, or with a fixed chance any other."""
    chosen = []
    for shown, slot in zip(inputs, slots, strict=True):
        assert slot.run is not None
        rng = slot.run.rng
        action, other = slot.run.moment.expert(), int(rng.integers(len(shown.offered)))
        known = action in shown.offered and rng.random() >= RANDOM_SHARE
        chosen.append(Chosen(shown.offered.index(action) if known else other, 0.0))
    return chosen


def play(options: argparse.Namespace, folder: Path) -> dict[str, list[Attempt]]:
    """The attempts of every set; they are played once."""
    names = {*SHOWN, *PRACTISED, *UNSEEN}
    families = {name: MiniWob.Config(families=(name,), max_steps=6) for name in sorted(names)}
    found = {}
    with BatchRollout(families, slots=4) as rollout:
        for name, (split, chosen, share) in SETS.items():
            path = folder / f"{name}.jsonl"
            if not path.exists():
                count = max(len(chosen), round(options.attempts * share))
                tasks = [
                    PracticeTask(family=chosen[n % len(chosen)], seed=5_000_000 + n)
                    for n in range(count)
                ]
                write_attempts(path, scored_attempts(rollout.play(clumsy, tasks, split=split)))
            found[name] = read_attempts(path)
            print(name, len(found[name]), "won", sum(truths(found[name])), flush=True)
    return found


@contextlib.contextmanager
def opened(options: argparse.Namespace, folder: Path, saved: Path | None) -> Iterator[Any]:
    """The judge: as published weights, or as it was saved."""
    start = start_model(options.model, folder / "start", seed=options.seed)
    codec = AGENT.codec.make(load_tokenizer(start))
    with make_engine(EngineConfig(), work=folder / "engine") as engine:
        agent = LanguageAgent(
            engine,
            BatchRollout({}),
            AGENT,
            codec,
            start=start,
            work=folder / "learner",
            seed=options.seed,
        )
        with agent.judge(saved, base=Path(start)) as judge:
            yield judge


def part(folder: Path, name: str, make: Callable[[], Any]) -> Any:
    path = folder / f"{name}.json"
    if not path.exists():
        write_atomic(path, json.dumps(make()).encode())
        print(name, "done", flush=True)
    return json.loads(path.read_text())


def fit(options: argparse.Namespace, folder: Path, attempts: Sequence[Attempt]) -> str:
    with opened(options, folder, None) as judge:
        fit_judge(
            judge,
            attempts,
            learning_rate=options.learning_rate,
            epochs=options.epochs,
            batch=8,
            rng=stream(TASK_STREAM, options.seed, 7),
        )
        judge.save(folder / "judge")
    return "judge"


def logits(judge: Any, sets: dict[str, list[Attempt]]) -> dict[str, list[float]]:
    """What the judge says of every attempt that it was not fitted on."""
    asked = ("calibrate", "test", "held_out_families")
    return {name: [float(value) for value in judge.logits(sets[name])] for name in asked}


def outcomes(attempts: Sequence[Attempt]) -> list[tuple[str, float]]:
    """The family and the world's verdict of each attempt."""
    families = [attempt.task.family for attempt in attempts]
    return list(zip(families, truths(attempts), strict=True))


def inject(
    options: argparse.Namespace, judge: Any, sets: dict[str, list[Attempt]], folder: Path
) -> Any:
    """Lines on pages of both test sets, held-out families first; verdicts are calibrated."""
    known = json.loads((folder / "fitted.json").read_text())["calibrate"]
    calibration = Calibration.fit(known, truths(sets["calibrate"]))
    outcome_model = OutcomeModel(OutcomeModel.Config())

    def decide(logit: float) -> float | None:
        return outcome_model.decide(float(calibration.probs(logit)))

    pages = [*sets["held_out_families"], *sets["test"]]
    lost = [each for each in pages if not each.success][: options.injected]
    won = [each for each in pages if each.success][: options.injected]
    return {
        "claims_of_success_on_failures": asdict(
            count_flips(judge, lost, success=False, decide=decide)
        ),
        "claims_of_failure_on_successes": asdict(
            count_flips(judge, won, success=True, decide=decide)
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--attempts", type=int, default=260)
    parser.add_argument("--injected", type=int, default=50)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    common.quiet_trl()
    folder = options.runs / f"webrl_judge-{options.attempts}-{options.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    sets = play(options, folder)

    def untrained() -> Any:
        with opened(options, folder, None) as judge:
            return logits(judge, sets)

    part(folder, "untrained", untrained)
    part(folder, "fitted_model", lambda: fit(options, folder, sets["train"]))
    if not (folder / "flips.json").exists():
        with opened(options, folder, folder / "judge") as judge:
            part(folder, "fitted", lambda: logits(judge, sets))
            part(folder, "flips", lambda: inject(options, judge, sets, folder))
    read = {name: json.loads((folder / f"{name}.json").read_text()) for name in PARTS}
    rows = common.read_rows("webrl_judge") or {"seeds": {}}
    rows["seeds"][str(options.seed)] = {
        "sets": {name: outcomes(attempts) for name, attempts in sets.items()},
        **{name: read[name] for name in ("untrained", "fitted")},
    }
    common.write_rows("webrl_judge", rows)
    settings = {name: getattr(options, name) for name in ("attempts", "epochs", "model")}
    arguments = [f"--{name}={getattr(options, name)}" for name in ("attempts", "injected", "seed")]
    record = common.read_results("webrl_judge")
    flips = {**record.get("flips", {}), str(options.seed): read["flips"]}
    command = common.command(*arguments)
    metrics = {"settings": settings, "flips": flips, **judged({}, rows)}
    common.write_results("webrl_judge", metrics, command=command)


if __name__ == "__main__":
    main()

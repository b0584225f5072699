"""Cards for the hub, written from what was measured: a model card beside weights, a dataset card beside episodes.

    card = model_card(read_run(Path("runs/lake"))); card = dataset_card(read_run(Path("runs/collected")))
"""  # fmt: skip

from __future__ import annotations

import json
from collections.abc import Sequence

from terrella.core.errors import ConfigError
from terrella.show.certificate import figure_tables
from terrella.show.report import markdown_table
from terrella.show.runs import Run

USE = """```python
from pathlib import Path
from terrella.use.imagine import imagine
world = imagine(config, Path("this folder"))   # a gymnasium.Env; info says how far to believe each step
```"""


def card(run: Run) -> str:
    """The card that fits what the folder holds."""
    if run.kind == "store":
        return dataset_card(run)
    if run.kind in ("rlvr", "world model"):
        return model_card(run)
    raise ConfigError(
        str(run.folder), f"there is no card for a {run.kind}", "push a store, a world model or a training run"
    )


def model_card(run: Run) -> str:
    """What it is a model of, how it was made, how far it may be believed."""
    kind = "world-model" if run.kind == "world model" or run.config.get("ask") == "observation" else "agent"
    world = _world_name(run)
    lines = _front(tags=["terrella", kind, world], library_name="transformers", pipeline_tag="text-generation")
    lines += [
        f"# {run.name}",
        "",
        f"A {kind.replace('-', ' ')} of `{world}`, trained with verifiable rewards by Terrella.",
        "",
    ]
    lines += _measured(run)
    if run.certificate is not None:
        verdict = (
            "Certified." if run.certificate.certified else "**Not certified**: " + "; ".join(run.certificate.reasons)
        )
        rows = [row for _, part in figure_tables(run.certificate.sections) for row in part]
        lines += ["## How far to believe it", "", verdict, "", *markdown_table(("", ""), rows), ""]
    elif kind == "world-model":
        lines += ["## How far to believe it", "", "Nobody has measured that: there is no certificate.", ""]
    if run.kind == "world model":
        lines += ["## Use", "", USE, ""]
    return "\n".join([*lines, *_config(run)])


def _measured(run: Run) -> list[str]:
    rows = [
        (f"{part} training", f"{f['mean']:.3f} [{f['low']:.3f}, {f['high']:.3f}]", str(f["n"]))
        for part in ("before", "after") if (f := run.manifest.get(part))
    ]  # fmt: skip
    known = run.manifest.get("baselines", {}).items()
    rows += [(f"baseline: {name}", f"{value:.3f}", "") for name, value in known if value is not None]
    paid = [(f"real steps: {name}", f"{count:,}", "") for name, count in run.manifest.get("real_steps", {}).items()]
    table = markdown_table(("", "held out", "n"), [*rows, *paid])
    return ["## Measured", "", *table, ""] if table else []


def dataset_card(run: Run) -> str:
    """What was played by whom, how often it went well, and what was masked."""
    counts = run.manifest["counts"]
    rows = [(name, f"{counts[name]:,}") for name in ("episodes", "transitions", "successes", "broken")]
    rows += [(f"masked: {name}", f"{count:,}") for name, count in counts["masked"].items()]
    rows += [(f"stopped: {name}", f"{count:,}") for name, count in counts["stops"].items()]
    world, parts = _world_name(run), [{"config_name": "default", "data_files": "part-*.parquet"}]
    lines = _front(tags=["terrella", "episodes", world], configs=parts)
    what = f"Episodes of `{world}`: one row per transition. A null outcome was masked: leave it out of every mean."
    lines += [f"# {run.name}", "", what, "", *markdown_table(("", "count"), rows), ""]
    lines += ["Read it with `terrella.EpisodeStore.open(folder)`, which checks hashes, or with any Parquet reader.", ""]
    return "\n".join([*lines, *_config(run)])


def _world_name(run: Run) -> str:
    return run.world.owner.name if run.world is not None else str(run.config.get("world", {}).get("class", "unknown"))  # type: ignore[attr-defined]


def _front(**fields: object) -> list[str]:
    """The block that the hub reads; JSON is YAML."""
    return ["---", *(f"{name}: {json.dumps(value)}" for name, value in fields.items()), "---", ""]


def _config(run: Run) -> Sequence[str]:
    shown = {key: value for key, value in run.config.items() if key != "out"}  # where it lay is nobody's business
    return ["## Config", "", "```json", json.dumps(shown, indent=1), "```", ""]

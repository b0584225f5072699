"""Model cards and dataset cards for the hub, generated from a run's manifest.

Nothing in a card is written by hand.
    text = card(read_run(Path("runs/lake")))   # the card that fits what the folder holds
"""

from __future__ import annotations

import json

from terrella.core.errors import ConfigError
from terrella.core.untrusted import reading
from terrella.show.certificate import metric_tables
from terrella.show.runs import STRANGE, Run
from terrella.show.tables import interval_text, markdown_table, markdown_text

USAGE = """```python
from pathlib import Path
from terrella.world_models.imagine import imagine
# A gymnasium.Env; info holds the risk of each step
world = imagine(config, Path("this folder"))
```"""


def card(run: Run) -> str:
    """Write the card that fits the kind of the run."""
    with reading(str(run.folder), STRANGE):
        if run.kind == "store":
            return dataset_card(run)
        if run.kind in ("rlvr", "world model"):
            return model_card(run)
    raise ConfigError(
        str(run.folder),
        f"there is no card for a {run.kind}",
        "push a store, a world model or a training run",
    )


def model_card(run: Run) -> str:
    """Describe a model: what it models, its measured rewards, its certificate, its config."""
    predicts = run.kind == "world model" or run.config.get("ask") == "observation"
    kind = "world-model" if predicts else "agent"
    world = _world_name(run)
    lines = [
        *_front_matter(
            tags=["terrella", kind, world],
            library_name="transformers",
            pipeline_tag="text-generation",
        ),
        f"# {markdown_text(run.name)}",
        "",
        f"A {kind.replace('-', ' ')} of `{world}`, trained with verifiable rewards by Terrella.",
        "",
        *_measured(run),
        *_trust(run, kind),
    ]
    if run.kind == "world model":
        lines += ["## Use", "", USAGE, ""]
    return "\n".join([*lines, *_config(run)])


def _measured(run: Run) -> list[str]:
    rows = []
    for part in ("before", "after"):
        metric = run.metrics.get(part)
        if metric:
            rows.append((f"{part} training", interval_text(metric), str(metric["n"])))
    for name, value in run.metrics.get("baselines", {}).items():
        if value is not None:
            rows.append((f"baseline: {name}", f"{value:.3f}", ""))
    for name, count in run.metrics.get("real_steps", {}).items():
        rows.append((f"real steps: {name}", f"{count:,}", ""))
    if not rows:
        return []
    return ["## Measured", "", *markdown_table(("", "held out", "n"), rows), ""]


def _trust(run: Run, kind: str) -> list[str]:
    """Summarise the certificate; a world model without one says so."""
    heading = ["## How far to trust it", ""]
    if run.certificate is not None:
        verdict = f"**{markdown_text(run.certificate.headline)}**"
        tables = metric_tables(run.certificate.sections)
        rows = [row for _, table in tables for row in table]
        return [*heading, verdict, "", *markdown_table(("", ""), rows), ""]
    if kind == "world-model":
        return [*heading, "This has not been measured: there is no certificate.", ""]
    return []


def dataset_card(run: Run) -> str:
    """Describe an episode store: counts of episodes, successes, masked verdicts and stops."""
    counts = run.manifest["counts"]
    totals = ("episodes", "transitions", "successes", "broken")
    rows = [(name, f"{counts[name]:,}") for name in totals]
    rows += [(f"masked: {name}", f"{count:,}") for name, count in counts["masked"].items()]
    rows += [(f"stopped: {name}", f"{count:,}") for name, count in counts["stops"].items()]
    world = _world_name(run)
    files = [{"config_name": "default", "data_files": "part-*.parquet"}]
    lines = [
        *_front_matter(tags=["terrella", "episodes", world], configs=files),
        f"# {markdown_text(run.name)}",
        "",
        f"Episodes of `{world}`: one row per transition. "
        "A null outcome was masked: leave it out of every mean.",
        "",
        *markdown_table(("", "count"), rows),
        "",
        "Read it with `terrella.EpisodeStore.open(folder)`, which checks hashes, "
        "or with any Parquet reader.",
        "",
    ]
    return "\n".join([*lines, *_config(run)])


def _world_name(run: Run) -> str:
    if run.world is not None:
        return run.world.owner.name
    return str(run.config.get("world", {}).get("class", "unknown")).replace("`", "'")


def _front_matter(**fields: object) -> list[str]:
    """The YAML block that the hub reads; JSON values are valid YAML."""
    return ["---", *(f"{name}: {json.dumps(value)}" for name, value in fields.items()), "---", ""]


def _config(run: Run) -> list[str]:
    return ["## Config", "", "```json", json.dumps(run.config, indent=1), "```", ""]

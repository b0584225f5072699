"""`terrella sft`: fit a model to any examples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from terrella.cli.app import Assignments, app, with_overrides, world_of
from terrella.cli.memory_plan import dry_run_config, only_with_dry_run
from terrella.core.errors import ConfigError
from terrella.core.world import World
from terrella.models.names import check_model_name

Learn = Annotated[Literal["agent", "world-model"] | None, arg(name="as")]


@app.command(name="sft")
def sft(
    data: Positional[Path],
    /,
    *,
    model: str = "smollm2",
    learn: Learn = None,
    world: str | None = None,
    out: Path | None = None,
    assignments: Assignments = (),
    dry_run: bool = False,
    on: str | None = None,
) -> None:
    """Fit a model to examples: conversations in a file, or episodes of a store.

    Only the assistant's tokens are learnt. The same command resumes after a kill.

    Args:
        data: a file that ends with .jsonl or .parquet, a folder of such files, or an episode store.
        model: the model to start from: smollm2, gemma3-270m, a folder, or a name on the hub.
        learn: of a store: agent learns the actions, world-model what follows them.
        world: of a store: its world, if it is one of yours or starts a browser; the one of its
            manifest unless given.
        out: the folder; `runs/sft-DATA` unless given.
        assignments: config overrides, such as sft.epochs=3, sft.lora_rank=16, max_tokens=8192 or
            columns.prompt=instruction.
        dry_run: print the resolved config and stop.
        on: with --dry-run: also print the memory that it needs on this hardware, such as 8xH100,
            2x24GB or cpu, and refuse what does not fit.
    """
    from terrella.pipelines.base import run_pipeline
    from terrella.pipelines.sft.pipeline import Sft

    config = Sft.Config(
        data=data,
        learn=learn,
        world=_world(data, learn, world),
        model=model,
        out=out or Path("runs") / f"sft-{data.resolve().stem}",
    )
    config = with_overrides(config, assignments)
    check_model_name(config.model)
    only_with_dry_run(on, dry_run)
    dry_run_config(config, on) if dry_run else run_pipeline(config)


def _world(data: Path, learn: str | None, name: str | None) -> World.Config | None:
    """The world of a store; conversations have none."""
    from terrella.data.chat_rows import chat_files
    from terrella.data.store import read_store_manifest
    from terrella.pipelines.sft.pipeline import is_store

    if not is_store(data):
        chat_files(data)  # a mistyped path or another kind of file is refused here
        if learn is not None or name is not None:
            raise ConfigError(
                str(data), "holds conversations", "leave --as and --world out: they are for stores"
            )
        return None
    if learn is None:
        raise ConfigError(
            str(data),
            "is a store, which can teach two things",
            "add --as agent or --as world-model",
        )
    if name is None and "world" not in read_store_manifest(data).get("config", {}):
        return None  # recordings: their task is in the steps
    return world_of(data, name)

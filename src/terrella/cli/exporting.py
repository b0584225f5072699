"""`terrella export`: the model of a run for everything else."""

from __future__ import annotations

from pathlib import Path

from tyro.conf import Positional

from terrella.cli.app import Assignments, app, print_config
from terrella.core.config_override import override
from terrella.models.names import check_model_name


@app.command(name="export")
def export(
    run: Positional[Path],
    /,
    *,
    out: Path,
    base: str | None = None,
    assignments: Assignments = (),
    dry_run: bool = False,
) -> None:
    """Write the model of a run as a plain Hugging Face folder: adapters merged, in shards.

    What was written is loaded again and compared.

    Args:
        run: a run, the folder of a model, or an adapter in PEFT's format.
        out: the folder to write; it must not hold anything yet.
        base: of an adapter: the model that it was trained on.
        assignments: config overrides, such as dtype=bfloat16 or shard_gb=2.
        dry_run: print the resolved config and stop.
    """
    from terrella.commands.export import Export
    from terrella.show.progress import show_metrics

    if base is not None:
        check_model_name(base)
    config = override(Export.Config(source=run, out=out, base=base), assignments)
    if dry_run:
        print_config(config)
        return
    show_metrics(f"exported to {out}", Export(config).run())

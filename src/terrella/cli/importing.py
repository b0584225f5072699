"""`terrella import`: foreign data sets, by kind."""

from __future__ import annotations

from pathlib import Path

from tyro.conf import Positional

from terrella.cli.app import Assignments, app, print_config
from terrella.core.config_override import override
from terrella.core.errors import ConfigError
from terrella.core.known_names import known_names


@app.command(name="import")
def import_data(
    kind: Positional[str],
    source: Positional[Path],
    /,
    *,
    out: Path,
    assignments: Assignments = (),
    dry_run: bool = False,
) -> None:
    """Import a data set; what it says is checked, and the same command resumes.

    Args:
        kind: rlds and lerobot (robot video), webrl (traces of web agents) become an episode store;
            cot (chains of thought, chats) becomes rows for `terrella sft`; bytesized32 (the
            official files) becomes packed games for the world of that name.
        source: the file or folder of the data set.
        out: the folder to write.
        assignments: config overrides, such as size=64,64, camera=observation.images.top,
            actions=action/world_vector,action/rotation_delta or columns.prompt=instruction.
        dry_run: print the resolved config and stop.
    """
    from terrella.pipelines.import_data import IMPORTERS
    from terrella.show.progress import make_progress, show_metrics

    if kind not in IMPORTERS:
        remedy = known_names(kind, IMPORTERS).replace("known keys", "known kinds")
        raise ConfigError(kind, "no such kind of data", remedy)
    if not source.exists():
        raise ConfigError(str(source), "there is no such file or folder", "check the path")
    importer = IMPORTERS[kind]
    config = override(importer.Config(source=source, out=out), assignments)
    if dry_run:
        print_config(config)
        return
    with make_progress() as progress:
        summary = importer(config).run(progress)
    show_metrics(f"imported into {out}", summary)

"""Manifests of runs that never ran, for everything that reads run folders."""

from terrella.core.integrity import write_sealed
from terrella.core.run_folder import FORMAT, MANIFEST, SCHEMA, result_files


def write_manifest(folder, config, metrics, seconds=1.0):
    """Write the manifest of a finished pipeline, with a dumped config and a result as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = {
        "format": FORMAT,
        "schema": SCHEMA,
        "config": config,
        "metrics": metrics,
        "versions": {},
        "seconds": seconds,
        "files": result_files(folder),
    }
    write_sealed(folder / MANIFEST, manifest)

"""`terrella export RUN`: the model of a run as a plain Hugging Face folder.

Export(Export.Config(source=Path("runs/lake"), out=Path("lake"), dtype="bfloat16")).run()
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from terrella.core.config import Configurable, Local
from terrella.core.errors import ConfigError
from terrella.core.files import locked

MODELS = ("model", "rl/model", "fitted", "self_play")
"""Where the last model of a run is, the most trained first."""
CONFIGS = ("config.json", "adapter_config.json")


class Export(Configurable):
    """The command; `run` returns rows of a table."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Configurable.Config):
        source: Local[Path]
        """A run, the folder of a model, or that of an adapter in PEFT's format."""
        out: Local[Path]
        base: Local[str | None] = None
        """The model that an adapter was trained on."""
        dtype: Literal["stored", "float32", "bfloat16", "float16"] = "stored"
        shard_gb: float = 5.0
        """Size of a file of weights, in gigabytes of 10^9 bytes."""

        def __post_init__(self) -> None:
            if self.shard_gb <= 0:
                raise ConfigError("shard_gb", f"must be above 0, not {self.shard_gb}")

    config: Config

    def run(self) -> list[tuple[str, str]]:
        """Write the folder; it is whole or absent."""
        config = self.config
        source = model_folder(config.source)
        if config.out.exists() and (config.out.is_file() or any(config.out.iterdir())):
            raise ConfigError(
                str(config.out), "already holds something", "choose a new folder with --out"
            )
        from terrella.models.plain_folder import adapter_base, write_plain

        named = adapter_base(source)
        if named is not None and config.base is None:
            raise ConfigError(
                str(source), f"is an adapter of {named}", "name its base: --base MODEL"
            )
        if named is None and config.base is not None:
            raise ConfigError(str(source), "is a whole model", "leave --base out")
        config.out.parent.mkdir(parents=True, exist_ok=True)
        with locked(config.out):
            written = write_plain(
                source,
                config.out,
                base=config.base,
                dtype=config.dtype,
                shard_bytes=int(config.shard_gb * 10**9),
            )
        rows = [
            ("from", str(source)),
            ("parameters", f"{written.parameters:,} in {written.dtype}"),
            ("files of weights", f"{written.shards}, {written.bytes / 1e9:,.3f} GB"),
        ]
        if written.merged:
            rows.append(("merged adapters", f"{written.merged} layers"))
        agreed = f"{written.agrees:.0%} of the most likely tokens are the same"
        checked = f"{agreed}; probabilities differ by {written.difference:.2g} at most"
        return [*rows, ("read back", checked), ("folder", str(config.out))]


def model_folder(source: Path) -> Path:
    """The folder of the model: the source itself, or the last model of a run."""
    if not source.is_dir():
        raise ConfigError(str(source), "there is no such folder", "check the path")
    for folder in (source, *(source / name for name in MODELS)):
        if any((folder / name).exists() for name in CONFIGS):
            return folder
    found = sorted(
        path.parent.relative_to(source).as_posix()
        for name in CONFIGS
        for path in source.glob(f"*/**/{name}")
    )
    listed = f"name one of its folders: {', '.join(found[:8])}" if found else "check the path"
    raise ConfigError(str(source), "holds no model where a run has its last one", listed)

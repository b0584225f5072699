"""Model folders and repositories hold data: one that names Python code of its own is refused.

transformers runs such code after a question on the terminal, PEFT without one. So the files are
read here first, and every loader gets `SAFE`.
    refuse_code("runs/lake/model")
    AutoTokenizer.from_pretrained(name, **SAFE)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from terrella.core.errors import ConfigError

SAFE: dict[str, Any] = {"trust_remote_code": False}
"""Arguments of every `from_pretrained`: no code from the folder, and no question about it."""
CODE_KEYS = (
    "auto_map",  # transformers: a class in a file of the repository
    "custom_pipelines",
    "auto_mapping",  # PEFT: a library to import
    "megatron_config",  # PEFT imports the module in `megatron_core` if this is set
)
KERNEL_KEYS = ("attn_implementation", "_attn_implementation", "_attn_implementation_internal")
"""A value with a slash is a repository with compiled code."""
MAX_BYTES = 50_000_000
HUB_FILES = ("config.json", "tokenizer_config.json", "adapter_config.json")


def refuse_code(name: str | Path) -> None:
    """Raise a ConfigError if a model, in a folder or on the hub, names code of its own."""
    folder = Path(name)
    for file in _folder_files(folder) if folder.is_dir() else _hub_files(str(name)):
        try:
            content = json.loads(_read(file))
            found = next(_code(content), None)
        except (ValueError, RecursionError) as error:
            raise ConfigError(str(file), f"cannot be read: {error}", "use another model") from error
        if found is not None:
            raise ConfigError(
                str(file),
                f"names code that would be run: {found}",
                "use a model that transformers knows; code of a model's own is never run",
            )


def _folder_files(folder: Path) -> list[Path]:
    """The configs of a folder; a tokenizer's vocabulary is large and names nothing."""
    names = sorted(path for path in folder.glob("*.json") if "config" in path.name.lower())
    return [path for path in names if path.is_file()]


def _hub_files(name: str) -> Iterator[Path]:
    from transformers.utils import cached_file

    for file in HUB_FILES:
        path = cached_file(
            name,
            file,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        if path is not None:
            yield Path(path)


def _read(file: Path) -> bytes:
    if file.stat().st_size > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
    return file.read_bytes()


def _code(value: Any) -> Iterator[str]:
    """What names code, at any depth."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            named = key in CODE_KEYS and item
            if named or (key in KERNEL_KEYS and isinstance(item, str) and "/" in item):
                yield f"{key} = {json.dumps(item)[:80]}"
            yield from _code(item)
    elif isinstance(value, list):
        for item in value:
            yield from _code(item)

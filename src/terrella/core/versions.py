"""Versions of the packages that decide what a run computes."""

from __future__ import annotations

import contextlib
from importlib.metadata import PackageNotFoundError, version

PACKAGES = ("terrella", "numpy", "torch", "transformers", "trl", "verl", "vllm")


def installed_versions() -> dict[str, str]:
    """The versions of those that are installed."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found

"""Terrella.

World models with verifiable rewards, agents trained with them, and how far to believe them.

The names below are the public surface; they are imported on first use, so `import terrella` costs
nothing.
    import terrella
    world = terrella.world_config("frozen_lake").build()
    episode = terrella.play(world, terrella.Random.Config().build(), seed=0)
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0.dev0"

_HOMES = {
    "terrella.core.types": (
        "Episode",
        "Frames",
        "Moment",
        "Observation",
        "Outcome",
        "Split",
        "State",
        "Status",
        "Stop",
        "Text",
        "Transition",
        "Tree",
        "Verdict",
    ),
    "terrella.core.gym_world": ("GymWorld",),
    "terrella.core.world": ("StateWorld", "World"),
    "terrella.core.episode": ("EpisodeRun", "play"),
    "terrella.core.config": ("Configurable", "dump", "load"),
    "terrella.core.config_override": ("override",),
    "terrella.core.judge": ("judge",),
    "terrella.data.store": ("EpisodeStore",),
    "terrella.policies.basic": ("Expert", "Mixture", "Random"),
    "terrella.policies.endpoint": ("Endpoint",),
    "terrella.commands.check": ("check_world",),
    "terrella.pipelines.collect.pipeline": ("Collect",),
    "terrella.evals.baselines": ("baselines",),
    "terrella.verify.state": ("StateDiff",),
    "terrella.verify.text": ("Exact", "LineGain"),
    "terrella.worlds": ("find_world", "world_config"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted([*_HOME_OF, "__version__"])


def __getattr__(name: str) -> Any:
    """Import a public name from its home when it is first asked for."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'terrella' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    """The public names."""
    return __all__

"""Which command runs which recipe. Pipelines are imported when somebody asks.

command_of(tiny_counter()) == "rlvr"
"""

from __future__ import annotations


def command_of(config: object) -> str:
    """The command that runs a recipe's config."""
    from terrella.pipelines.reproduce.pipeline import Reproduce

    if isinstance(config, Reproduce.Config):
        return "reproduce"
    return "train-world-model" if isinstance(config, world_model_kinds()) else "rlvr"


def rlvr_kinds() -> tuple[type, ...]:
    """Configs of `terrella rlvr`."""
    from terrella.pipelines.rlvr import Rlvr
    from terrella.pipelines.spa.pipeline import Spa
    from terrella.pipelines.web.agent import WebPolicy
    from terrella.pipelines.webrl.pipeline import WebRl

    return (Rlvr.Config, WebRl.Config, Spa.Config, WebPolicy.Config)


def world_model_kinds() -> tuple[type, ...]:
    """Configs of `terrella train-world-model`."""
    from terrella.pipelines.text_games.pipeline import TextGameModel
    from terrella.pipelines.video.pipeline import VideoModel
    from terrella.pipelines.web.page_model import PageModel
    from terrella.pipelines.world_model import TrainWorldModel

    return (TrainWorldModel.Config, VideoModel.Config, PageModel.Config, TextGameModel.Config)

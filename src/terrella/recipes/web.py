"""Page world models and web agents that train on a CPU in minutes.

Chromium is needed only to collect episodes. Results are in results/web_pages.json and
results/web_mpc.json (`python benchmarks/web.py pages mpc`).
"""

from __future__ import annotations

from pathlib import Path

from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.pipelines.web.agent import WebPolicy
from terrella.pipelines.web.page_model import PageModel
from terrella.recipes import recipe
from terrella.worlds.miniwob import MiniWob

PACK = 4096


@recipe(
    hardware="1 CPU core, recorded pages",
    time="10 min",
    expect="F1 of changes 0.26 after SFT, 0.24 after RLVR (1 seed; no change 0)",
)
def page_model() -> PageModel.Config:
    """Predicts what an action changes on a page: 0.3M parameters, recorded MiniWoB++ steps.

    One core, ten minutes.
    """
    return PageModel.Config(
        world=MiniWob.Config(by="family", max_steps=6),
        train=Path("runs/web/pages/train"),
        test=Path("runs/web/pages/test"),
        sft=SftConfig(
            epochs=24,
            batch_size=32,
            learning_rate=2e-3,
            warmup_steps=30,
            pack_tokens=PACK,
            save_every=200,
        ),
        rlvr=RlvrConfig(
            steps=20,
            groups=16,
            group_size=8,
            learning_rate=2e-4,
            kl=0.02,
            pack_tokens=PACK,
            save_every=10,
        ),
    )


@recipe(
    hardware="1 CPU core, recorded pages",
    time="5 min",
    expect="success 0.23 on held-out pages",
)
def web_policy() -> WebPolicy.Config:
    """An agent that imitates the successful recorded episodes.

    0.3M parameters, one core, five minutes.
    """
    return WebPolicy.Config(
        world=MiniWob.Config(by="family", max_steps=6),
        train=Path("runs/web/pages/train"),
        sft=SftConfig(
            epochs=8,
            batch_size=32,
            learning_rate=2e-3,
            warmup_steps=30,
            pack_tokens=PACK,
            save_every=100,
        ),
    )

"""Page world models and web agents of a size that trains on a CPU in minutes. Chromium is needed only to collect.

What they reached stands in results/web_pages.json and results/web_mpc.json (`python results/measure_web.py pages mpc`).
"""

from __future__ import annotations

from pathlib import Path

from terrella.engines.trl.rlvr_settings import RlvrSettings
from terrella.engines.trl.sft_trainer import SftSettings
from terrella.stages.page_model import PageModel
from terrella.stages.web_agent import WebPolicy
from terrella.worlds.miniwob import MiniWob

PACK = 4096


def page_model() -> PageModel.Config:
    """What changes on a page when that is done: 0.3M parameters, recorded MiniWoB++ steps. One core, ten minutes."""
    return PageModel.Config(
        world=MiniWob.Config(by="family", max_steps=6), train=Path("runs/web/pages/train"),
        test=Path("runs/web/pages/test"),
        sft=SftSettings.Config(
            epochs=24, batch_rows=32, learning_rate=2e-3, warmup_steps=30, pack_tokens=PACK, save_every=200
        ),
        rlvr=RlvrSettings.Config(
            steps=20, groups=16, group_size=8, learning_rate=2e-4, kl=0.02, pack_tokens=PACK, save_every=10
        ),
    )  # fmt: skip


def web_policy() -> WebPolicy.Config:
    """An agent that imitates the successful recorded episodes: 0.3M parameters, one core, five minutes."""
    return WebPolicy.Config(
        world=MiniWob.Config(by="family", max_steps=6), train=Path("runs/web/pages/train"),
        sft=SftSettings.Config(
            epochs=8, batch_rows=32, learning_rate=2e-3, warmup_steps=30, pack_tokens=PACK, save_every=100
        ),
    )  # fmt: skip

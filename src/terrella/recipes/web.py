"""Page world models and web agents: from 0.3M parameters on a CPU to 7B on a node.

Chromium is needed only to collect episodes (docs/page_models.md has the commands). Results of
the small ones are in results/web_pages.json and results/web_mpc.json.
"""

from __future__ import annotations

from pathlib import Path

from terrella.engines.configs import RlvrConfig, SftConfig, VerlConfig, VllmConfig
from terrella.pipelines.web.agent import WebPolicy
from terrella.pipelines.web.page_model import PageModel
from terrella.recipes import recipe
from terrella.worlds.miniwob import MiniWob
from terrella.worlds.webarena import WebArena

PACK = 4096
CHAT_PACK = 2048


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
        long_pages="leave_out",
        page_characters=500,
        change_characters=160,
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
        page_characters=500,
        sft=SftConfig(
            epochs=8,
            batch_size=32,
            learning_rate=2e-3,
            warmup_steps=30,
            pack_tokens=PACK,
            save_every=100,
        ),
    )


@recipe(
    hardware="1 CPU core, recorded pages",
    time="2.5 h with prompt=terse; without it not measured, about 6 h",
    expect="terse, seed 0: F1 of changes 0.58 after SFT, 0.60 after RLVR (0.3M parameters: 0.26)",
)
def pages_smollm2_miniwob() -> PageModel.Config:
    """SmolLM2-135M-Instruct as a page model of MiniWoB++, told the language of changes.

    One core, about six hours; `--set prompt=terse` halves it. Pages that do not fit are cut.
    """
    return PageModel.Config(
        world=MiniWob.Config(by="family", max_steps=6),
        train=Path("runs/web/pages/train"),
        test=Path("runs/web/pages/test"),
        model="smollm2",
        context_tokens=1024,
        long_pages="cut",
        turn_tokens=96,
        score_before=True,
        most_test_steps=150,
        sft=SftConfig(
            epochs=2,
            batch_size=8,
            learning_rate=2e-4,
            warmup_steps=10,
            pack_tokens=CHAT_PACK,
            save_every=25,
        ),
        rlvr=RlvrConfig(
            steps=40,
            groups=8,
            group_size=8,
            refill=3,
            learning_rate=1e-5,
            warmup_steps=3,
            pack_tokens=CHAT_PACK,
            save_every=10,
        ),
    )


@recipe(
    hardware="1 CPU core, recorded pages",
    time="6 h",
    expect="not measured yet",
)
def pages_smollm2_arena() -> PageModel.Config:
    """SmolLM2-135M-Instruct as a page model of the mini-arena: pages of thousands of tokens.

    One core, six hours. A page is cut to what fits beside the element that is acted on; the result
    says how many were, and how many changes that hides.
    """
    small = pages_smollm2_miniwob()
    return small.replace(
        world=WebArena.Config(tasks="mini"),
        train=Path("runs/web/arena/train"),
        test=Path("runs/web/arena/test"),
        context_tokens=2048,
        turn_tokens=192,
        most_test_steps=80,
        evaluate_on=32,
        sft=small.sft.replace(batch_size=4, pack_tokens=4096),
        rlvr=small.rlvr.replace(steps=20, groups=4, pack_tokens=4096),
    )


@recipe(
    hardware="8 A100-80G, recorded pages",
    time="a day",
    expect="never run here; published for 1.5B: F1 0.50 after SFT, 0.65 after RLVR",
    on="8xA100-80G",
)
def pages_7b_webarena() -> PageModel.Config:
    """Qwen2.5-7B-Instruct on WebArena's pages in RLVR-World's form and settings; 8 A100-80G GPUs.

    Whole pages (5,000 tokens) and replies of up to 7,288. Never run here.
    """
    return PageModel.Config(
        world=WebArena.Config(tasks="webarena"),
        train=Path("runs/web/webarena/train"),
        test=Path("runs/web/webarena/test"),
        model="Qwen/Qwen2.5-7B-Instruct",
        form="sections",
        context_tokens=12_288,
        long_pages="cut",
        turn_tokens=7_288,
        score_before=True,
        evaluate_on=256,
        sampler="vllm",
        vllm=VllmConfig(max_model_len=12_288, memory=0.35, sleep=True),
        verl=VerlConfig(prompt_tokens=5_000),
        sft=SftConfig(
            epochs=4,
            batch_size=8,
            learning_rate=1e-5,
            warmup_steps=100,
            bf16=True,
            gradient_checkpointing=True,
            lora_rank=32,
            lora_alpha=16,
            save_every=200,
        ),
        rlvr=RlvrConfig(
            steps=360,
            groups=64,
            group_size=5,
            learning_rate=1e-6,
            kl=0.001,
            bf16=True,
            gradient_checkpointing=True,
            save_every=20,
            pack_tokens=12_288,  # a page is read once for a group's replies
        ),
    )


@recipe(
    hardware="1 CPU core, recorded pages",
    time="1 h",
    expect="not measured yet; 0.3M parameters: success 0.23",
)
def web_policy_smollm2() -> WebPolicy.Config:
    """SmolLM2-135M-Instruct as the proposer of a web agent: imitates recorded successes.

    One core, an hour.
    """
    return web_policy().replace(
        model="smollm2",
        page_characters=0,
        context_tokens=1024,
        sft=SftConfig(
            epochs=1,
            batch_size=16,
            learning_rate=1e-4,
            warmup_steps=10,
            pack_tokens=CHAT_PACK,
            save_every=25,
        ),
    )

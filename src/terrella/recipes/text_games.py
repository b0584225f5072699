"""World models of text games: `terrella reproduce bytesized32_tiny`, and RLVR-World's settings.

The data are not included: $TERRELLA_BYTESIZED32 names the folder (docs/text_games.md). Results of
the tiny arms are in results/bytesized32_tiny.json. The recipes of the paper's size were only
resolved (`--dry-run`), never run here.
"""

from __future__ import annotations

from pathlib import Path

from terrella.engines.configs import RlvrConfig, SftConfig, VerlConfig, VllmConfig
from terrella.pipelines.reproduce.pipeline import Reproduce
from terrella.pipelines.text_games.pipeline import TextGameModel
from terrella.pipelines.text_games.teacher import Teacher
from terrella.pipelines.world_model import TrainWorldModel
from terrella.policies.basic import Random
from terrella.recipes import recipe
from terrella.worlds.bytesized32 import ByteSized32
from terrella.worlds.textworld import TextWorld

PACK = 2048
SERVER = VllmConfig(max_model_len=12_288, memory=0.35)
"""Beside the trainer on the same GPU: `--dry-run --on 8xA100-80G` says what is left for each."""
PUBLISHED = {
    "R1-Distill-Qwen-1.5B, SFT": "unchanged 38.88, changed 24.21, overall 32.87",
    "R1-Distill-Qwen-1.5B, RLVR exact": "73.57, 33.14, 57.01",
    "R1-Distill-Qwen-1.5B, RLVR task-specific": "83.66, 33.80, 63.24",
    "7B, RLVR exact": "83.08, 40.33, 65.53",
    "GPT-4": "73.90, 51.60, 64.76",
}


@recipe(
    hardware="1 CPU core",
    time="4 min a job",
    expect="changed accuracy 44.7%, RLVR +2.2 points; overall -0.4 (3 seeds)",
)
def bytesized32_tiny() -> Reproduce.Config:
    """SFT on a quarter of the records (one base), then RLVR on all; 1M parameters.

    One core, four minutes per job; the base and `sft_all` take about twenty each.
    """
    sft = TextGameModel.Config(
        world=ByteSized32.Config(focus="varying", gold_share=0.6),
        model="tiny-1m",
        sft_share=0.25,
        states=12_000,
        actions=12,
        sft=SftConfig(batch_size=4, learning_rate=2e-3, warmup_steps=30, pack_tokens=PACK),
    )
    rlvr = RlvrConfig(
        steps=100, groups=24, group_size=8, learning_rate=2e-4, warmup_steps=3, pack_tokens=PACK
    )
    arms = {
        "sft": sft,
        "exact": sft.replace(rlvr=rlvr),
        "task_specific": sft.replace(rlvr=rlvr, world=sft.world.replace(reward="task_specific")),
        "exact_refill": sft.replace(rlvr=rlvr.replace(refill=3)),
        "sft_all": sft.replace(sft_share=1.0),
        "nearest_neighbour": sft.replace(model="nearest_neighbour"),
    }
    return Reproduce.Config(
        arms=arms,
        first=("sft", "exact", "nearest_neighbour"),
        seeds=3,
        paper=PUBLISHED,
        claims=(
            ("exact", "sft", 1, False),
            ("task_specific", "sft", 1, False),
            ("task_specific", "exact", 1, True),
            ("exact_refill", "exact", 1, False),
            ("sft_all", "nearest_neighbour", 1, False),
        ),
        out=Path("runs/bytesized32_tiny"),
    )


@recipe(
    hardware="2 CPU cores",
    time="3 h 20 min: 100 min a seed on one core",
    expect="changed 15.5%, 20.6% (2 seeds) on unseen games, nearest neighbour 0%; RLVR undecided",
)
def bytesized32_smollm2() -> Reproduce.Config:
    """SmolLM2-135M-Instruct, all weights: SFT, then RLVR, tested on eight games it never saw.

    Two jobs at a time, one core each. A question takes about 200 tokens: only what varies in a game
    is shown, and the format is learnt instead of explained.
    """
    sft = TextGameModel.Config(
        world=ByteSized32.Config(
            focus="varying", prompt="terse", splits="held_out_games", gold_share=0.6
        ),
        model="smollm2",
        states=200,
        actions=12,
        max_invalid=0.05,
        sft_rounds=3,
        turn_tokens=80,
        sft=SftConfig(
            batch_size=2, learning_rate=2e-4, warmup_steps=10, save_every=50, pack_tokens=PACK
        ),
    )
    rlvr = RlvrConfig(
        steps=20,
        groups=8,
        group_size=8,
        refill=3,
        learning_rate=1e-5,
        warmup_steps=3,
        save_every=5,
        pack_tokens=PACK,
    )
    arms = {
        "sft": sft,
        "exact": sft.replace(rlvr=rlvr),
        "no_change": sft.replace(model="no_change"),
        "nearest_neighbour": sft.replace(model="nearest_neighbour"),
    }
    return Reproduce.Config(
        arms=arms,
        first=("sft",),  # both bases at once, then both RLVR runs
        seeds=3,
        at_once=2,
        paper=PUBLISHED,
        claims=(("sft", "nearest_neighbour", 1, False), ("exact", "sft", 1, False)),
        out=Path("runs/bytesized32_smollm2"),
    )


@recipe(
    hardware="8 A100-80G",
    time="hours a seed",
    expect="never run here; the paper's settings",
    on="8xA100-80G",
)
def rlvr_world_1_5b() -> Reproduce.Config:
    """RLVR-World's text games, DeepSeek-R1-Distill-Qwen-1.5B: SFT on 4, GRPO on 8 A100-80G GPUs.

    Never run here.
    """
    return _paper("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "runs/rlvr_world_1_5b")


@recipe(
    hardware="8 A100-80G",
    time="hours a seed",
    expect="never run here; the paper's settings",
    on="8xA100-80G",
)
def rlvr_world_7b() -> Reproduce.Config:
    """RLVR-World's text games, DeepSeek-R1-Distill-Qwen-7B; 8 A100-80G GPUs.

    Never run here.
    """
    return _paper("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "runs/rlvr_world_7b")


def _paper(model: str, out: str) -> Reproduce.Config:
    """The paper's settings: adapters for SFT on a teacher's thoughts, then GRPO on all weights.

    The published prompt with rules and two worked examples; answers as differences in JSON. The
    teacher is whatever serves R1 at its address; `--set teacher.url=URL` names another.
    """
    sft = TextGameModel.Config(
        world=ByteSized32.Config(
            view="json", prompt="published", gold_share=0.5, even_games=False, examples=2
        ),
        model=model,
        states=4000,
        actions=4,
        teacher=Teacher.Config(model="deepseek-r1"),
        thinking="auto",
        turn_tokens=4096,
        sampler="vllm",
        vllm=SERVER,
        verl=VerlConfig(prompt_tokens=7192),
        sft=SftConfig(
            epochs=15,
            batch_size=16,
            learning_rate=1e-5,
            warmup_steps=750,
            bf16=True,
            gradient_checkpointing=True,
            lora_rank=32,
            lora_alpha=16,
        ),
    )
    rlvr = RlvrConfig(
        steps=720,  # two on each of 360 batches
        groups=128,
        group_size=5,
        mini_batches=2,
        learning_rate=1e-6,
        kl=0.001,
        bf16=True,
        gradient_checkpointing=True,
        save_every=20,
        pack_tokens=12_288,  # a prompt of 7,192 tokens is read once for a group's replies
    )
    arms = {
        "sft": sft,
        "exact": sft.replace(rlvr=rlvr),
        "task_specific": sft.replace(
            rlvr=rlvr, world=sft.world.replace(reward="task_specific", gold_share=0.85)
        ),
    }
    claims = (("exact", "sft", 1, False), ("task_specific", "sft", 1, False))
    return Reproduce.Config(
        arms=arms, first=("sft", "exact"), seeds=3, claims=claims, paper=PUBLISHED, out=Path(out)
    )


@recipe(
    hardware="1 CPU core",
    time="minutes",
    expect="of what changes 0.47-0.61 (3 seeds; verb habit 0.30); overall not better",
)
def textworld_model() -> TrainWorldModel.Config:
    """A model of generated games (which facts come and go), tested on games that it never saw.

    One core, minutes.
    """
    world = TextWorld.Config(
        answer="difference", rooms=(2, 5), objects=(2, 6), games=60, wander=6, max_steps=1
    )
    return TrainWorldModel.Config(
        world=world,
        policy=Random.Config(),
        transitions=16_000,
        model="tiny-0.3m",
        turn_tokens=24,
        sft=SftConfig(
            epochs=5, batch_size=16, learning_rate=2e-3, warmup_steps=50, pack_tokens=PACK
        ),
    )


@recipe(
    hardware="1 CPU core",
    time="2 h",
    expect="not measured yet",
)
def textworld_smollm2() -> TrainWorldModel.Config:
    """SmolLM2-135M-Instruct as a model of generated games: SFT on real steps, then RLVR.

    One core, two hours; `benchmarks/text_games.py textworld_smollm2:0` tests it on unseen games.
    """
    tiny = textworld_model()
    return tiny.replace(
        model="smollm2",
        transitions=800,
        turn_tokens=64,
        evaluate_on=128,
        sft=SftConfig(
            batch_size=8, learning_rate=2e-4, warmup_steps=10, save_every=25, pack_tokens=PACK
        ),
        rlvr=RlvrConfig(
            steps=40,
            groups=8,
            group_size=8,
            refill=3,
            learning_rate=1e-5,
            warmup_steps=3,
            save_every=10,
            pack_tokens=PACK,
        ),
    )

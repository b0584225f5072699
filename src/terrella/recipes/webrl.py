"""WebRL with a pointer policy of 0.3M parameters: `terrella reproduce webrl_sokoban`.

All arms of a seed start from the same policy and have the same number of env steps. The policy has
imitated a few demonstrations and is far from certain: an over-trained start explores nothing. Their
results are in results/webrl_*.json.
"""

from __future__ import annotations

from pathlib import Path

from terrella.algos.webrl_config import WebRlUpdateConfig
from terrella.data.replay import Replay
from terrella.pipelines.reproduce.pipeline import Reproduce
from terrella.pipelines.webrl.curriculum import Curriculum
from terrella.pipelines.webrl.pipeline import WebRl
from terrella.pipelines.webrl.proposers import Vary
from terrella.recipes import recipe
from terrella.worlds.miniwob import MiniWob
from terrella.worlds.sokoban import Sokoban
from terrella.worlds.textworld import TextWorld

PAPER = {
    "Llama-3.1-8B, WebArena-Lite": "SFT 20.6, filtered BC 23.0, AWR 28.5, DigiRL 30.3, "
    "WebRL 42.4 (%, one run)",
}
NO_REPLAY = Replay.Config(ratio=0.0)
SHOWN = (
    "click-button",
    "click-checkboxes",
    "click-link",
    "click-test-2",
    "enter-text",
    "focus-text",
    "login-user",
)
"""Families that the expert demonstrates; the next ones are only practised, the last evaluated."""
PRACTISED = (
    "choose-list",
    "click-collapsible",
    "click-scroll-list",
    "click-shape",
    "click-tab-2",
    "click-widget",
)
UNSEEN = (
    "click-button-sequence",
    "click-option",
    "enter-password",
    "focus-text-2",
    "login-user-popup",
)


@recipe(
    hardware="1 CPU core",
    time="minutes",
    expect="one arm of webrl_sokoban",
)
def webrl_sokoban_run() -> WebRl.Config:
    """One run on Sokoban 5x5, rooms of 1 to 7 steps, easy ones demonstrated. One core, minutes."""
    rooms = {
        f"steps_{n}": Sokoban.Config(size=5, longest=n, max_steps=7, view="coordinates")
        for n in range(1, 8)
    }
    return WebRl.Config(
        families=rooms,
        demonstrated=("steps_1", "steps_2"),
        demonstrations=60,
        imitation_updates=60,
        phases=5,
        phase_steps=1000,
        validation=16,
        test=80,
        learner=WebRlUpdateConfig(beta=0.2, epochs=4, critic_epochs=2),
    )


@recipe(
    hardware="1 CPU core",
    time="minutes a job",
    expect="WebRL 0.729, fixed tasks 0.757, SFT 0.594 (3 seeds): both claims undecided",
)
def webrl_sokoban() -> Reproduce.Config:
    """Sokoban, easy to hard rooms: WebRL and RL on fixed tasks at equal env steps.

    One core, minutes per arm.
    """
    webrl = webrl_sokoban_run()
    arms = _arms(webrl)
    claims = (("webrl_paper", "fixed", 1, False), ("webrl_paper", "sft", 1, False))
    return Reproduce.Config(
        arms=arms,
        first=("sft", "fixed", "webrl_paper"),
        seeds=3,
        claims=claims,
        paper=PAPER,
        out=Path("runs/webrl_sokoban"),
    )


@recipe(
    hardware="1 CPU core",
    time="minutes",
    expect="that it runs on text games",
)
def webrl_textworld_run() -> WebRl.Config:
    """One run on TextWorld, quests of 1 to 3 steps. One core, minutes after the games are made."""
    games = {
        f"quest_{n}": TextWorld.Config(quest=n, rooms=(1, 3), objects=(2, 4), max_steps=8)
        for n in (1, 2, 3)
    }
    return WebRl.Config(
        families=games,
        read_instruction=True,
        demonstrated=("quest_1",),
        demonstrations=20,
        imitation_updates=40,
        phases=4,
        phase_steps=800,
        validation=8,
        test=16,
        learner=WebRlUpdateConfig(beta=0.2, epochs=4, critic_epochs=2),
    )


@recipe(
    hardware="1 CPU core, Chromium",
    time="6 min",
    expect="one arm of webrl_miniwob",
)
def webrl_miniwob_run() -> WebRl.Config:
    """One run on MiniWoB++ in Chromium, 13 families. One core, minutes."""
    pages = {
        name: MiniWob.Config(families=(name,), max_steps=6)
        for name in (*SHOWN, *PRACTISED, *UNSEEN)
    }
    return WebRl.Config(
        families={name: pages[name] for name in (*SHOWN, *PRACTISED)},
        unseen={name: pages[name] for name in UNSEEN},
        slots=1,
        demonstrated=SHOWN,
        demonstrations=4,
        imitation_updates=40,
        phases=4,
        phase_steps=400,
        validation=3,
        test=10,
        practice=Curriculum.Config(proposer=Vary.Config(beside=0), quota=0.2, tries=2),
        learner=WebRlUpdateConfig(beta=0.2, epochs=6, critic_epochs=4),
    )


@recipe(
    hardware="1 CPU core, Chromium",
    time="6 min a job",
    expect="WebRL (paper) 0.833, SFT 0.618 (3 seeds): all claims undecided; awr, digirl not run",
)
def webrl_miniwob() -> Reproduce.Config:
    """MiniWoB++: both losses of WebRL compared with SFT, filtered BC and GRPO.

    One core, about six minutes per arm and seed.
    """
    webrl = webrl_miniwob_run()
    arms = _arms(webrl)
    beside = ("sft", "filtered_bc", "grpo", "webrl_released", "fixed", "no_replay", "no_kl")
    claims = tuple(("webrl_paper", other, 1, False) for other in (*beside, "awr", "digirl"))
    return Reproduce.Config(
        arms=arms,
        first=("sft", "webrl_paper"),
        seeds=5,
        looks=2,  # with three seeds and with five
        claims=claims,
        paper=PAPER,
        out=Path("runs/webrl_miniwob"),
    )


@recipe(
    hardware="1 CPU core, Chromium",
    time="6 min a job",
    expect="not measured",
)
def webrl_miniwob_unseen() -> Reproduce.Config:
    """MiniWoB++: what practice costs on families that it never saw, and two remedies.

    `rehearse` draws from all successes, demonstrations included, and not only from those that the
    actor is unsure of. `near_imitation` stays near the first policy, and not that of the last
    phase. One core, about six minutes per arm and seed.
    """
    webrl = webrl_miniwob_run()
    arms = {
        "sft": webrl.replace(phases=0),
        "webrl_paper": webrl,
        "rehearse": webrl.replace(replay=Replay.Config(least_chance=0.0, most_chance=1.0)),
        "near_imitation": webrl.replace(reference="imitation"),
    }
    return Reproduce.Config(
        arms=arms,
        first=("sft", "webrl_paper", "rehearse", "near_imitation"),
        claims=tuple((remedy, "webrl_paper", 1, True) for remedy in ("rehearse", "near_imitation")),
        paper=PAPER,
        out=Path("runs/webrl_miniwob_unseen"),
    )


def _arms(webrl: WebRl.Config) -> dict[str, WebRl.Config]:
    """WebRL and what it is compared with; each arm changes or leaves out one part of it."""
    fixed = webrl.replace(curriculum="fixed")
    return {
        "sft": webrl.replace(phases=0),
        "fixed": fixed,
        "webrl_paper": webrl,
        "webrl_released": webrl.replace(loss="webrl_released"),
        "filtered_bc": fixed.replace(loss="filtered_bc"),
        "grpo": _grpo(fixed),
        "no_replay": webrl.replace(replay=NO_REPLAY),
        "no_kl": webrl.replace(loss="awr"),
        "awr": fixed.replace(loss="awr"),
        "digirl": fixed.replace(loss="digirl"),
        "judged": webrl.replace(outcome_judge="model"),
    }


def _grpo(fixed: WebRl.Config) -> WebRl.Config:
    """On-policy, so with smaller and more frequent phases; the same env steps in total."""
    return fixed.replace(
        loss="grpo",
        group_size=8,
        phases=fixed.phases * 4,
        phase_steps=fixed.phase_steps // 4,
        learner=fixed.learner.replace(epochs=1),
        replay=NO_REPLAY,
    )

"""WebRL's loop with a pointing policy of 0.3M parameters: `terrella reproduce webrl_sokoban`, `... webrl_miniwob`.

All arms of a seed begin with the same policy, which has imitated a few demonstrations and is far from sure of itself
(an over-trained start explores nothing), and have the same number of real steps of the world. What each reached
stands in results/webrl_*.json.
"""

from __future__ import annotations

from pathlib import Path

from terrella.data.replay import Replay
from terrella.engines.pointer.learn import Learner
from terrella.stages.curriculum import Curriculum, Vary
from terrella.stages.reproduce import Reproduce
from terrella.stages.self_evolving import SelfEvolving
from terrella.worlds.miniwob import MiniWob
from terrella.worlds.sokoban import Sokoban
from terrella.worlds.textworld import TextWorld

PAPER = {"Llama-3.1-8B, WebArena-Lite": "SFT 20.6, filtered BC 23.0, AWR 28.5, DigiRL 30.3, WebRL 42.4 (%, one run)"}
NO_REPLAY = Replay.Config(ratio=0.0)
SHOWN = ("click-button", "click-checkboxes", "click-link", "click-test-2", "enter-text", "focus-text", "login-user")
"""Kinds of web tasks that the teacher shows; the next ones are only practised, the last ones only evaluated."""
PRACTISED = ("choose-list", "click-collapsible", "click-scroll-list", "click-shape", "click-tab-2", "click-widget")
UNSEEN = ("click-button-sequence", "click-option", "enter-password", "focus-text-2", "login-user-popup")


def webrl_sokoban_run() -> SelfEvolving.Config:
    """One run on Sokoban 5x5, rooms made in 1 to 7 steps, easy ones shown; one core, minutes. For `terrella rlvr`."""
    rooms = {f"steps_{n}": Sokoban.Config(size=5, longest=n, max_steps=7, view="coordinates") for n in range(1, 8)}
    return SelfEvolving.Config(
        families=rooms, demonstrated=("steps_1", "steps_2"), demonstrations=60, imitation_updates=60,
        phases=5, phase_steps=1000, glance=16, evaluate=80, learner=Learner.Config(beta=0.2, epochs=4, critic_epochs=2),
    )  # fmt: skip


def webrl_sokoban() -> Reproduce.Config:
    """Sokoban from easy to hard rooms: WebRL beside RL on fixed tasks, equal real steps; one core, minutes an arm."""
    webrl = webrl_sokoban_run()
    arms = _arms(webrl)
    claims = (("webrl_paper", "fixed", 1, False), ("webrl_paper", "sft", 1, False))
    return Reproduce.Config(
        arms=arms, first=("sft", "fixed", "webrl_paper"), seeds=3, claims=claims, paper=PAPER,
        out=Path("runs/webrl_sokoban"),
    )  # fmt: skip


def webrl_textworld_run() -> SelfEvolving.Config:
    """One run on TextWorld, quests of 1 to 3 steps; one core, minutes after the games are made. For `terrella rlvr`."""
    games = {f"quest_{n}": TextWorld.Config(quest=n, rooms=(1, 3), objects=(2, 4), max_steps=8) for n in (1, 2, 3)}
    return SelfEvolving.Config(
        families=games, read_instruction=True, demonstrated=("quest_1",), demonstrations=20, imitation_updates=40,
        phases=4, phase_steps=800, glance=8, evaluate=16, learner=Learner.Config(beta=0.2, epochs=4, critic_epochs=2),
    )  # fmt: skip


def webrl_miniwob_run() -> SelfEvolving.Config:
    """One run on MiniWoB++ in Chromium, 13 families; one core, minutes. For `terrella rlvr`."""
    pages = {name: MiniWob.Config(families=(name,), max_steps=6) for name in (*SHOWN, *PRACTISED, *UNSEEN)}
    return SelfEvolving.Config(
        families={name: pages[name] for name in (*SHOWN, *PRACTISED)}, unseen={name: pages[name] for name in UNSEEN},
        slots=1, demonstrated=SHOWN, demonstrations=4, imitation_updates=40, phases=4, phase_steps=400, glance=3,
        evaluate=10, practice=Curriculum.Config(proposer=Vary.Config(beside=0), quota=0.2, tries=2),
        learner=Learner.Config(beta=0.2, epochs=6, critic_epochs=4),
    )  # fmt: skip


def webrl_miniwob() -> Reproduce.Config:
    """MiniWoB++: both losses of WebRL beside SFT, filtered BC and GRPO; one core, about six minutes an arm and seed."""
    webrl = webrl_miniwob_run()
    arms = _arms(webrl)
    beside = ("sft", "filtered_bc", "grpo", "webrl_released", "fixed", "no_replay", "no_kl")
    claims = tuple(("webrl_paper", other, 1, False) for other in beside)
    return Reproduce.Config(
        arms=arms, first=("sft", "webrl_paper"), seeds=3, claims=claims, paper=PAPER, out=Path("runs/webrl_miniwob"),
    )  # fmt: skip


def _arms(webrl: SelfEvolving.Config) -> dict[str, SelfEvolving.Config]:
    """WebRL and what is held beside it; each arm is WebRL with something changed or left out."""
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
        "judged": webrl.replace(judge="model"),
    }


def _grpo(fixed: SelfEvolving.Config) -> SelfEvolving.Config:
    """On policy, so with smaller and more frequent phases; the same steps in all."""
    return fixed.replace(
        loss="grpo", group_size=8, phases=fixed.phases * 4, phase_steps=fixed.phase_steps // 4,
        learner=fixed.learner.replace(epochs=1), replay=NO_REPLAY,
    )  # fmt: skip

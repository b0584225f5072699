"""`terrella play WORLD`: a person plays in the terminal.

The person is the policy of one episode.
    play_by_hand(config, seed=0, console=Console())
"""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console

from terrella.core.episode import EpisodeRun
from terrella.core.types import show_text
from terrella.core.world import World
from terrella.policies.human import Human, PlayerLeftError


def play_by_hand(
    config: World.Config, *, seed: int, console: Console, ask: Callable[[str], str] = input
) -> None:
    """Play one episode with the person as the policy; leaving early is not an error."""
    world: World = config.build()
    human = Human(Human.Config(), ask, console)
    run = EpisodeRun(world, seed=seed, policy=human.name)
    console.rule(f"{world.name}  instance {world.instance}  ({world.split})")
    console.print(run.instruction, markup=False, highlight=False)
    while not run.over:
        try:
            step = run.advance(human.act(run.moment))
        except (PlayerLeftError, EOFError, KeyboardInterrupt):
            console.print("\nleft")
            return
        effect = "" if step.info["effective"] else "  (nothing changed)"
        console.print(f"{step.action}: reward {step.reward:g}{effect}", markup=False)
    console.print(show_text(run.observation), markup=False, highlight=False)
    episode = run.episode
    result = "success" if episode.success else "no success"
    console.print(
        f"{result} after {len(episode.transitions)} steps, "
        f"return {episode.total_reward:g}, {episode.stop}"
    )

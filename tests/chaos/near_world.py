"""A counter one press from its goal: a model that only knows the format sometimes succeeds."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from terrella.worlds.counter import Count, Counter


class Near(Counter):
    """Press up or down, once."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Counter.Config):
        max_steps: int = 2
        trap: str = ""
        """A folder. A file `kill` or `hang` in it makes one step of training die or hang."""

    def draw(self, rng):
        goal = int(rng.integers(100))
        return Count(goal + int(rng.choice((-1, 1))), goal)

    def step(self, action):
        if self.config.trap and (Path(self.config.trap).parent / "run/before.json").exists():
            self._step_into(Path(self.config.trap))
        return super().step(action)

    def _step_into(self, trap):
        for kind in ("kill", "hang"):
            if kind == "hang" and not self._long_since(trap / "killed"):
                continue  # not in the process that the other trap is ending
            try:
                (trap / kind).unlink()
            except FileNotFoundError:
                continue
            (trap / f"{kind}ed").write_text(str(self.seed))
            if kind == "kill":
                os._exit(9)
            time.sleep(3600)

    @staticmethod
    def _long_since(mark):
        return mark.exists() and time.time() - mark.stat().st_mtime > 1

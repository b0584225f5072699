"""Counters that misbehave on purpose; in a module, so that worker processes can import them."""

import os
import time
from dataclasses import dataclass

from terrella.worlds.counter import Counter


class Hanging(Counter):
    """Never answers in every fourth instance."""

    def step(self, action):
        if self.seed % 4 == 3:
            time.sleep(3600)
        return super().step(action)


class Slow(Counter):
    """Answers after a tenth of a second."""

    def step(self, action):
        time.sleep(0.1)
        return super().step(action)


class Impatient(Counter):
    """Gives up on something of its own in every fourth instance."""

    def step(self, action):
        if self.seed % 4 == 3:
            raise TimeoutError("no answer from the page")
        return super().step(action)


class Deadly(Counter):
    """Takes its whole process along in every fourth instance: once, or whenever it is played."""

    @dataclass(frozen=True, kw_only=True)
    class Config(Counter.Config):
        once: str = ""
        """A file that remembers that it has happened."""

    def step(self, action):
        if self.seed % 4 == 3 and self.steps == 1:
            try:
                os.close(os.open(self.config.once or "/nowhere/at/all", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return super().step(action)  # it has happened
            except FileNotFoundError:
                pass  # no memory: every time
            os._exit(9)
        return super().step(action)


class Rude(Counter):
    """Raises in every fourth instance."""

    def step(self, action):
        if self.seed % 4 == 3:
            raise RuntimeError("the wheel came off")
        return super().step(action)

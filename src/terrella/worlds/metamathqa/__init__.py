"""MetaMathQA: word problems from a local file, or from a small built-in sample.

See README.md in this folder.
"""

from terrella.worlds.metamathqa.env import MetaMathQA

__all__ = ["MetaMathQA"]

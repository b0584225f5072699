"""MetaMathQA: word problems from a file of yours, or from a small made sample: see README.md in this folder."""

from terrella.worlds.metamathqa.env import MetaMathQA

__all__ = ["MetaMathQA"]

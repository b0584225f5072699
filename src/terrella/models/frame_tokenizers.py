"""Frame tokenizers by kind: made from a config, loaded from a folder.

A folder is one that terrella wrote; published tokenizers are converted to such a folder once
(`published_tokenizers.py`).
    tokenizer = load_frame_tokenizer(Path("runs/films/tokenizer"))
"""

from __future__ import annotations

from pathlib import Path

from terrella.core.config import load
from terrella.core.integrity import LISTING, check_folder
from terrella.core.run_folder import check_result
from terrella.core.untrusted import read_json
from terrella.models.configs import FrameTokenizerConfig
from terrella.models.device import default_device
from terrella.models.frame_tokenizer import FrameTokenizer, Reconstruction
from terrella.models.per_frame_tokenizer import PerFrameTokenizer
from terrella.models.published_tokenizers import PublishedTokenizer
from terrella.models.tokenizer_base import CONFIG, WEIGHTS, BaseTokenizer

AnyTokenizer = FrameTokenizer | PerFrameTokenizer

__all__ = ["AnyTokenizer", "Reconstruction", "load_frame_tokenizer", "make_frame_tokenizer"]


def make_frame_tokenizer(config: FrameTokenizerConfig) -> AnyTokenizer:
    """An untrained tokenizer of the kind that the config names."""
    if config.kind == "per_frame":
        return PerFrameTokenizer(config)
    return FrameTokenizer(config)


def load_frame_tokenizer(folder: Path) -> BaseTokenizer:
    """Load what `save` wrote, to this process's device; a damaged folder is refused by name."""
    check_result(folder / LISTING)
    check_folder(folder)
    about = read_json(folder / CONFIG)
    if "published" in about:
        tokenizer: BaseTokenizer = PublishedTokenizer(
            about["published"], about["rows"], about["columns"]
        )
    else:
        tokenizer = make_frame_tokenizer(load(about))
    tokenizer.load_weights(folder / WEIGHTS)
    return tokenizer.to(default_device()).eval()

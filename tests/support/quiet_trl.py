"""Imports TRL without vLLM, which takes half a minute and emits warnings. Import this first.

Our samplers do not use TRL's vLLM client.
"""

import os
import warnings

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import trl.import_utils as installed

    installed.is_vllm_available = lambda *_, **__: False
    from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

__all__ = ["GRPOConfig", "GRPOTrainer", "SFTConfig", "SFTTrainer"]

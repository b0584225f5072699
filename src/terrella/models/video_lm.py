"""A Llama over frame and action ids, initialised from scratch; saves as a Hugging Face folder.

model, tokenizer = make_video_lm(
    2034, width=144, layers=4, heads=4, positions=1024, seed=0
)
"""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, START = "<pad>", "<start>"


def make_video_lm(  # noqa: PLR0913  the sizes of a model
    vocabulary: int,
    *,
    width: int,
    layers: int,
    heads: int,
    positions: int,
    seed: int,
    inner: int = 0,
    tied: bool = True,
    pad: int = 0,
    start: int = 1,
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Make a model with weights from the seed, and a tokenizer with one token per id.

    `inner` is the width of the feed-forward layers, 8/3 of the model's unless given; `tied` uses
    the input embeddings for the output.
    """
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner or width * 8 // 3 // 16 * 16,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=positions,
        tie_word_embeddings=tied,
        pad_token_id=pad,
        bos_token_id=start,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(pad_token_id=pad, bos_token_id=start)
    return model, id_tokenizer(vocabulary, pad=pad, start=start)


def id_tokenizer(vocabulary: int, *, pad: int, start: int) -> PreTrainedTokenizerFast:
    """One token per id. Trainers require a tokenizer; no text is ever encoded with it."""
    tokens = [f"<{number}>" for number in range(vocabulary)]
    tokens[pad], tokens[start] = PAD, START
    token_ids = {token: index for index, token in enumerate(tokens)}
    inner = Tokenizer(WordLevel(token_ids, unk_token=PAD))
    inner.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=PAD, bos_token=START, eos_token=PAD, unk_token=PAD
    )

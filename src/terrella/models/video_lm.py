"""A Llama over frame and action ids, initialised from scratch; saves as a Hugging Face folder.

model, tokenizer = make_video_lm(
    2034, width=144, layers=4, heads=4, positions=1024, seed=0
)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, START = "<pad>", "<start>"


def make_video_lm(
    vocabulary: int, *, width: int, layers: int, heads: int, positions: int, seed: int
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Make a model with weights from the seed, and a tokenizer with one token per id.

    The tokenizer exists because trainers require one; no text is ever encoded with it.
    """
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=width * 8 // 3 // 16 * 16,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(pad_token_id=0, bos_token_id=1)
    return model, _tokenizer([PAD, START, *(f"<{number}>" for number in range(2, vocabulary))])


def _tokenizer(tokens: Sequence[str]) -> PreTrainedTokenizerFast:
    token_ids = {token: index for index, token in enumerate(tokens)}
    inner = Tokenizer(WordLevel(token_ids, unk_token=PAD))
    inner.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=PAD, bos_token=START, eos_token=PAD, unk_token=PAD
    )

"""A character tokenizer for symbolic worlds, with the tags of the interleaved format.

It is an ordinary Hugging Face fast tokenizer, so that a model trained with it can be saved as an
ordinary Hugging Face folder.
    tokenizer = character_tokenizer(vocabulary=("Up", "Down"))
    len(tokenizer.encode("Up_P")) == 3
"""

from __future__ import annotations

import string
from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

PAD, END, OBSERVATION, ACTION, UNKNOWN = "<pad>", "<end>", "<obs>", "<act>", "<unk>"
SPECIAL_TOKENS = (PAD, END, OBSERVATION, ACTION, UNKNOWN)
CHARACTERS = "\n" + "".join(c for c in string.printable if c.isprintable()) + "√"


def character_tokenizer(vocabulary: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """One token per printable ASCII character, newline and tick.

    The strings in `vocabulary` (action names, for example) also become single tokens.
    """
    token_ids = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *CHARACTERS))}
    inner = Tokenizer(WordLevel(token_ids, unk_token=UNKNOWN))
    inner.pre_tokenizer = Split("", behavior="isolated")
    inner.decoder = Fuse()
    inner.add_tokens([AddedToken(word, normalized=False) for word in vocabulary if len(word) > 1])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        additional_special_tokens=[OBSERVATION, ACTION],
        clean_up_tokenization_spaces=False,
    )

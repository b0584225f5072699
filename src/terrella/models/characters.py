"""A character tokenizer for symbolic worlds: one id per character, one per word of the interleaved format.

It is an ordinary Hugging Face fast tokenizer, so that a model trained with it is an ordinary Hugging Face folder.
    tokenizer = character_tokenizer(words=("Up", "Down")); tokenizer.encode("Up_P") -> 3 ids
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
MARKS = (PAD, END, OBSERVATION, ACTION, UNKNOWN)
CHARACTERS = "\n" + "".join(c for c in string.printable if c.isprintable()) + "√"


def character_tokenizer(words: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Every printable ASCII character, newline and the tick; `words` (action names, say) become single tokens."""
    vocabulary = {token: index for index, token in enumerate((*MARKS, *CHARACTERS))}
    inner = Tokenizer(WordLevel(vocabulary, unk_token=UNKNOWN))
    inner.pre_tokenizer = Split("", behavior="isolated")
    inner.decoder = Fuse()
    inner.add_tokens([AddedToken(word, normalized=False) for word in words if len(word) > 1])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=PAD, eos_token=END, unk_token=UNKNOWN,
        additional_special_tokens=[OBSERVATION, ACTION], clean_up_tokenization_spaces=False,
    )  # fmt: skip

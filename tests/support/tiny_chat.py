"""Small chat models: a BPE tokenizer with a chosen template, and an untrained Llama in a folder."""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = """{% for m in messages %}\
{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
MISTRAL = """{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}\
{{ '[INST] ' + m['content'] + ' [/INST]' }}{% elif m['role'] == 'assistant' %}\
{{ ' ' + m['content'] + eos_token }}\
{% else %}{{ raise_exception('no such role') }}{% endif %}{% endfor %}"""
R1 = """{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}\
{{ '<|user|>' + m['content'] }}{% elif m['role'] == 'assistant' %}\
{{ '<|assistant|>' + m['content'].split('</think>')[-1] + eos_token }}\
{% else %}{{ m['content'] }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|><think>\n' }}{% endif %}"""
"""As DeepSeek-R1-Distill: the prompt opens a thought, and past thoughts are dropped."""
R1_EARLY = R1.replace("<|assistant|><think>\n", "<|assistant|>")
"""As R1 was at first: the model opens its thought itself."""
QWEN3 = """{% set last = namespace(user=0) %}{% for m in messages %}\
{% if m['role'] == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}\
{% for m in messages %}{% if m['role'] == 'assistant' %}\
{% set parts = m['content'].split('</think>') %}\
{% set thought = parts[0].split('<think>')[-1].strip('\n') if parts | length > 1 else '' %}\
{{ '<|im_start|>assistant\n' }}{% if loop.index0 > last.user %}\
{{ '<think>\n' + thought + '\n</think>\n\n' }}{% endif %}\
{{ parts[-1].lstrip('\n') + '<|im_end|>\n' }}\
{% else %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endif %}\
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
"""As Qwen3: only replies after the last question keep their thoughts."""
TEMPLATES = {
    "chatml": CHATML,
    "mistral": MISTRAL,
    "r1": R1,
    "r1_early": R1_EARLY,
    "qwen3": QWEN3,
}
SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>"]


def chat_tokenizer(name: str = "chatml") -> PreTrainedTokenizerFast:
    """A tokenizer with the template of this name; an empty name gives one without a template."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    corpus = ["State: You have 5 actions left. <answer> Up </answer> system user assistant"] * 8
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=380, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(corpus, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<s>",
        eos_token="<|im_end|>" if name in ("chatml", "qwen3") else "</s>",
        pad_token="<s>",
        additional_special_tokens=SPECIALS,
        clean_up_tokenization_spaces=False,
    )
    if name:
        made.chat_template = TEMPLATES[name]
    return made


def chat_model_folder(folder: Path, name: str = "chatml", *, positions: int = 1024) -> Path:
    """An untrained Llama of a few thousand parameters with such a tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer: Any = chat_tokenizer(name)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

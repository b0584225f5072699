"""Six chat templates as they are published (without tools), each over a small tokenizer.

chatml   SmolLM2: a default system message
llama3   trims contents
gemma    no system role, roles must alternate, the model's role is `model`
r1       DeepSeek-R1: opens a thought in the generation prompt, drops thoughts from the history
qwen3    a switch for thoughts; drops thoughts of all turns before the last question
glm4     nothing ends a turn but the mark of the next one (its structure, not its text)
"""

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = """{% for message in messages %}\
{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}\
{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

LLAMA3 = """{{- bos_token }}{%- for message in messages %}\
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' \
+ message['content'] | trim + '<|eot_id|>' }}{%- endfor %}\
{%- if add_generation_prompt %}\
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""

GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}\
{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}\
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}\
{% endif %}\
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}\
{% else %}{% set role = message['role'] %}{% endif %}\
{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}\
{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"""

R1 = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}\
{% endif %}{% set ns = namespace(system_prompt='') %}\
{%- for message in messages %}{%- if message['role'] == 'system' %}\
{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}\
{{bos_token}}{{ns.system_prompt}}\
{%- for message in messages %}\
{%- if message['role'] == 'user' %}{{'<\uff5cUser\uff5c>' + message['content']}}{%- endif %}\
{%- if message['role'] == 'assistant' and message['content'] is not none %}\
{% set content = message['content'] %}\
{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}\
{{'<\uff5cAssistant\uff5c>' + content + '<\uff5cend▁of▁sentence\uff5c>'}}{%- endif %}\
{%- endfor %}{% if add_generation_prompt %}{{'<\uff5cAssistant\uff5c><think>\n'}}{% endif %}"""

QWEN3 = """{%- if messages[0].role == 'system' %}\
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set thought = '' %}
        {%- if '</think>' in message.content %}
            {%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
            {%- set thought = message.content.split('</think>')[0].rstrip('\n')\
.split('<think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or thought) %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + thought.strip('\n') \
+ '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}"""

GLM4 = """[gMASK]<sop>{% for message in messages %}{% if message['content'] %}\
{{ '<|' + message['role'] + '|>' }}{{ message['metadata'] }}{{ '\n' + message['content'] }}\
{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""
"""A reply begins with the line end after `<|assistant|>`."""
GLM4_SPECIALS = ("[gMASK]", "<sop>", "<|system|>", "<|assistant|>", "<|observation|>", "<|user|>")

TEMPLATES = {
    "chatml": CHATML,
    "llama3": LLAMA3,
    "gemma": GEMMA,
    "r1": R1,
    "qwen3": QWEN3,
    "glm4": GLM4,
}
THINKERS = ("r1", "qwen3")
SPECIALS = {
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "llama3": ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "gemma": ("<start_of_turn>", "<end_of_turn>"),
    "r1": ("<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<\uff5cend▁of▁sentence\uff5c>"),
    "qwen3": ("<|im_start|>", "<|im_end|>"),
    "glm4": GLM4_SPECIALS,
}
ENDS = {name: specials[-1] for name, specials in SPECIALS.items()}
EOS = {**ENDS, "llama3": "<|end_of_text|>", "gemma": "<eos>", "glm4": "<|endoftext|>"}
CORPUS = ["State:\n##_P\nYou have 5 actions left. <answer> up || down </answer> user assistant"] * 8


def chat_tokenizer(name: str, *, special_thoughts: bool = False, corpus: Sequence[str] = ()) -> Any:
    """A tokenizer with this template; thinkers have their tags as tokens of their own.

    Texts like those of the `corpus` become few tokens.
    """
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        [*CORPUS, *corpus],
        trainers.BpeTrainer(
            vocab_size=800 if corpus else 400, initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token="<s>",
        eos_token=EOS[name],
        additional_special_tokens=list(SPECIALS[name]),
        chat_template=TEMPLATES[name],
        clean_up_tokenization_spaces=False,
    )
    if name in THINKERS:
        tags = [AddedToken(tag, special=special_thoughts) for tag in ("<think>", "</think>")]
        tokenizer.add_tokens(tags, special_tokens=special_thoughts)
    return tokenizer

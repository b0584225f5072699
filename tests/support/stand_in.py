"""A small stand-in of a public model: its architecture at small width, a template like its own.

It is fitted for a moment to replies in the right form. So its samples can be read; if it is shown
right and wrong replies, groups have spread and an optimiser step of RL has a gradient.
    make_stand_in("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", folder, pairs, seed=0)
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path
from typing import Any

import torch
from tests.support.chat_templates import chat_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from terrella.codecs.chat import prediction_messages
from terrella.codecs.chat_tokens import ChatCodec
from terrella.core.types import Situation, show_text
from terrella.models.export import export_model
from terrella.models.shapes import hub_shape
from terrella.pipelines.spa.pipeline import Spa

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16_384,
}
"""Heads of 32, the smallest that vLLM serves."""
WORDS = 1500
BEGIN, END, USER, ASSISTANT = (
    "<|begin_of_sentence|>",
    "<|end_of_sentence|>",
    "<|User|>",
    "<|Assistant|>",
)
OPEN, CLOSE = "\n\n<answer>\n", "\n</answer>"
R1_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}"
    "{% elif message['role'] == 'user' %}<|User|>{{ message['content'] }}"
    "{% else %}<|Assistant|>{{ message['content'].split('</think>')[-1] }}<|end_of_sentence|>"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)
"""As DeepSeek-R1's distilled models have it: thoughts are opened by the prompt, and past ones
dropped."""
Pair = tuple[Situation, str, str]
"""What a world model is asked (a situation and an action), and the text of a reply."""


def make_stand_in(name: str, folder: Path, pairs: list[Pair], *, seed: int = 0) -> None:
    """Write a world model and its tokenizer to a folder."""
    tokenizer = r1_tokenizer(pairs)
    model = small_model(name, tokenizer, seed=seed)
    codec = ChatCodec(tokenizer)
    asked = [
        (codec.ask_observation(situation, action), (*codec.write(reply), codec.stop_ids[0]))
        for situation, action, reply in pairs
    ]
    fit(model, asked)
    export_model(model, tokenizer, folder)


def make_spa_stand_in(config: Spa.Config, folder: Path) -> None:
    """Write an agent that replies in the form of its recipe, or breaks off: groups have spread."""
    template = "llama3" if "llama" in config.model.lower() else "chatml"
    world = config.world.build()
    situations = []
    for seed in range(4):
        observation, _ = world.reset(seed=seed)
        situations.append(
            Situation(
                instruction=world.instruction,
                observation=observation,
                actions=world.actions(),
                history=(),
                steps_left=config.max_turns,
            )
        )
    corpus = [show_text(each.observation) for each in situations]
    tokenizer = chat_tokenizer(template, corpus=[*corpus, world.instruction] * 4)
    tokenizer.pad_token = tokenizer.eos_token
    tags = ("observation", "prediction", "answer")
    marks = [f"<{slash}{tag}>" for tag in tags for slash in ("", "/")]
    tokenizer.add_tokens(["<think>\n", "\n</think>\n\n", *marks])
    codec = config.codec().make(tokenizer)
    asked = []
    for situation in situations:
        reply, _ = codec.answer([situation.actions[0]], ["s", "s"])
        for target in (reply, (*reply[:2], reply[-1])):
            asked.append((codec.ask_action(situation), target))
    model = small_model(config.model, tokenizer)
    fit(model, asked)
    export_model(model, tokenizer, folder)


def small_model(name: str, tokenizer: Any, *, seed: int = 0) -> Any:
    """An untrained model of this architecture at small width."""
    shape = hub_shape(name)
    assert shape is not None, name
    torch.set_num_threads(1)
    kind = shape.pop("model_type")
    settings = {**shape, **SMALL, "vocab_size": len(tokenizer), "head_dim": 32}
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **settings, **ids, pad_token_id=tokenizer.pad_token_id)
    return AutoModelForCausalLM.from_config(config)


def r1_tokenizer(pairs: list[Pair]) -> Any:
    """A byte-level BPE of the texts, with R1's special tokens; thoughts are ordinary tokens.

    Whole answers are tokens, and so are tags with their line ends. A model that hardly looks back
    can then write a reply.
    """
    texts = [reply for _, _, reply in pairs]
    for situation, action, _ in pairs:
        texts += [message["content"] for message in prediction_messages(situation, action)]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=WORDS, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token=BEGIN, eos_token=END, pad_token=END
    )
    tokenizer.add_special_tokens({"additional_special_tokens": [USER, ASSISTANT]})
    answers = {reply.partition(OPEN)[2].partition(CLOSE)[0] for _, _, reply in pairs}
    tokenizer.add_tokens(["<think>", "</think>", "\n</think>", OPEN, CLOSE, *sorted(answers)])
    tokenizer.chat_template = R1_TEMPLATE
    return tokenizer


def fit(model: Any, asked: list[tuple[Any, Any]], *, steps: int = 200) -> None:
    """Teach the form of replies: cross-entropy on them, one prompt and reply a step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        prompt, target = map(list, asked[step % len(asked)])
        ids = torch.tensor([[*prompt, *target]])
        labels = torch.tensor([[-100] * len(prompt) + target])
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

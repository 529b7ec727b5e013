"""The reasoner's own tokenizer: byte-level BPE in which every digit is a token, and its chat template.

Knows how text becomes ids and how messages become a prompt. Knows nothing of the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from desist.data.reasoner.handoff import PAD, SPECIAL_TOKENS, TURN_END

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

VOCABULARY = 1000

#: Digits alone, operators with the spaces around them, words with the space before, runs of space.
_PIECES = r" [-+*/=] |\d| ?[A-Za-z']+|[^\sA-Za-z\d]+|\n+|\s"

#: As Qwen3's: earlier thinking is dropped, and `enable_thinking=False` closes an empty thinking block.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- set content = message.content if message.content is string else '' -%}"
    "{%- if message.content is not string and message.content -%}"
    "{%- set parts = namespace(text='') -%}"
    "{%- for part in message.content -%}{%- if part.type == 'text' -%}"
    "{%- set parts.text = parts.text + part.text -%}{%- endif -%}{%- endfor -%}"
    "{%- set content = parts.text -%}"
    "{%- endif -%}"
    "{%- if message.role == 'assistant' and '</think>' in content -%}"
    "{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}"
    "{%- endif -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{- '<|im_start|>assistant\\n' -}}"
    "{%- if enable_thinking is defined and enable_thinking is false -%}"
    "{{- '<think>\\n\\n</think>\\n\\n' -}}"
    "{%- else -%}"
    "{{- '<think>\\n' -}}"
    "{%- endif -%}"
    "{%- endif -%}"
)


def train_tokenizer(texts: Iterable[str], vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Learn the merges from texts (problems, traces, answers)."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=TURN_END,
        pad_token=PAD,
        additional_special_tokens=[token for token in SPECIAL_TOKENS if token not in (PAD, TURN_END)],
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer

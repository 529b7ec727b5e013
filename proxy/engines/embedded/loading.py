"""Loads a transformers model folder and says what it is: its ids, its sampler, its fingerprints.

Knows files, tokenizers and chat templates; nothing of batching or requests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from desist.controller import AnswerMode, ModelProfile, TokenizerVocabulary
from desist.data.errors import EngineError
from desist.data.fingerprint import fingerprint
from desist.data.schema import Message, Sampling
from desist.proxy.engines.embedded.refusal import RequestRefused

__all__ = ["LoadedModel", "default_sampling", "load_model"]


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run.

    `end_ids` end a turn; `hidden_ids` are special tokens that are never shown. `name` is what the model
    calls itself (the folder's name, or `name` in its `reasoner.json`).
    """

    name: str
    path: Path
    network: Any = field(repr=False)
    tokenizer: Any = field(repr=False)
    vocabulary: TokenizerVocabulary = field(repr=False)
    end_ids: frozenset[int]
    hidden_ids: frozenset[int] = field(repr=False)
    fingerprints: Mapping[str, str]

    @property
    def max_length(self) -> int | None:
        """Context of the model, in tokens."""
        return getattr(self.network.config, "max_position_embeddings", None)

    @property
    def hidden_size(self) -> int:
        """Width D of one tap."""
        return int(self.network.config.hidden_size)

    def require_tags(self, profile: ModelProfile) -> None:
        """Raise `EngineError` unless the profile's think tags are tokens of this model."""
        for tag in (profile.think_open, profile.think_close):
            if self.vocabulary.special_id(tag) is None:
                raise EngineError(
                    f"model '{self.name}' has no token for {tag!r}, which profile '{profile.name}' names. "
                    "Choose the profile of this model, or serve it with vLLM and use --upstream."
                )

    def chat_ids(
        self, messages: Sequence[Message], template: Mapping[str, Any] | None = None
    ) -> tuple[int, ...]:
        """Ids of a rendered conversation, the assistant's header included."""
        try:
            text = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=True,
                **dict(template or {}),
            )
        except Exception as error:
            raise RequestRefused(
                f"the chat template of '{self.name}' rejects these messages: {error}. "
                "Check roles and contents."
            ) from error
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def text_ids(self, text: str) -> tuple[int, ...]:
        """Ids of a raw prompt."""
        return tuple(self.tokenizer.encode(text))

    def fingerprints_with(
        self,
        profile: ModelProfile,
        *,
        sampling: Sampling | None = None,
        top_k: int | None = None,
        judge: str | None = None,
        answer: AnswerMode | None = None,
    ) -> dict[str, str]:
        """Fingerprints of this model run with a profile, and of the sampler, judge and mode where given."""
        found = {**self.fingerprints, "profile": fingerprint(profile)}
        if sampling is not None:
            found["sampler"] = fingerprint([sampling.temperature, sampling.top_p, top_k or 0])
        if judge is not None:
            found["judge"] = judge
        if answer is not None:
            found["answer_mode"] = answer
        return found


def load_model(
    path: str | Path, *, device: str = "auto", threads: int | None = None, dtype: torch.dtype | None = None
) -> LoadedModel:
    """Load a local model folder. `device` "auto": a GPU if there is one. `threads`: of torch, on the CPU.

    On the CPU the type is float32, on a GPU that of the weights, unless `dtype` is given. Raises
    `EngineError` for a folder that holds no causal language model.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise EngineError(f"{folder} holds no config.json. Give the folder of a transformers model.")
    if threads is not None:
        torch.set_num_threads(threads)
    chosen = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    kind: Any = dtype or ("auto" if chosen.startswith("cuda") else torch.float32)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        network = AutoModelForCausalLM.from_pretrained(
            folder, dtype=kind, local_files_only=True, attn_implementation="sdpa"
        )
        network = network.to(chosen).eval()
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise EngineError(f"{folder} cannot be loaded: {error}") from error
    name = str(_read(folder / "reasoner.json").get("name") or folder.name)
    return LoadedModel(
        name,
        folder,
        network,
        tokenizer,
        TokenizerVocabulary(tokenizer),
        _end_ids(network, tokenizer),
        frozenset(tokenizer.all_special_ids),
        _fingerprints(folder, tokenizer, network.dtype),
    )


def default_sampling(path: str | Path) -> Sampling:
    """The sampler a model asks for: its `generation_config.json`; temperature 1 and top_p 1 without it."""
    config = _read(Path(path) / "generation_config.json")
    if config.get("do_sample") is False:
        return Sampling(temperature=0.0, max_tokens=config.get("max_new_tokens"))
    return Sampling(
        temperature=float(config.get("temperature") or 1.0),
        top_p=float(config.get("top_p") or 1.0),
        max_tokens=config.get("max_new_tokens"),
    )


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EngineError(f"{path} is no JSON ({error}). Copy the model's folder again.") from error
    return found


def _end_ids(network: Any, tokenizer: Any) -> frozenset[int]:
    found: set[int] = set()
    for value in (network.generation_config.eos_token_id, tokenizer.eos_token_id):
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(found)


def _fingerprints(folder: Path, tokenizer: Any, dtype: torch.dtype) -> dict[str, str]:
    config = {key: value for key, value in _read(folder / "config.json").items() if key[:1] != "_"}
    config.pop("transformers_version", None)
    weights = {file.name: _file_hash(file) for file in sorted(folder.glob("*.safetensors"))}
    return {
        "model": fingerprint({"config": config, "weights": weights}),
        "tokenizer": fingerprint(sorted(tokenizer.get_vocab().items())),
        "template": fingerprint(tokenizer.chat_template or ""),
        "dtype": str(dtype).removeprefix("torch."),
    }


def _file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
    return digest.hexdigest()

"""What a transformers model folder says of itself: its ids, its sizes, its sampler, its fingerprints.

Knows files, tokenizers and chat templates; loads no weights and no torch, so that it serves an engine that
runs in this process and one that runs elsewhere alike.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from desist.controller import AnswerMode, ModelProfile, TokenizerVocabulary
from desist.controller.fingerprints import profile_fingerprints
from desist.data.errors import EngineError
from desist.data.fingerprint import fingerprint
from desist.data.schema import Message, Sampling
from desist.proxy.engines.refusal import RequestRefused

__all__ = ["ModelFacts", "count_layers", "default_sampling", "read_model", "tap_index"]


@dataclass(frozen=True)
class ModelFacts:
    """A model as its folder describes it.

    `end_ids` end a turn; `hidden_ids` are special tokens that are never shown. `name` is what the model
    calls itself (the folder's name, or `name` in its `reasoner.json`). `hidden_size` is the width D of one
    tap, `n_layers` the index of the last one; `max_length` the context in tokens, None where it is not
    told.
    """

    name: str
    path: Path
    tokenizer: Any = field(repr=False)
    vocabulary: TokenizerVocabulary = field(repr=False)
    end_ids: frozenset[int]
    hidden_ids: frozenset[int] = field(repr=False)
    fingerprints: Mapping[str, str]
    hidden_size: int
    n_layers: int
    max_length: int | None

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
        found = {**self.fingerprints, **profile_fingerprints(profile)}
        if sampling is not None:
            found["sampler"] = fingerprint([sampling.temperature, sampling.top_p, top_k or 0])
        if judge is not None:
            found["judge"] = judge
        if answer is not None:
            found["answer_mode"] = answer
        return found


def read_model(path: str | Path, *, dtype: str, weights: bool = True) -> ModelFacts:
    """Read a local model folder. `dtype`: how the weights run ("float32", "bfloat16+awq+kv:fp8", ...).

    The weight files are hashed in passing, never loaded; without `weights` they are left alone, and the
    fingerprint "model" is left out. Raises `EngineError` for a folder that holds no
    model or no fast tokenizer, or does not tell its sizes.
    """
    from transformers import AutoTokenizer

    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise EngineError(f"{folder} holds no config.json. Give the folder of a transformers model.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise EngineError(f"the tokenizer of {folder} cannot be loaded: {error}") from error
    config = _Config(folder)
    length = config.find("max_position_embeddings")
    return ModelFacts(
        str(_read(folder / "reasoner.json").get("name") or folder.name),
        folder,
        tokenizer,
        TokenizerVocabulary(tokenizer),
        _end_ids(config, tokenizer),
        frozenset(tokenizer.all_special_ids),
        _fingerprints(config, tokenizer, dtype, weights),
        config.size("hidden_size"),
        config.size("num_hidden_layers"),
        None if length is None else int(length),
    )


def count_layers(path: str | Path) -> int:
    """How many layers the model of a folder has: the index of its last tap. Raises `EngineError`."""
    return _Config(Path(path)).size("num_hidden_layers")


def tap_index(tap: int, n_layers: int) -> int:
    """A tap as an index from the front: 0 = embeddings, `n_layers` = -1 = the last, after the final norm.

    Raises `EngineError` where a model of `n_layers` layers has no such tap.
    """
    index = tap + n_layers + 1 if tap < 0 else tap
    if not 0 <= index <= n_layers:
        raise EngineError(
            f"tap {tap} does not exist: a model of {n_layers} layers has taps 0 to {n_layers} "
            "(0: embeddings; -1: the last, after the final norm)."
        )
    return index


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


class _Config:
    """A folder's `config.json`. What is not written there is the default of the model's kind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.plain = _read(folder / "config.json")

    def find(self, name: str) -> Any:
        """A value of the language model; one of many parts keeps it under `text_config`."""
        for place in (self.plain.get("text_config"), self.plain):
            if isinstance(place, dict) and place.get(name) is not None:
                return place[name]
        return self._default(name)

    def size(self, name: str) -> int:
        """A size that must be there. Raises `EngineError`."""
        value = self.find(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise EngineError(
                f"{self.folder / 'config.json'}: '{name}' is {value!r}; a causal language model has a whole "
                "number there. Give the folder of such a model."
            )
        return value

    def _default(self, name: str) -> Any:
        from transformers import AutoConfig

        try:
            whole = AutoConfig.from_pretrained(self.folder, local_files_only=True)
        except (OSError, ValueError, KeyError, RuntimeError):  # a kind that transformers does not know
            return None
        return getattr(whole.get_text_config(), name, None)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EngineError(f"{path} is no JSON ({error}). Copy the model's folder again.") from error
    return found


def _end_ids(config: _Config, tokenizer: Any) -> frozenset[int]:
    stated = _read(config.folder / "generation_config.json").get("eos_token_id")
    if stated is None:
        stated = config.find("eos_token_id")
    found: set[int] = set()
    for value in (stated, tokenizer.eos_token_id):
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(found)


def _fingerprints(config: _Config, tokenizer: Any, dtype: str, weights: bool) -> dict[str, str]:
    stated = {key: value for key, value in config.plain.items() if key[:1] != "_"}
    stated.pop("transformers_version", None)
    found = {
        "tokenizer": fingerprint(sorted(tokenizer.get_vocab().items())),
        "template": fingerprint(tokenizer.chat_template or ""),
        "dtype": dtype,
    }
    if weights:
        hashes = {file.name: _file_hash(file) for file in sorted(config.folder.glob("*.safetensors"))}
        found["model"] = fingerprint({"config": stated, "weights": hashes})
    return found


def _file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
    return digest.hexdigest()

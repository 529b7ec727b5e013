"""Writes the reasoner's folder so that transformers can load it, each file in one move.

Knows file names, the served sampler and the card. Knows nothing of training.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from transformers import GenerationConfig

from desist.data.reasoner.handoff import HANDOFF_EXTRACT, HANDOFF_WRITE
from desist.data.reasoner.recipe import DENSE, SERVED
from desist.data.reasoner.sampler import SERVED_SAMPLER

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

ABOUT = (
    "A test bed, not a product: a tiny language model trained from scratch by desist.data.reasoner.train "
    "on generated word problems over numbers from 0 to 99. It thinks, makes honest slips, re-checks and "
    "over-checks, so that early stopping can be tried without a GPU. It knows nothing else. Trained with the "
    "language-model loss only; the tokens right after a cue weigh four times as much, and spliced hand-offs "
    "are masked."
)


def export(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path, card: dict[str, object]
) -> None:
    """Save everything under a temporary folder, then move each file into `out`."""
    out.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".reasoner-", dir=out.parent))
    try:
        model.generation_config = GenerationConfig(
            do_sample=True,
            temperature=SERVED_SAMPLER.temperature,
            top_p=SERVED_SAMPLER.top_p,
            top_k=0,
            max_new_tokens=SERVED_SAMPLER.max_new_tokens,
            eos_token_id=model.config.eos_token_id,
            pad_token_id=model.config.pad_token_id,
        )
        model.save_pretrained(str(temporary))
        tokenizer.save_pretrained(str(temporary), save_jinja_files=False)
        size = (temporary / "model.safetensors").stat().st_size
        full = {
            "name": "desist-reasoner",
            "about": ABOUT,
            **card,
            "weights_bytes": size,
            "sampler": asdict(SERVED_SAMPLER),
            "handoff": {"write": HANDOFF_WRITE, "extract": HANDOFF_EXTRACT},
            "recipe": {"served": asdict(SERVED), "dense": asdict(DENSE)},
        }
        (temporary / "reasoner.json").write_text(json.dumps(full, indent=2) + "\n")
        for file in sorted(temporary.iterdir()):
            file.replace(out / file.name)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)

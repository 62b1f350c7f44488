"""Text from a trained run."""

from __future__ import annotations

from typing import Any

import torch

from hybridlab.data.tokenizers import end_token, load_tokenizer
from hybridlab.errors import UserError
from hybridlab.models.export import load_checkpoint
from hybridlab.training.folders import Runs
from hybridlab.training.machine import pick_device


def continue_text(reference: str, runs: Runs, text: str, max_new_tokens: int, **settings: Any) -> dict[str, Any]:
    """The text with its continuation, and the number of generated tokens.

    settings: further arguments of `Decoder.generate`.
    """
    folder = runs.finished(reference)
    tokenizer = load_tokenizer(folder.final / "tokenizer.json")
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    if not ids:
        raise UserError("generate: the text is empty; give at least one character to continue")
    model = load_checkpoint(folder.path).to(pick_device("auto"))
    prompt = torch.tensor([ids], device=next(model.parameters()).device)
    rows = model.generate(prompt, max_new_tokens, stop_token=end_token(tokenizer), **settings).rows()
    # Reserved ids above the tokenizer's own have no text.
    written = [token for token in rows[0][len(ids) :] if token < tokenizer.get_vocab_size()]
    return {"text": text + tokenizer.decode(written), "new_tokens": len(rows[0]) - len(ids)}

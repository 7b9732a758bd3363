"""Decode after a long prompt with any local decoder: python long_context.py MODEL_FOLDER TEXT_FILE."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from octavo_magicpig import LSHConfig, sparse
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(folder: str, text: str) -> None:
    """Summarise a text file."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    prompt = Path(text).read_text(encoding="utf-8") + "\n\nSummary:"
    inputs = tokenizer(prompt, return_tensors="pt")
    with torch.inference_mode(), sparse(model, LSHConfig()) as session:
        answer = model.generate(**inputs, max_new_tokens=200, do_sample=False)
    print(tokenizer.decode(answer[0, inputs.input_ids.shape[1] :], skip_special_tokens=True))
    if session.cache is not None:
        print("keys sampled, by layer:", session.cache.sampled_fraction())


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The same model through transformers: tokenizer, padded batch, ``generate``, save and load."""

from __future__ import annotations

import tempfile

from octavo_prompt_turing import library_program
from octavo_prompt_turing.huggingface import PromptTuringConfig, PromptTuringForCausalLM, PromptTuringTokenizer

tokenizer = PromptTuringTokenizer()
model = PromptTuringForCausalLM(PromptTuringConfig(engine="deficit64"))
prompts = ["".join(library_program(name).to_prompt(bits)) for name, bits in (("parity", "01"), ("not", "1"))]
batch = tokenizer(prompts, return_tensors="pt", padding=True)
output = model.generate(**batch, max_new_tokens=120)
for row in output:
    text = tokenizer.decode(row[batch["input_ids"].shape[1] :])
    print(text[: text.index("$") + 1])
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    assert PromptTuringForCausalLM.from_pretrained(folder).model.state_hash() == model.model.state_hash()

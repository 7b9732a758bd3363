"""Arguments of wrong types, in a process of its own: here the type checker of the tests would be faster."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CASES = {
    "Program.parse(None)": "text=None is a NoneType; give text",
    "Program.parse(b'A1 #')": "text=b'A1 #' is a bytes",
    "assemble(None)": "source=None is a NoneType; give text",
    "library_program(None)": "name=None is a NoneType; give text",
    "load_program(None)": "text=None is a NoneType; give text or a path",
    "load_program(b'parity')": "text=b'parity' is a bytes",
    "Machine('A1 #')": "program='A1 #' is a str; give a Program, such as Program.parse",
    "verify('A1 #', [])": "program='A1 #' is a str",
    "next(generate_examples(1, programs=['parity']))": "program='parity' is a str",
    "run_prompt(Program.parse('#'), max_new_tokens='5')": "max_new_tokens='5' is a str; give a whole number",
    "run_prompt(Program.parse('#'), max_new_tokens=None)": "max_new_tokens=None is a NoneType",
    "run_prompt(Program.parse('#'), max_new_tokens=2.5)": "max_new_tokens=2.5 is a float",
    "Machine(Program.parse('#')).run('', 2.5)": "max_steps=2.5 is a float",
    "EngineConfig('reference', bits='a')": "bits='a' is a str",
    "EngineConfig('reference', bits=40.5)": "bits=40.5 is a float",
    "EngineConfig('float64', tie_tolerance='x')": "tie_tolerance='x' is a str; give a number",
    "max_length('float64', tie_tolerance='x')": "tie_tolerance='x' is a str; give a number",
    "Instruction('A!', 1.5)": "offset=1.5 is a float",
    "precision_bound(2.5)": "length=2.5 is a float",
    "precision_bound(float('nan'))": "length=nan is a float",
    "PromptTuringModel(5)": "engine=5 is a int; give an EngineConfig, or a name such as 'exact'",
    "PromptTuringModel()([[0, 2, 1]])": "input_ids is a list; give a tensor of integers",
    "PromptTuringModel()(torch.tensor([[0.0]]))": "input_ids holds float32; give a tensor of integers",
    "PromptTuringModel()(torch.tensor([[0, 2, 1]]), logits_to_keep=None)": "logits_to_keep=None is a NoneType",
    "PromptTuringModel()(torch.tensor([0, 2, 1]))": "input_ids has shape (3,); give (batch, positions)",
}
NUMPY_BITS = "EngineConfig('reference', bits=np.int64(128)).max_length"


@pytest.fixture(scope="module")
def messages() -> dict[str, str]:
    code = (
        "import json, sys, torch\nimport numpy as np\nfrom octavo_core.errors import OctavoError\n"
        "from octavo_prompt_turing import *\nfound = {}\n"
        "for case in json.load(sys.stdin):\n"
        "    try:\n        found[case] = str(eval(case))\n"
        "    except OctavoError as error:\n        found[case] = str(error)\n"
        "    except Exception as error:\n        found[case] = 'raw: ' + repr(error)\n"
        "print(json.dumps(found))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps([*CASES, NUMPY_BITS]), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", list(CASES))
def test_a_wrong_type_is_told_with_the_name_of_the_argument(messages: dict[str, str], case: str) -> None:
    assert messages[case].startswith(CASES[case])


def test_bits_of_numpy_do_not_overflow(messages: dict[str, str]) -> None:
    assert messages[NUMPY_BITS] == "2353973"

"""What the equation checker may say: true and false only where the text leaves no other reading."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo_coherent_factuality.equations import check_equations
from octavo_coherent_factuality.statements import statements

TRUE = (
    "12 * 4 = 48 pencils",
    "So 48 - 9 = 39 pencils are left.",
    "Step 3: 2 + 2 = 4",
    "Total: 20 + 8 = 28",
    "Total cost: 20 + 8 = 28 dollars",
    "3 + 4 is 3 + 4 = 7",
    "We have 15 - 3 = 12 apples",
    "Thus, we get 12 / 4 = 3 apples for each friend.",
    "The cost is 3 * 8 = 24 dollars",
    "The sum of 3 and 4 is 3 + 4 = 7",
    "The average is: (4 + 6) / 2 = 5",
    "Third, 3 * 4 = 12",
    "60 * 3 = 180, so 180 + 40 = 220 km",
    "There are 12 * 4 = 48 pencils",
    "He pays 2 * 20 = 40 dollars and 40 + 24 = 64",
    "He buys a total of 12 * 4 = 48 pencils",
    "Tom buys 4 boxes of 12 pencils, so he has 4 * 12 = 48 pencils.",
    "2 * 20 = 40 dollars, 40 + 24 = 64",
    "2 + 3 = 5, 4 + 5 = 9",
    "6 * 2 = 12 km",
    "9 * 8 = 72\\text{ cm}",
    "$5 + $3 = $8",
    "First, 3 * 4 = 12. Next, 12 + 1 = 13.\nSo 13 - 3 = 10",
    "2 + 3 = 5\n5 * 4 = 20",
    "20% * 50 = 10",
    "1/3 = 33%",
    "17 mod 5 = 2",
    "$17 \\bmod 5 = 2$",
    "5 choose 2 = 10",
    "$\\binom{6}{2} = 15$",
    "$\\sqrt[3]{8} = 2$",
    "\\sqrt[3]{-8} = -2",
    "$\\log_{2}{8} = 3$",
    "\\log_2 8 = 3",
    "log(1) = 0",
    "\\ln(1) = 0",
    "log(6) = log(2) + log(3)",
    "\\sin(\\pi) = 0",
    "6 * 7 = \\boxed{42}",
    "3 + 4 = 7 => 7 * 2 = 14",
    "n(n+1) = n^2 + n",
)
FALSE = (
    "3 + 4 = 8",
    "So 48 - 9 = 38 pencils are left.",
    "Total: 2 + 2 = 5",
    "The cost is 3 * 8 = 25 dollars",
    "Tom has 4 * 12 = 46 pencils",
    "2 + 3 = 5 and 4 + 5 = 10",
    "2 + 3 = 5, 4 + 5 = 10",
    "\\binom{5}{2} = 5",
    "\\sqrt[3]{8} = 3",
    "\\log_{3}{8} = 3",
    "log(100) = 7",
    "17 mod 5 = 3",
    "1/3 = 34%",
    "48 = 46 and that is it",
    "100 * 3 = 301",
)
UNKNOWN = (
    "5 plus 3 = 8",
    "10 minus 3 = 7",
    "6 times 2 = 12",
    "6 divided by 2 = 3",
    "20% of 50 = 10",
    "20% of 50 = 50",
    "half of 10 = 5",
    "twice 4 = 8",
    "Double: 4 = 8",
    "We double this: 7 = 14",
    "We double that 7 = 14",
    "Half the pencils: 12 = 6",
    "The price doubled, 5 = 10",
    "10 less 3 = 7",
    "4 groups: 12 = 48",
    "17 = 2 (mod 5)",
    "1/2 of 10 = 10",
    "half of 3 + 5 = 4",
    "The square of 3 = 9",
    "The average of 4 and 6 = 5",
    "The sum of 1, 2, 3, 4 = 10",
    "The product of 6 and 7 = 42.",
    "The area of a square with side 4 = 16",
    "lcm of 4 and 6 = 12",
    "GCD of 12, 18 = 6",
    "Remainder when 17 is divided by 5 = 2",
    "2 : 4 = 0.5",
    "log 100 = 2",
    "ratio 3:4 = 0.75",
    "\\gcd 4 = 2",
    "10 = 5 times 2",
    "5 * 2 = 5 times 2",
    "1/20 = 5 percent",
    "36 = 3 dozen",
    "7 / 2 = 3 and a half",
    "7 / 2 = 3 and 1/2",
    "17 / 5 = 3 remainder 2",
    "17 / 5 = 3 with a remainder of 2",
    "10 / 3 = 3 (rounded down)",
    "1 + 2 + ... + 10 = 55",
    "1 + 2 + \\dots + 10 = 55",
    "3/2 = 1,5",
    "x = 1, 2",
    "x = 2 or x = 3",
    "In base 2, 1 + 1 = 10",
    "101_2 = 5",
    "Working modulo 7 we have 3 + 5 = 1",
    "1024 = 4 mod 5",
    "It is false that 3 + 4 = 8",
    "Suppose that 2 + 2 = 5",
    "If 2 + 2 = 5 then pigs fly",
    "Is 2 + 2 = 5?",
    "2\\frac{1}{2} = 2.5",
    "2 1/2 = 2.5",
    "6/2(1+2) = 9",
    "100 + 20% = 120",
    "- 5 + 3 = 8",
    "sin(30) = 0.5",
    "5! = 120",
    "120 = 5!",
    "9 = 3²",
    "5' = 60",
    "(-8)^(1/3) = -2",
    "0^0 = 0",
    "f(2) = 5",
    "the 5th = 3",
    "3 = 5th",
    "It is a lie that 2+2=4",
    "2 + 2 = 4 is nonsense",
    "I doubt that 2+2=4",
    "2 + 2 = 4 fails",
    "2 + 2 = 4 is impossible",
    "3 + 4 = 7 too few",
    "3 + 4 = 7 apples more than Tom",
    "24 = 1 day",
    "100 = 1 century",
    "0x10 = 16",
    "0b101 = 5",
    "5 = 0b101",
    "9 + 5 = 2 on a clock",
    "x/x = 1",
    "x^2/x = x",
)


@pytest.mark.parametrize(
    ("text", "verdict"),
    [(text, verdict) for verdict, texts in (("true", TRUE), ("false", FALSE), ("unknown", UNKNOWN)) for text in texts],
)
def test_claims(text: str, verdict: str) -> None:
    assert check_equations(text) == verdict


@pytest.mark.parametrize("operation", ["half of", "twice", "the square of", "5 plus", "the mean of 8 and", "\\foo"])
@given(left=st.integers(0, 99), right=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_no_operation_in_words_is_labelled(operation: str, left: int, right: int) -> None:
    assert check_equations(f"{operation} {left} = {right}") == "unknown"
    assert check_equations(f"So {operation} {left} + 1 = {right} apples") == "unknown"


def test_questions_may_suppose() -> None:
    assert check_equations("x = 2", ["If 2x + 3 = 7, what is x?"]) == "true"
    assert check_equations("y = 5", ["Suppose x = 2 and y = x + 3."]) == "true"
    assert check_equations("x = 2", ["Half of x = 2. What is x?"]) == "unknown"
    assert check_equations("f(4) = 7", ["f(x) = 2x + 1", "x = 3"]) == "unknown"


def test_cut_sides_are_told_from_whole_ones() -> None:
    (statement,) = statements("half of 10 = 5 apples")
    assert statement.sides[0][0] == ("cut", "?")
    assert statement.sides[1] == (("number", "5"),)


def test_the_worker_needs_neither_torch_nor_the_package() -> None:
    from octavo_coherent_factuality import equations

    program = f"{equations._WORKER}\nassert not {{'torch', 'sklearn', 'octavo_core'}} & set(sys.modules)"
    folder = equations.__file__.rpartition("/")[0]
    command = [sys.executable, "-P", "-c", program, folder]
    line = '["So 2 + 2 = 4", []]\n'
    done = subprocess.run(command, input=line, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["ready", "true"]

"""A collection of bad recipes: each is refused with exactly these problems, each naming its line and key."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.recipe.conftest import GOOD, Problems


class Nasty(NamedTuple):
    name: str
    text: str
    problems: tuple[str, ...]


def more(name: str, text: str, *problems: str) -> Nasty:
    """Keys appended to a good recipe: they begin in line 5."""
    return Nasty(name, GOOD + text, problems)


#: A line of a recipe (in the place of the good one with this key, else behind the good ones) and its problem.
LINES = """
target: .nan => target: .nan: a number in a recipe must be finite
seed: 9223372036854775808 => seed: a whole number of more than 64 bits
foo: 1 => foo: unknown key; known are after, args, atoms_per_gpu
devcies: cpu => devcies: unknown key; did you mean devices?
"": 1 => '': unknown key
eta: 3 => eta: is an option of the policy; write it as
lr: 0.1 => lr: is a hyperparameter; write it as space: {lr: ...}
width: {int: [8, 64]} => width: is a hyperparameter; write it as space: {width: ...}
seed: true => seed: should be a whole number, not true
seed: "1" => seed: should be a whole number, not '1' (in quotes?)
seed: => seed: no value; should be a whole number
name: ../../etc => name: '../../etc' is not a name
args: --fast => args: should be a list such as [a, b], not '--fast'
mode: maximum => mode: should be max or min, not 'maximum'; did you mean max?
hang_limit: soon => hang_limit: 'soon' is not a duration
sizes: [0, 1] => sizes[0]: must be at least 1, not 0
lr_scaling: [1] => lr_scaling: should be linear (1)
scaling: liner => scaling: should be auto, linear, sqrt, none or a table
env: {RANK: 0} => env: RANK is set by gpusched for each rank; leave it out
env: {CUDA_VISIBLE_DEVICES: 1} => env: CUDA_VISIBLE_DEVICES is set by gpusched for each rank; write devices: cuda
python: python3 => python: trials cannot be forked into another interpreter; add launch: cold
cwd: nowhere => cwd: '/
devices: gpu:0 => devices: 'gpu:0' is not auto, cpu
devices: [0, 1] => devices: 0 is not a GPU UUID
deadline: 0 => deadline: must be more than 0 seconds, not 0
metric: [a] => metric: should be text, not ['a']
script: trian.py => script: no such file: trian.py; did you mean train.py?
script: accelerate launch train.py => script: no such file: accelerate launch train.py; name the file alone
script: train.py --data x/y => script: no such file: train.py --data x/y; name the file alone, and its arguments
script: . => script:
policy: hyperschd => policy: unknown policy 'hyperschd'; did you mean hypersched?
policy: magic => policy: unknown policy 'magic'; there are fifo,
policy: {asha: {R: 9}} => policy.asha: write the options beside the name, as in {name: asha, ..}
policy: {name: fifo, eta: 4} => policy.eta: unknown option of fifo; known are R
policy: {coolown: 3} => policy.coolown: unknown option of hypersched; did you mean cooldown?
space:  => space: needs a map of at least one key
space: {bn: {choice: [no, 1]}} => space.bn.choice[0]: no is text; write true or false, or put it
space: {clip: {choice: [None, 1]}} => space.clip.choice[0]: None is text; write null, or put it in quotes
space: {a b: 1} => space.'a b': a key is made of
"""


def of_line(row: str) -> Nasty:
    text, _, problem = row.partition(" => ")
    lines = GOOD.splitlines()
    known = [line.partition(":")[0] for line in lines]
    key = text.partition(":")[0]
    place = known.index(key) if key in known else len(lines)
    lines[place : place + 1] = [text]
    return Nasty(row, "\n".join(lines) + "\n", (f"{place + 1}: {problem}",))


WHOLE = [
    Nasty("empty", "\n", ("1: is empty",)),
    Nasty("a word", "recipe\n", ("1: should be a map of keys, not 'recipe'",)),
    Nasty(
        "tab",
        "a:\n\tb: 1\n",
        ("2: not YAML: found character '\\t' that cannot start any token; indent with",),
    ),
    Nasty("open quote", "a: 'x\n", ("2: not YAML: found unexpected end",)),
    Nasty(
        "bad indent",
        "a: 1\n  b: 2\n",
        ("2: not YAML: mapping values are not allowed here (is this line",),
    ),
    Nasty("control character", "a: 1\nb: \x07\n", ("2: not YAML: unacceptable character",)),
    Nasty("two documents", "a: 1\n---\nb: 1\n", ("2: not YAML: but found another document",)),
    Nasty("own tag", GOOD + "seed: !x 1\n", ("5: seed: a tag (!x); leave it out",)),
    Nasty("alias to itself", "a: &a [*a]\n", ("1: not YAML: nested too deep",)),
    Nasty("list as key", "? [a]\n: 1\n", ("1: a list or map as a key",)),
    more("duplicate key", "seed: 1\nseed: 2\n", "6: seed: this key is in line 5 already"),
    Nasty(
        "nothing that is needed",
        "seed: 1\n",
        (
            "1: script: missing; every recipe needs it, as in script: train.py",
            "1: deadline: missing; every recipe needs it, as in deadline: 10m",
            "1: metric: missing",
            "1: space: missing",
        ),
    ),
    more("odd key", '"a\\nb\\u202e": 1\n', "5: 'a\\nb\\u202e': unknown key"),
    more("name newline", 'name: "a\\n"\n', "5: name: 'a\\n' is not a name"),
    more("python missing", "launch: cold\npython: ./no/python\n", "6: python: "),
    more(
        "python unknown",
        "launch: cold\npython: nopython9\n",
        "6: python: 'nopython9' cannot be run",
    ),
    more(
        "cpu of 2",
        "devices: cpu\natoms_per_gpu: 2\n",
        "6: atoms_per_gpu: an atom on the CPU is one slot",
    ),
    more(
        "share and size",
        "atoms_per_gpu: 2\nsizes: [1, 2]\n",
        "6: sizes: a trial on a share of a GPU has one atom; leave sizes out",
    ),
    more(
        "max below sizes",
        "sizes: [2, 4]\nmax_atoms: 1\n",
        "6: max_atoms: 1 is below the smallest of sizes, 2",
    ),
    Nasty("script nul", GOOD.replace("train.py", '"a\\0b"'), ("1: script: 'a\\x00b' has control",)),
    more(
        "option case",
        "policy:\n  name: asha\n  Eta: 3\n",
        "7: policy.Eta: unknown option of asha; did you mean eta?",
    ),
    more(
        "all of it at once",
        "policy:\n  r: 9\n  R: 3\n  eta: 0.5\n  quantum_s: 2\n",
        "6: policy.r: the first rung at 9 steps lies beyond R = 3",
        "8: policy.eta: must be more than 1",
        "9: policy.quantum_s: unknown option of hypersched",
    ),
]
NASTY = [*WHOLE, *map(of_line, LINES.strip().splitlines())]


@pytest.mark.parametrize("nasty", NASTY, ids=[nasty.name for nasty in NASTY])
def test_nasty(nasty: Nasty, problems: Problems) -> None:
    found = problems(whole=nasty.text)
    assert len(found) == len(nasty.problems), found
    for line, wanted in zip(found, nasty.problems, strict=True):
        assert line.startswith(f"digits.yaml:{wanted}")
        assert line.isprintable()
        assert len(line) < 600

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpusched.protocol import Report
from gpusched.runtime.orders import HARD_FACTOR, Tether
from gpusched.runtime.rank import run_file
from gpusched.worker.channel import Channel
from tests.worker.fakes import Ended, run_ranks


class Stage:
    """A folder of scripts, run as a rank would run them; what is left behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.error_file = folder / "error.json"

    def run(
        self,
        source: str | bytes | None,
        *arguments: str,
        name: str = "train.py",
        module: str = "",
    ) -> Ended:
        script = self.folder / "code" / name
        script.parent.mkdir(exist_ok=True)
        if source is not None:
            script.write_bytes(source if isinstance(source, bytes) else source.encode())

        def body() -> Any:
            os.environ["TORCHELASTIC_ERROR_FILE"] = str(self.error_file)
            run_file(str(script), arguments, str(self.folder), module)
            return getattr(sys.modules["__main__"], "result", None)

        (ended,) = run_ranks(body, 1)
        return ended

    def error(self) -> tuple[str, str]:
        """Message and traceback of torchrun's error file."""
        record = json.loads(self.error_file.read_text())["message"]
        assert record["extraInfo"]["timestamp"].isdigit()
        assert record["extraInfo"]["at_s"] >= int(record["extraInfo"]["timestamp"])
        return record["message"], record["extraInfo"]["py_callstack"]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_script_finds_what_python_would_give_it(stage: Stage) -> None:
    (stage.folder / "code").mkdir()
    (stage.folder / "code" / "beside.py").write_text("value = 42\n")
    source = """
import os, sys, pickle, __main__
import beside
class Thing: pass
if __name__ == "__main__":
    result = [
        sys.argv[1:], __file__, os.getcwd(), beside.value, sys.path[0],
        __main__.Thing is Thing, type(pickle.loads(pickle.dumps(Thing()))).__module__, __spec__,
    ]
"""
    script = str(stage.folder / "code" / "train.py")
    assert stage.run(source, "--lr", "0.1").value == [
        *(["--lr", "0.1"], script, str(stage.folder), 42, str(stage.folder / "code")),
        *(True, "__main__", None),
    ]
    assert not stage.error_file.exists()
    (stage.folder / "link.py").symlink_to(script)
    assert stage.run(None, name="../link.py").value[3:5] == [42, str(stage.folder / "code")]


RAISES = """\
import gpusched

def deep(value):
    raise ValueError(f"bad {value}")

def main():
    deep(3)

main()
"""


def test_an_exception_shows_the_scripts_frames_alone(stage: Stage) -> None:
    ended = stage.run(RAISES)
    assert ended.code == 1
    message, trace = stage.error()
    assert message == "ValueError: train.py:4: bad 3"
    assert trace.startswith("Traceback (most recent call last):\n")
    assert "line 9, in <module>\n    main()" in trace
    assert 'raise ValueError(f"bad {value}")' in trace
    assert "gpusched/worker" not in trace
    assert ended.stderr.strip() == trace.strip()


def test_where_a_call_of_ours_was_refused_the_call_is_the_last_frame(stage: Stage) -> None:
    ended = stage.run("import gpusched\ntrial = gpusched.init()\ntrial.report(loss='high')\n")
    message, trace = stage.error()
    assert ended.code == 1
    assert message.startswith("TypeError: train.py:3: metric 'loss' is str 'high', not a number")
    assert "gpusched/worker" not in trace
    assert "trial.report(loss='high')" in trace.splitlines()[2]


PACKAGED = """
import sys, warnings
warnings.simplefilter("ignore")
from .layers import width
import own
result = [width, __package__, __spec__.name, sys.path[0]]
"""


def test_a_module_of_a_package_runs_as_python_m_does(stage: Stage) -> None:
    (stage.folder / "code" / "pkg").mkdir(parents=True)
    (stage.folder / "code" / "pkg" / "layers.py").write_text("width = 7\n")
    (stage.folder / "own").mkdir()
    ended = stage.run(PACKAGED, name="pkg/train.py", module="pkg.train")
    assert ended.value == [7, "pkg", "pkg.train", str(stage.folder / "code")]
    ended = stage.run(PACKAGED, name="pkg/train.py")
    assert ended.code == 1
    assert "attempted relative import with no known parent package; a module" in stage.error()[0]
    assert "`module: package.train` in the recipe" in stage.error()[0]
    stage.run("import own.nets\n")
    assert stage.error()[0].endswith(
        f"{stage.folder} has it: add `env: {{PYTHONPATH: .}}` to the recipe"
    )


def test_a_chain_of_exceptions_is_kept(stage: Stage) -> None:
    stage.run("try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e\n")
    message, trace = stage.error()
    assert message == "KeyError: train.py:4: 'x'"
    assert "ZeroDivisionError" in trace


HIDES = (
    "import sys\ntry:\n  1 / 0\nexcept Exception as e:\n  print(e, file=sys.stderr)\n  sys.exit(1)"
)
"""As ``hydra.main`` does."""
HOOKS = """import sys, traceback
def hook(*error): print("seen", file=sys.stderr); traceback.print_exception(*error)
sys.excepthook = hook
1 / 0
"""
WORKER = """from torch.utils.data import DataLoader
class Data(list):
  def __getitem__(self, i): raise ValueError(f"bad image {i}")
for x in DataLoader(Data("ab"), num_workers=1): pass
"""


LOADER = """import atexit, sys
from torch.utils.data import DataLoader
loader = DataLoader(range(4), num_workers=2, persistent_workers=True)
for x in loader: pass
loader._iterator._pin_memory = True
for worker in loader._iterator._workers:
    atexit.register(lambda of=worker: print("there" if of.is_alive() else "ended", file=sys.stderr))
"""
"""Torch before 2.13 registers so a wait of 5 s for each worker; a loader pins memory only where there is a GPU."""


def test_persistent_workers_have_ended_before_torch_waits_for_them_at_exit(stage: Stage) -> None:
    assert stage.run(LOADER).stderr.split() == ["ended", "ended"]


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("def f(:\n    pass\n", ("SyntaxError: train.py:1: invalid syntax",)),
        ("eval('1 +')", ("SyntaxError: train.py:1: invalid syntax",)),
        (b"x = 1\0\n", ("null bytes",)),
        (None, ("FileNotFoundError: [Errno 2]", "train.py", "(`cwd` of the recipe) is /")),
        (
            "import beside_that_is_not_there\n",
            ("ModuleNotFoundError: train.py:1: No module named 'beside", f"' in {sys.executable}"),
        ),
        ("raise ValueError('1 error:\\n  lr')", ("ValueError: train.py:1: 1 error: lr",)),
        (HIDES, ("ZeroDivisionError: train.py:3: division by zero",)),
        (HOOKS, ("ZeroDivisionError: train.py:4: division",)),
        (HOOKS.replace("(*error)\ns", "(*error); sys.exit(1)\ns"), ("Error: train.py:4: div",)),
        (WORKER, ("ValueError: train.py:3: bad image 0",)),
        ("import gpusched\nraise SystemExit('no data')", ("SystemExit: no data",)),
        ("import sys; sys.exit(3)", ("SystemExit: the script ended with exit code 3",)),
        ("class E(Exception):\n  def __str__(self): 1/0\nraise E", ("E",)),
        ("raise Exception('x' * 100_000)", ("Exception: train.py:1: xxx",)),
        ("def f(): f()\nf()", ("RecursionError",)),
    ],
)
def test_bad_scripts_fail_with_a_message(
    stage: Stage, source: str | bytes | None, told: tuple[str, ...]
) -> None:
    ended = stage.run(source)
    assert ended.code == (3 if source == "import sys; sys.exit(3)" else 1)
    message, trace = stage.error()
    for part in told:
        assert part in message
    assert len(message) <= 4_000
    assert len(trace) <= 32_000
    assert "gpusched/worker" not in trace
    assert ended.stderr or "exit code" in message
    assert ("seen" in ended.stderr) == ("seen" in str(source)), "as wandb's, for one"
    assert "gpusched/runtime" not in ended.stderr


# ---------------------------------------------------------------- a trial without a daemon


def test_a_tether_runs_out_and_is_given_back(tmp_path: Path) -> None:
    leave = tmp_path / "leave"
    now_s = time.monotonic()
    tether = Tether(leave, 10.0)
    tether.heard(now_s)
    assert not tether.is_over(now_s + 9)
    assert not leave.exists()
    assert not tether.is_over(now_s + 11)
    assert leave.exists(), "it is asked"
    tether.heard(now_s + 12)
    assert not leave.exists(), "a daemon came back in time"
    assert not tether.is_over(now_s + 21)
    assert not tether.is_over(now_s + 23)
    assert leave.exists()
    assert tether.is_over(now_s + 13 + 10 * HARD_FACTOR), "it does not leave: it is ended"


@pytest.mark.parametrize("asked", [False, True, None])
def test_a_rank_without_a_daemon_looks_whether_it_is_to_leave(
    tmp_path: Path, asked: bool | None
) -> None:
    """``asked`` is None for a rank that runs alone: there is no file to look at."""
    leave = tmp_path / "leave" if asked is not None else None
    if leave is not None and asked:
        leave.touch()
    channel = Channel(tmp_path, 0, 1, leave)
    assert channel.report(Report(1, 1, 1)) == ("yield" if asked else "continue")

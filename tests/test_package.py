"""The package as a whole: names without torch, and nothing that unpickles."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

import gpusched
from gpusched.cli import main
from gpusched.errors import InputError
from tests.rig import run_python
from tests.test_layering import PACKAGE, imports_of, nodes_of

ANNOTATED = """
import sys
import gpusched
from gpusched import Trial

def train(trial: gpusched.Trial, again: Trial) -> None: ...

assert train.__annotations__["trial"] is Trial
assert Trial.__module__ == "gpusched.worker.trial"
print(sorted({"torch", "numpy", "yaml"} & set(sys.modules)))
"""

ON_A_MAC = """
import os, select, signal, time
del os.O_PATH, os.pipe2, select.epoll, signal.SIGRTMIN, time.CLOCK_BOOTTIME
import gpusched
trial = gpusched.init({"lr": 0.1})
for step in trial.steps(3):
    trial.report(score=trial.hparams.lr)
"""


def test_a_script_can_annotate_its_trial_without_torch() -> None:
    assert run_python("-c", ANNOTATED).stdout == "[]\n"


def test_no_other_name_appears() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'trail'"):
        gpusched.trail  # noqa: B018


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_told(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([option]) == 0
    assert capsys.readouterr().out == f"gpusched {gpusched.__version__}\n"


def test_another_system_is_told_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a Mac it said that it had a defect: the module time has no attribute CLOCK_BOOTTIME."""
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(InputError, match=r"needs Linux 5\.3 or newer; this system is darwin"):
        main(["run", "recipe.yaml", "--debug"])


def test_a_script_runs_alone_on_a_mac() -> None:
    """Its first line of gpusched's failed: the module signal has no attribute SIGRTMIN."""
    assert "score 0.1" in run_python("-c", ON_A_MAC).stdout


# ---------------------------------------------------------------- no pickle


SOURCES = sorted(PACKAGE.rglob("*.py"))
UNPICKLE = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
#: Simulations of several seeds or futures run in processes of our own, over pipes that nobody else can reach.
POOLS = {"gpusched/sim/study.py", "gpusched/sim/whatif.py", "gpusched/devices/helper.py"}

#: The line between the daemon and the nodes of a cluster: mutual TLS, on the interface that leads to them.
BEYOND_THIS_MACHINE = {"gpusched/executors/cluster/line.py"}

#: What a script asks to have pickled (``gpusched.pickled``): read from its own committed, hashed checkpoints alone.
ASKED_FOR = {"gpusched/worker/state.py"}


def _calls(file: Path) -> list[tuple[str, ast.Call]]:
    return [(ast.unparse(n.func), n) for n in nodes_of(file) if isinstance(n, ast.Call)]


def test_nothing_is_unpickled() -> None:
    for source in SOURCES:
        _check_pickle(source)


def _check_pickle(source: Path) -> None:
    name = str(source.relative_to(PACKAGE.parent))
    for found in imports_of(source):
        assert found.top not in UNPICKLE or name in ASKED_FOR, str(found)
        assert found.module.split(".")[0] != "multiprocessing" or name in POOLS, str(found)
    for called, node in _calls(source):
        if called == "torch.load":
            options = {word.arg: ast.unparse(word.value) for word in node.keywords}
            assert options.get("weights_only") == "True", f"{name}:{node.lineno}"
        if called in ("np.load", "numpy.load"):
            raise AssertionError(f"{name}:{node.lineno}: numpy files may hold pickles")


def test_sockets_are_local() -> None:
    """An internet socket is bound to the loopback in the function that makes it, but for a cluster's line."""
    for source in SOURCES:
        _check_sockets(source)


def _check_sockets(source: Path) -> None:
    text = source.read_text()
    name = str(source.relative_to(PACKAGE.parent))
    makes_sockets = re.search("AF_INET|create_server", text)
    for node in nodes_of(source) if makes_sockets else ():
        if not isinstance(node, ast.FunctionDef):
            continue
        body = ast.unparse(node)
        if ("AF_INET" in body or "create_server" in body) and name not in BEYOND_THIS_MACHINE:
            is_local = re.search(r"(bind|create_server)\(\((LOOPBACK|'127\.0\.0\.1'), ", body)
            assert is_local, f"{name}: {body}"
    assert '"0.0.0.0"' not in text, name


def test_no_shell() -> None:
    for source, (called, node) in ((s, c) for s in SOURCES for c in _calls(s)):
        where = f"{source}:{node.lineno}"
        assert called not in ("os.system", "os.popen", "eval", "subprocess.getoutput"), where
        assert not any(word.arg == "shell" for word in node.keywords), where

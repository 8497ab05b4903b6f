"""Runs the user's script as ``__main__``: what a rank does, forked or started by plain ``torchrun -m``.

The script finds what ``python script.py args`` would give it: ``sys.argv``, ``__file__``, its own folder first on the
path, its working directory. When it ends badly, the traceback that is printed and written to torchrun's error file
holds the script's frames alone.

    torchrun --nproc-per-node 2 -m gpusched.runtime.rank script.py --lr 0.1
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import linecache
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from gpusched.folder.files import write_unfailingly
from gpusched.processes import stacks
from gpusched.worker import endings
from gpusched.worker.endings import headline, own_frames, say, trace_of, write_error_file

_FAILED = 1


def run_file(
    script: str, arguments: Sequence[str], folder: str | None = None, module: str = ""
) -> None:
    """Run ``script`` (relative to ``folder``) in this process, as ``__main__`` in ``folder``; as ``python -m module``.

    Environment, streams, cores and threads are set before. Returns when the script ended well; threads, ``atexit`` and
    flushing are the caller's.

    Raises:
        SystemExit: The script ended badly, said on stderr and in the error file. The code is the one to exit with.
    """
    endings.mark(good=False)
    with suppress(Exception):  # streams without a descriptor
        faulthandler.enable(all_threads=True)
    with suppress(Exception):  # under plain torchrun nobody asks
        stacks.listen_as_rank()
    path = script
    try:
        if folder:
            os.chdir(folder)
        path = str(Path(script).absolute())
        sys.argv = [script, *map(str, arguments)]
        file = Path(path)
        if file.is_symlink() and not module:
            file = file.resolve()  # its neighbours are imported, as by Python
        home = str(file.parents[module.count(".")])
        sys.path[:0] = [home, str(Path.cwd())] if module else [home]
        _execute(path, module)
        endings.mark(good=True)
    except SystemExit as leaving:
        _leave(leaving, path)
    except BaseException as error:
        _fail(error, path)
    finally:
        if endings.has_failed():  # a thread, a process or a tool of the script's may wait for ever
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
            grace_s = float(os.environ.get("GPUSCHED_LEAVE_GRACE_S", 30.0))
            signal.setitimer(signal.ITIMER_REAL, grace_s or 1.0)
        _end_loaders()


def _end_loaders() -> None:
    """End the persistent workers of data loaders that pin memory, as torch 2.13 does.

    Before it torch waits 5 s at exit for each of them, and nobody has told them to end.
    """
    loaders = sys.modules.get("torch.utils.data.dataloader")
    if loaders is not None:
        kind = loaders._MultiProcessingDataLoaderIter
        for each in [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]:
            with suppress(Exception):
                if each._persistent_workers and each._pin_memory:
                    each._shutdown_workers()


def _execute(path: str, module: str) -> None:
    code = compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)
    main = ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None, __spec__=None)
    if module:
        # Imports the package, as ``python -m`` does.
        main.__spec__ = importlib.util.find_spec(module)
        main.__package__ = module.rpartition(".")[0]
    sys.modules["__main__"] = main
    linecache.checkcache(path)
    exec(code, main.__dict__)


def _leave(leaving: SystemExit, path: str) -> None:
    """``sys.exit``: well with 0 or nothing; else a failure, by the error that was handled there (as by Hydra)."""
    if leaving.code in (None, 0):
        endings.mark(good=True)
        return
    code, error = _FAILED, leaving.__cause__ or leaving.__context__
    if not isinstance(leaving.code, int):
        what = f"SystemExit: {leaving.code}"
        say(str(leaving.code), by="")
    else:
        code = leaving.code & 0xFF or _FAILED
        what = f"SystemExit: the script ended with exit code {leaving.code}"
        what = _told(error, path) if error is not None else what
    write_error_file(what, trace_of(error or leaving, path))
    raise SystemExit(code) from None


def _fail(error: BaseException, path: str) -> None:
    trace = trace_of(error, path)
    write_error_file(_told(error, path), trace)  # a hook of the script's may end the process
    if sys.excepthook is sys.__excepthook__:
        say(trace.rstrip(), by="")
    else:  # the script's own, such as that of wandb, whose run has crashed
        with suppress(Exception):
            own = error.with_traceback(own_frames(error))
            sys.excepthook(type(error), own, own.__traceback__)
    raise SystemExit(_FAILED) from None


def _told(error: BaseException, path: str) -> str:
    """Return the error in a line, and which key of the recipe has to do with it."""
    what = headline(error, path)
    if isinstance(error, ImportError) and "attempted relative import" in str(error):
        what += "; a module of a package is named as such: `module: package.train` in the recipe, in place of `script`"
    elif isinstance(error, ModuleNotFoundError):
        what += f" in {sys.executable}"
        package = (error.name or "-").partition(".")[0]
        with suppress(OSError):
            cwd = Path.cwd()
            if str(cwd) not in sys.path and [*cwd.glob(package), *cwd.glob(f"{package}.py")]:
                what += f"; {cwd} has it: add `env: {{PYTHONPATH: .}}` to the recipe"
    elif isinstance(error, FileNotFoundError):
        with suppress(OSError):
            what += f"; the working directory (`cwd` of the recipe) is {Path.cwd()}"
    return what


def main() -> None:
    """``python -m gpusched.runtime.rank SCRIPT [ARGS..]``, or ``-m MODULE [ARGS..]`` in the place of the script."""
    module = sys.argv[2] if sys.argv[1] == "-m" else ""
    found = importlib.util.find_spec(module) if module else None
    script = found.origin if found is not None and found.origin else sys.argv[1]
    write_unfailingly()
    run_file(script, sys.argv[3 if module else 2 :], module=module)


if __name__ == "__main__":
    main()

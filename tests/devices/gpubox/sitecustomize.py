"""A machine with scripted GPUs for whole processes: every Python started with this folder on PYTHONPATH finds them.

Test tool only. ``GPU_BOX`` names a folder with a folder a GPU, named by its UUID. A process "opens a context" by making
a file named by its pid in there; the driver lists it while the process lives and ``LAG_S`` longer, and so long its
memory is taken. Only the daemon's side asks NVML; the processes and whose they are are real.

A file ``lost`` in a GPU's folder: the GPU has fallen off the bus; ``small``: it has half of the others' memory;
``hangs``: calls about it do not return (``hung``: one has been made).
"""

import os
import sys
import time
from pathlib import Path

LAG_S = 0.4
CONTEXT_BYTES = 3 << 30

box = os.environ.get("GPU_BOX")
if box and "GPUSCHED_TRIAL" not in os.environ:
    sys.path.insert(1, str(Path(__file__).resolve().parents[3]))
    from gpusched.devices import choose
    from tests.devices.fake_nvml import Context, FakeDriver, FakeGpu, RealTime, installed

    died: dict[int, float] = {}

    def gone_for_s(pid: int) -> float:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            state = "X"
        if state not in "ZX":
            return -1.0
        return time.monotonic() - died.setdefault(pid, time.monotonic())

    class Shared(FakeGpu):
        """A GPU's contexts are the files in its folder."""

        @property
        def lost_from(self) -> float:
            return 0.0 if Path(str(box), self.uuid, "lost").exists() else float("inf")

        @lost_from.setter
        def lost_from(self, value: float) -> None:
            """The file decides."""

        @property
        def hangs(self) -> list[tuple[float, float]]:
            if not Path(str(box), self.uuid, "hangs").exists():
                return []
            Path(str(box), self.uuid, "hung").touch()
            return [(0.0, 1e9)]

        @hangs.setter
        def hangs(self, value: list[tuple[float, float]]) -> None:
            """The file decides."""

        def _now(self) -> list[Context]:
            """A file is removed when the driver has let go: until then its GPU is not free."""
            left = []
            for file in Path(str(box), self.uuid).glob("[0-9]*"):
                if gone_for_s(int(file.name)) < LAG_S:
                    left.append(Context(int(file.name), CONTEXT_BYTES))
                else:
                    file.unlink(missing_ok=True)
            return left

        def used(self, now: float) -> int:
            return self.idle + sum(context.memory for context in self._now())

        def listed(self, now: float) -> list[Context]:
            return self._now()

    names = sorted(path.name for path in Path(box).iterdir() if path.name.startswith("GPU-"))
    gpus = [Shared(name, bus_id=f"00000000:{n + 1:02X}:00.0") for n, name in enumerate(names)]
    for gpu in gpus:
        gpu.total >>= Path(box, gpu.uuid, "small").exists()
    choose.installed_torch_cuda = lambda: None  # the trials only pretend to compute there
    kept = installed(FakeDriver(gpus, RealTime()))  # collected, it would undo itself
    kept.__enter__()

"""Arms a failpoint in whatever is forked from the server that imports this (``preload:``): shims and ranks."""

from pathlib import Path

from gpusched import failpoints

failpoints.reach = failpoints.arm(Path(__file__).with_name("failpoint").read_text())

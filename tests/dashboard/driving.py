"""Drives the dashboard without a terminal, and reads its screen as text."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from textual.pilot import Pilot

from gpusched.dashboard.app import Dashboard, Why
from gpusched.dashboard.model import Standing
from gpusched.dashboard.widgets import LinesView

Steps = Callable[[Pilot[Why], Dashboard], Awaitable[None]]


def drive(
    view: Standing | None, steps: Steps, *, size: tuple[int, int] = (100, 30), **options: Any
) -> Dashboard:
    """Show a view on a screen of this size, and do ``steps`` with it."""

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            while app.main.view is not view:
                await pilot.pause()
            await pilot.pause()
            await steps(pilot, app)

    app = Dashboard(lambda: iter([view]), **options)
    asyncio.run(run())
    return app


def screen_of(app: Dashboard) -> str:
    """Return what the widgets show, each at its place."""
    width, height = app.size
    canvas = [[" "] * width for _ in range(height)]
    for widget in app.main.query(LinesView):
        seen = widget.region.intersection(app.main.region)
        if widget.display and widget.container_size:
            for row in range(seen.height):
                for place, letter in enumerate(widget.render_line(row).text[: seen.width]):
                    canvas[seen.y + row][seen.x + place] = letter
    return "\n".join("".join(line).rstrip() for line in canvas) + "\n"

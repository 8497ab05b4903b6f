"""Drives the dashboard without a terminal, and reads its screen as text."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from textual.pilot import Pilot

from gpusched.dashboard.app import Dashboard, Why
from gpusched.dashboard.model import Standing

Steps = Callable[[Pilot[Why], Dashboard], Awaitable[None]]


def drive(
    view: Standing | None, steps: Steps, *, size: tuple[int, int] = (100, 30), **options: Any
) -> Dashboard:
    """Show a view on a screen of this size, and do ``steps`` with it."""

    async def run() -> None:
        async with app.run_test(size=size, notifications=True) as pilot:
            while app.view is not view:
                await pilot.pause()
            await pilot.pause()
            await steps(pilot, app)

    app = Dashboard(lambda: iter([view]), **options)
    asyncio.run(run())
    return app


def screen_of(app: Dashboard) -> str:
    """Return what is on the screen, line by line."""
    strips = app.screen._compositor.render_strips()
    return "".join(f"{strip.text.rstrip()}\n" for strip in strips)

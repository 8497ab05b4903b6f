"""What is no business of the disk is not on it, and a resume goes on with it all the same."""

from __future__ import annotations

from contextlib import suppress

from tests.e2e.sandbox import Sandbox

SECRET = "open sesame"


def test_a_secret_of_the_recipe_is_not_on_the_disk_and_survives_a_resume(sandbox: Sandbox) -> None:
    recipe = sandbox.recipe(
        "secret.py",
        env={"GT_SECRET": SECRET, "GT_COUNT": 3},
        policy={"name": "fifo", "R": 100000},
        max_trials=1,
    )
    assert sandbox.gpusched("run", recipe, "--detach").code == 0
    sandbox.wait_for(lambda view: view["trials"] and view["trials"][0]["step"] > 3)
    for file in sandbox.files():
        with suppress(FileNotFoundError):
            assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file
    assert '"GT_COUNT": "3"' in (sandbox.experiment / "resolved.json").read_text()
    sandbox.kill_everything()
    recipe.rename(recipe.with_name("moved.yaml"))
    refused = sandbox.gpusched("resume", "--detach")
    assert refused.code == 2
    assert "env: no value for GT_SECRET" in refused.err
    assert sandbox.gpusched("resume", "--detach", GT_SECRET=SECRET).code == 0
    view = sandbox.wait_for(lambda view: view["trials"][0]["incarnation"] == 2)
    sandbox.kill_everything()
    recipe.with_name("moved.yaml").rename(recipe)
    assert sandbox.gpusched("resume", "--detach").code == 0
    sandbox.wait_for(
        lambda now: now["trials"][0]["step"] > view["trials"][0]["step"] + 3,
    )
    assert sandbox.view()["trials"][0]["metric"] >= 1
    assert sandbox.gpusched("stop").code == 0


def test_a_value_that_is_nowhere_is_told_before_anything_begins(sandbox: Sandbox) -> None:
    result = sandbox.gpusched("run", sandbox.recipe("good.py", env={"GT_NOWHERE": None}))
    assert result.code == 2
    assert "env: no value for GT_NOWHERE: not in the environment" in result.err
    assert not sandbox.runs.exists()

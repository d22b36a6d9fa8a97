"""Launches through the server's routes: listed, read, stopped, launched again, their notebooks opened."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_PROGRAM = """\
import os, pathlib, time
if os.environ["RANK"] == "1":
    print("Traceback (most recent call last):", flush=True)
    print('  File "x"', flush=True)
    print("ValueError: <b> no", flush=True)
while not pathlib.Path("go").exists():
    print("rank", os.environ["RANK"], "waits", flush=True)
    time.sleep(0.2)
"""


def _launch(server: Any, run: str, *words: str) -> None:
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("GIPFEL_", "SLURM"))}
    environment = {**kept, "HOME": str(server.home), "GIPFEL_RUN": run, "GIPFEL_RUNS": str(Path(run).parent)}
    command = [sys.executable, "-m", "gipfel_extension.cli", "launch", *words]
    subprocess.run(command, env=environment, cwd=server.root, check=True, timeout=120)


def test_launches_are_listed_read_stopped_and_launched_again(start_server: Any) -> None:
    server = start_server()
    server.wait(lambda: server.call("gipfel/run")[1].get("run"), 60)
    run = server.call("gipfel/run")[1]["run"]
    assert server.call("gipfel/launches") == (200, {"launches": []})
    (server.root / "train.py").write_text(_PROGRAM)
    _launch(server, run, "--gpus-per-node=2", "--", "train.py", "<i>")

    def first(number: int = 1) -> dict[str, Any]:
        _, answer = server.call("gipfel/launches")
        return next(each for each in answer["launches"] if each["number"] == number)

    name = first()["id"]
    assert name == f"{Path(run).name}/1"

    def log(**more: Any) -> dict[str, Any]:
        status, answer = server.call("gipfel/launches/log", "POST", {"launch": name, **more})
        assert status == 200, answer
        found: dict[str, Any] = answer
        return found

    server.wait(lambda: {row[0] for row in log()["lines"]} == {0, 1}, 120)
    assert first()["word"] == "running"
    page = log(rank=1)
    assert {row[0] for row in page["lines"]} == {1}
    assert [row[1] for row in page["lines"] if row[3]][-1] == "ValueError: <b> no"
    # From there on, only what is new; the server keeps nothing of who reads.
    before = len(log()["lines"])
    position = log()["position"]
    server.wait(lambda: log(position=position)["lines"], 60)
    assert len(log(position=position)["lines"]) < before + 20

    wrong = (
        ("stop", {"launch": "../../etc"}, "no such launch"),
        ("stop", {"launch": f"{name}0"}, "There is no launch"),
        ("stop", {"launch": "a\nb/1"}, "not valid"),
        ("log", {"launch": name, "rank": -1}, "not valid"),
        ("log", {"launch": name, "position": {"offsets": {"x": 1}}}, "not valid"),
        ("again", [], "not valid"),
        ("notebook", {"launch": name}, "no executed notebook"),
    )
    for action, body, said in wrong:
        status, answer = server.call(f"gipfel/launches/{action}", "POST", body)
        assert (status, said in answer["message"]) == (400, True), answer
    for action in ("log", "stop", "again", "notebook"):
        status, _ = server.call(f"gipfel/launches/{action}", "POST", {"launch": name}, Authorization="")
        assert status == 403
    assert server.call("gipfel/launches", Authorization="")[0] == 403

    assert server.call("gipfel/launches/stop", "POST", {"launch": name})[0] == 200
    server.wait(lambda: first()["word"] == "stopped", 120)
    assert log()["ended"]

    # A run folder that the file browser hides: the notebook opens by a link.
    Path(run, "launches", "1", "notebook.ipynb").write_text("{}")
    status, answer = server.call("gipfel/launches/notebook", "POST", {"launch": name})
    assert status == 200, answer
    assert (server.root / answer["path"]).read_text() == "{}"

    (server.root / "go").touch()
    assert server.call("gipfel/launches/again", "POST", {"launch": name})[0] == 201
    server.wait(lambda: first(2)["word"] == "completed", 240)
    assert first(2)["title"] == first()["title"].replace("train.py", str(server.root / "train.py"))

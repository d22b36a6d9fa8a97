"""Routes of launches: list, read, stop, rerun, and open their notebooks."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psutil

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


def _check_broken_off(server: Any, folder: Path, name: str) -> None:
    """Assert that an aborted download leaves neither an open file nor a traceback in the server's log."""
    file = folder / "profile" / "rank-11.json"
    with file.open("wb") as made:
        # More than the sockets hold.
        made.truncate(1 << 28)
    query = urlencode({"launch": name, "rank": "11"})
    request = urllib.request.Request(
        f"{server.url}gipfel/launches/trace?{query}", headers={"Cookie": server.cookie()}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.read(1 << 16)
        assert _opens(server, file)
    server.wait(lambda: not _opens(server, file), 60)
    file.unlink()
    assert server.call("gipfel/launches")[0] == 200
    assert "Traceback" not in (server.home.parent / "server.log").read_text()


def _opens(server: Any, file: Path) -> bool:
    return str(file) in {each.path for each in psutil.Process(server.process.pid).open_files()}


def _check_files(server: Any, run: Path, name: str) -> None:
    """Assert that a logged-in user gets the files of ranks, and nothing else from the folder or outside."""
    folder = run / "launches" / "1"
    (folder / "profile").mkdir(exist_ok=True)
    big = '{"traceEvents": [' + ",".join(["{}"] * 1_500_000) + "]}"
    (folder / "profile" / "rank-10.json").write_text(big)
    (folder / "profile" / "rank-0.json").write_text('{"traceEvents": []}')
    (folder / "profile" / "rank-2.json").symlink_to("/etc/passwd")
    (folder / "profile" / "rank-3.json").mkdir()
    os.mkfifo(folder / "profile" / "rank-4.json")
    (folder / "flight_recorder" / "rank_1").write_bytes(b"[1]")

    def get(kind: str, rank: str, launch: str = name, **headers: str) -> tuple[int, Any]:
        query = urlencode({"launch": launch, "rank": rank})
        found: tuple[int, Any] = server.call(f"gipfel/launches/{kind}?{query}", **headers)
        return found

    assert get("trace", "0") == (200, {"traceEvents": []})
    assert len(get("trace", "10")[1]["traceEvents"]) == 1_500_000
    assert get("dump", "1") == (200, [1])
    for rank in ("2", "3", "4", "5", "", "-1", "00", "1_0", "../../spec", "0\n", "99999999"):
        status, answer = get("trace", rank)
        assert status == 400, (rank, answer)
        assert "\n" not in answer["message"]
    for launch in ("../1", "", f"{name}/..", "x/1"):
        assert get("trace", "0", launch)[0] == 400
    assert get("spec", "0")[0] == 404
    assert get("trace", "0", Authorization="")[0] == 403
    command = [sys.executable, "-m", "gipfel_extension.cli", "launch", "show", str(folder)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert f"profiler trace of rank 10: {folder}/profile/rank-10.json" in shown
    assert "https://ui.perfetto.dev" in shown
    assert f"{folder}/flight_recorder" in shown
    assert "rank-2.json" not in shown
    told = json.loads(
        subprocess.run([*command, "--json"], capture_output=True, check=True, timeout=120).stdout
    )
    assert set(told["traces"]) == {"0", "10"}


def _check_looks(server: Any, name: str) -> None:
    """Assert that stacks of a rank are planned, requested, listed and sent to a logged-in user alone."""
    query = urlencode({"launch": name, "what": "stacks", "ranks": "rank=1"})
    status, plan = server.call(f"gipfel/launches/looks/plan?{query}")
    assert (status, plan["ranks"], "stopped" in plan["cost"]) == (200, [1], True)
    body = {"launch": name, "what": "stacks", "ranks": "1"}
    assert server.call("gipfel/launches/looks", "POST", body, Authorization="")[0] == 403
    status, made = server.call("gipfel/launches/looks", "POST", body)
    assert status == 201, made
    own = urlencode({"launch": name})

    def newest() -> dict[str, Any]:
        found: dict[str, Any] = server.call(f"gipfel/launches/looks?{own}")[1]["looks"][0]
        return found

    server.wait(lambda: not newest()["missing"], 60)
    assert (newest()["id"], newest()["answers"][0]["error"]) == (made["id"], "")
    file = urlencode({"launch": name, "id": made["id"], "rank": "1"})
    for path in (f"looks/file?{file}", f"looks?{own}", f"looks/plan?{query}"):
        assert server.call(f"gipfel/launches/{path}", Authorization="")[0] == 403
    for wrong in ({"rank": "2"}, {"id": "../1"}, {"id": "stacks-x"}, {"rank": "-1"}, {"launch": "../1"}):
        values = {"launch": name, "id": made["id"], "rank": "1", **wrong}
        assert server.call(f"gipfel/launches/looks/file?{urlencode(values)}")[0] == 400
    for more in ({"what": "shell"}, {"ranks": "9"}, {"ranks": "rank=\n"}, {"steps": 0}):
        assert server.call("gipfel/launches/looks", "POST", {**body, **more})[0] == 400


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
    # One alone, as a saved cell asks for it.
    status, answer = server.call(f"gipfel/launches?{urlencode({'launch': name})}")
    assert (status, [each["id"] for each in answer["launches"]]) == (200, [name])
    for other in (f"{name}0", "../1", "x/1"):
        status, answer = server.call(f"gipfel/launches?{urlencode({'launch': other})}")
        assert (status, "There is no" in answer["message"]) == (400, True), answer

    def log(**more: Any) -> dict[str, Any]:
        status, answer = server.call("gipfel/launches/log", "POST", {"launch": name, **more})
        assert status == 200, answer
        found: dict[str, Any] = answer
        return found

    server.wait(lambda: {row[0] for row in log()["lines"]} == {0, 1}, 120)
    assert first()["status"] == "running"
    page = log(rank=1)
    assert {row[0] for row in page["lines"]} == {1}
    assert [row[1] for row in page["lines"] if row[3]][-1] == "ValueError: <b> no"
    # From there on, only what is new; the server keeps nothing of who reads.
    before = len(log()["lines"])
    position = log()["position"]
    server.wait(lambda: log(position=position)["lines"], 60)
    assert len(log(position=position)["lines"]) < before + 20

    _check_looks(server, name)
    wrong = (
        ("stop", {"launch": "../../etc"}, "no such launch"),
        ("stop", {"launch": f"{name}0"}, "There is no launch"),
        ("stop", {"launch": "a\nb/1"}, "not valid"),
        ("log", {"launch": name, "rank": -1}, "not valid"),
        ("log", {"launch": name, "position": {"offsets": {"x": 1}}}, "not valid"),
        ("rerun", [], "not valid"),
        ("notebook", {"launch": name}, "no executed notebook"),
    )
    for action, body, said in wrong:
        status, answer = server.call(f"gipfel/launches/{action}", "POST", body)
        assert (status, said in answer["message"]) == (400, True), answer
    for action in ("log", "stop", "rerun", "notebook"):
        status, _ = server.call(f"gipfel/launches/{action}", "POST", {"launch": name}, Authorization="")
        assert status == 403
    assert server.call("gipfel/launches", Authorization="")[0] == 403

    assert server.call("gipfel/launches/stop", "POST", {"launch": name})[0] == 200
    server.wait(lambda: first()["status"] == "stopped", 120)
    assert log()["ended"]

    # A run folder that the file browser hides: the notebook opens by a link.
    Path(run, "launches", "1", "notebook.ipynb").write_text("{}")
    status, answer = server.call("gipfel/launches/notebook", "POST", {"launch": name})
    assert status == 200, answer
    assert (server.root / answer["path"]).read_text() == "{}"

    _check_files(server, Path(run), name)
    _check_broken_off(server, Path(run) / "launches" / "1", name)
    assert (first()["traces"], first()["dumps"]) == ([0, 10], [1])

    (server.root / "go").touch()
    assert server.call("gipfel/launches/rerun", "POST", {"launch": name})[0] == 201
    server.wait(lambda: first(2)["status"] == "completed", 240)
    assert first(2)["title"] == first()["title"]

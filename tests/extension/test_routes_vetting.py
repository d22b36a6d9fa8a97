"""Routes of vetting: runs, protocols, and refused requests."""

from typing import Any

_STRICT = (
    "name: strict\nchecks:\n- {name: v, type: environment, parameters: {expected: {NOT_SET_HERE: '1'}}}\n"
)


def test_a_run_is_started_followed_and_named_and_hostile_requests_are_not(start_server: Any) -> None:
    server = start_server()
    for path, method in (
        ("vetting", "GET"), ("vetting", "POST"), ("vetting", "DELETE"), ("vetting/protocols", "GET"),
        ("vetting/protocols", "POST"), ("vetting/protocols", "PUT"), ("vetting/consent", "POST"),
    ):  # fmt: skip
        body = None if method in {"GET", "DELETE"} else {}
        assert server.call(f"gipfel/{path}", method, body, Authorization="")[0] == 403, (path, method)
    status, seen = server.call("gipfel/vetting")
    assert (status, seen["state"], seen["version"]) == (200, "none", "none")

    def start(**asked: str) -> tuple[int, Any]:
        status, answer = server.call("gipfel/vetting", "POST", asked)
        return status, answer

    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"kind": "shipped", "file": "../quick"}, "no longer exists"),
        ({"kind": "notebook", "file": "/etc/passwd"}, "no longer exists"),
        ({"kind": "notebook", "file": "a.yaml", "directory": "../.."}, "not below"),
        ({"kind": "notebook", "file": "a.yaml", "directory": "nowhere"}, "There is no directory"),
        ({"kind": "notebook", "file": "a.yaml", "directory": "a" * 4000}, "is not a valid directory"),
        ({"kind": "user", "file": "a\nb"}, "not valid"),
        ({"kind": "shipped", "file": "quick", "skip_vetted": "9 h; rm"}, "not valid"),
        ({"kind": "shipped", "file": "quick", "action": "abort"}, "not valid"),
    )
    for asked, said in wrong:
        status, answer = start(**asked)
        assert (status, said in answer["message"]) == (400, True), answer

    status, answer = server.call(f"gipfel/vetting/protocols?directory={'a' * 5000}")
    assert (status, "is not a valid directory" in answer["message"]) == (400, True)

    # What is typed is looked at, kept beside the notebook, and never over something that is there.
    _, meant = server.call("gipfel/vetting/protocols", "POST", {"text": "checks: ["})
    assert (meant["valid"], "line" in meant["problems"][0]) == (False, True)
    assert meant["lines"] == [1]
    odd = _STRICT + "- {name: w, type: host_memori}\n"
    _, meant = server.call("gipfel/vetting/protocols", "POST", {"text": odd})
    assert (meant["valid"], meant["lines"]) == (True, [odd.count("\n")])
    _, meant = server.call("gipfel/vetting/protocols", "POST", {"text": "name: x\n"})
    assert (meant["valid"], meant["lines"]) == (False, [0])
    _, meant = server.call("gipfel/vetting/protocols", "POST", {"text": _STRICT})
    assert (meant["valid"], [each["name"] for each in meant["checks"]]) == (True, ["v"])
    (server.root / "sub").mkdir()
    saved = {"directory": "sub", "name": "strict", "text": _STRICT}
    assert server.call("gipfel/vetting/protocols", "PUT", saved) == (
        200, {"kind": "notebook", "file": "strict.yaml"},
    )  # fmt: skip
    for asked, said in (
        (saved, "already exists"),
        ({**saved, "name": "../strict"}, "not a valid name"),
        ({**saved, "name": "x", "text": "not: one"}, "is not a key of a protocol"),
        ({**saved, "name": "x", "text": "a" * 300_000}, "not valid"),
        ({**saved, "directory": "\0"}, "not valid"),
    ):
        status, answer = server.call("gipfel/vetting/protocols", "PUT", asked)
        assert (status, said in answer["message"]) == (400, True), answer
    # Of all YAML beside a notebook only protocols are offered.
    (server.root / "sub" / "conda.yaml").write_text("dependencies: []\n")
    (server.root / "sub" / "broken.yaml").write_text("checks: 7\n")
    _, listed = server.call("gipfel/vetting/protocols?directory=sub")
    beside = {each["file"]: each["problem"] for each in listed["protocols"] if each["kind"] == "notebook"}
    assert sorted(beside) == ["broken.yaml", "strict.yaml"]
    assert "not a list of checks" in beside["broken.yaml"]
    assert {"quick", "cpu"} <= {each["name"] for each in listed["protocols"] if each["kind"] == "shipped"}
    _, read = server.call("gipfel/vetting/protocols?directory=sub&kind=notebook&file=strict.yaml")
    assert (read["text"], read["valid"]) == (_STRICT, True)

    assert start(kind="notebook", file="strict.yaml", directory="sub")[0] == 201
    assert "already running" in start(kind="shipped", file="cpu")[1]["message"]

    def ended(state: str) -> Any:
        seen = server.call("gipfel/vetting")[1]
        return seen if seen["state"] == state else None

    seen = server.wait(lambda: ended("ended"), 120)
    grid = seen["grid"]
    (row,) = grid["rows"]
    assert (grid["vetted"], row["verdict"], grid["exclude"]) == (0, "fail", "")
    assert "NOT_SET_HERE is not set" in grid["faulty_components"][0]["reason"]
    # A variable that the user's EDF lacks bars no node.
    assert grid["faulty_components"][0]["owner"] == "image"
    # Who has this version is told no more than that.
    again = server.call(f"gipfel/vetting?known={seen['version']}")[1]
    assert ("grid" in again, again["version"]) == (False, seen["version"])
    assert server.call("gipfel/vetting?run=../..")[0] == 400

    # A protocol that can't be used, and a run that is stopped.
    assert start(kind="notebook", file="broken.yaml", directory="sub")[0] == 201
    assert "not a list of checks" in server.wait(lambda: ended("error"), 120)["problem"]
    assert start(kind="shipped", file="cpu")[0] == 201
    server.wait(lambda: ended("running"), 120)
    assert server.call("gipfel/vetting", "DELETE")[0] == 200
    stopped = server.wait(lambda: ended("interrupted"), 60)
    assert (stopped["can_stop"], stopped["grid"]["complete"]) == (False, False)

    assert server.call("gipfel/vetting/consent") == (200, {"share": False})
    assert server.call("gipfel/vetting/consent", "POST", {"share": True}) == (200, {"share": True})

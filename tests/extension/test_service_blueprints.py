"""Blueprints: found in four places, checked with lines and fixes, and filled with parameters and secrets."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest
import yaml

from gipfel_cluster.model import GipfelError
from gipfel_extension.cli.main import main
from gipfel_extension.network import read_gate
from gipfel_extension.services.blueprint import (
    Blueprint,
    blueprint_schema,
    check_blueprint,
    find_blueprint,
    known_blueprints,
    read_blueprint,
)
from gipfel_extension.services.directory import ServiceSpec, copy_secrets, storage_directory
from gipfel_extension.services.plan import gated_part, parameter_references, parameter_values, resolve_part

GOOD = """\
name: board
title: A board
parameters:
  logs: {help: "Directory of logs."}
  rows: {type: int, default: 10}
  mode: {default: fast, choices: [fast, exact]}
parts:
  web:
    command: [board, --rows, "${parameters.rows}", --listen, "${socket}", --database, "${parts.db.socket}"]
    variables: {PREFIX: "${prefix}", PRICE: "5$$"}
    secrets: [api-key]
    path: keep
    allow_paths: [/v1/, /health]
    ready: {path: /health, status: [200, 204], timeout_s: 5}
    needs: [db]
  db:
    command: ["${python}", db.py, "${socket}"]
front: web
outbound: ["api.example.org:443", "*.data.example.org"]
resources: {gpus: 1, time: 2h, memory: 8G}
"""


COMMAND = "    command: [x, '${socket}']\n"
CORRECT = "Correct the value."


def _write(folder: Path, text: str, name: str = "board.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _parts(text: str) -> str:
    return f"name: b\ntitle: B\nparts:\n  a:\n{COMMAND}{text}"


@pytest.mark.parametrize(
    ("text", "line", "problem", "fix"),
    [
        (GOOD.replace("ready:", "redy:"), 14, "'parts.web.redy' is not a known key", "Did you mean 'ready'?"),
        (GOOD.replace("status:", "sttus:"), 14, "'parts.web.ready.sttus' is not a known key", "'status'?"),
        (GOOD.replace("rows: {type", "rows: {typ"), 5, "'parameters.rows.typ'", "Did you mean 'type'?"),
        (GOOD.replace("title:", "tilte:"), 2, "'tilte' is not a known key", "Did you mean 'title'?"),
        (GOOD.replace("path: keep", "path: root"), 12, "'strip', 'keep', 'host' or 'raw'", CORRECT),
        (GOOD.replace("default: 10", "default: ten"), 5, "not of type int", CORRECT),
        (GOOD.replace("default: fast", "default: slow"), 6, "not one of the choices", CORRECT),
        (GOOD.replace("needs: [db]", "needs: [bd]"), 15, "'bd' is not another part", "Use one of: db."),
        (GOOD.replace("rows}", "row}"), 9, "${parameters.row} is not known", "parameters.rows"),
        (GOOD.replace("5$$", "5$"), 10, "a '$' starts no reference", "$$ for a dollar sign"),
        (GOOD.replace("/v1/", "/v1/../x"), 13, "dot segment", CORRECT),
        (GOOD.replace("/health]", "/a%2fb]"), 13, "match", CORRECT),
        (GOOD.replace("front: web\n", ""), 7, "needs 'front'", "Name the part"),
        (GOOD.replace("front: web", "front: wbe"), 18, "there is no part 'wbe'", "Use one of: db, web."),
        (GOOD.replace("db.py, \"${socket}\"", "db.py"), 17, "contains ${socket}", "listen on the Unix"),
        (GOOD.replace("PREFIX:", "API_TOKEN:"), 10, "named like a secret", CORRECT),
        (GOOD.replace("PREFIX:", "LD_PRELOAD:"), 10, "LD_PRELOAD is set by the job", CORRECT),
        (GOOD.replace("2h", "soon"), 20, "resources.time", CORRECT),
        (GOOD.replace("name: board", "name: My--Board"), 1, "name: String should match", CORRECT),
        (GOOD.replace('"api.example.org:443"', '"http://x/"'), 19, "outbound.0", CORRECT),
        (GOOD + "name: again\n", 0, "line 21: the key 'name' appears twice", "Keep one of them."),
        (GOOD + "x: [", 0, "not valid YAML", "Correct the file."),
        (GOOD + "x: !!python/object/apply:os.system [id]\n", 21, "'x' is not a known key", "Known keys"),
        ("- a\n", 0, "is not a blueprint", "Write 'name', 'title' and 'parts'."),
        ("x: " + "[" * 5000, 0, "nested too deeply", "Correct the file."),
        ("#" * 250_000, 0, "more than 200000 characters", "shorten it"),
        (_parts(f"  c:\n{COMMAND}    needs: [c]\nfront: a\n"), 8, "'c' is not another", "a"),
        (_parts(f"    needs: [c]\n  c:\n{COMMAND}    needs: [a]\nfront: a\n"), 3, "in a circle", "needs"),
        (_parts("    workers: [x]\n    listen: port\n"), 6, "has no network, through which", "socket"),
        (_parts("resources: {nodes: 2}\n"), 6, "would be idle", "Add 'workers'"),
        (_parts("    variables: {A: '${nodes.rank}'}\n"), 6, "${nodes.rank} is not known", "Use one of"),
        (_parts("handover: overlap\n"), 6, "not started again", "keep_up"),
        (_parts("    variables: {D: '${storage}'}\nkeep_up: true\nhandover: overlap\n"), 8, "two jobs", ""),
        (_parts("    variables: {A: \"x\\ny\"}\n"), 6, "line break", CORRECT),
    ],
)  # fmt: skip
def test_each_mistake_is_one_line_with_its_number_and_a_fix(
    tmp_path: Path, text: str, line: int, problem: str, fix: str
) -> None:
    path = _write(tmp_path, text)
    found, diagnostics = check_blueprint(path)
    assert found is None
    matching = [each for each in diagnostics if problem in str(each)]
    assert matching, [str(each) for each in diagnostics]
    assert matching[0].line == line
    assert fix in matching[0].fix
    assert all("\n" not in str(each) + each.fix for each in diagnostics)
    with pytest.raises(GipfelError):
        read_blueprint(path)


def test_files_that_are_no_text_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    for name, problem in (
        ("pipe.yaml", "not a regular file"),
        ("binary.yaml", "not UTF-8"),
        ("no.yaml", "No such"),
    ):
        found, (only,) = check_blueprint(tmp_path / name)
        assert found is None
        assert problem in only.problem


def test_what_a_service_keeps_is_in_its_storage_class(tmp_path: Path) -> None:
    blueprint = read_blueprint(_write(tmp_path, f"storage: keep\n{GOOD}"))
    spec = ServiceSpec(name="board", blueprint=blueprint, parameters={})
    environment = {"HOME": str(tmp_path), "GIPFEL_STORAGE_KEEP": str(tmp_path)}
    kept = storage_directory(spec, tmp_path / "own", environment)
    assert kept == tmp_path / f"gipfel-services-{os.geteuid()}" / "board"
    assert kept.parent.stat().st_mode & 0o077 == 0
    kept.parent.chmod(0o755)
    with pytest.raises(GipfelError, match="can't be used: it is not a directory of this user alone"):
        storage_directory(spec, tmp_path / "own", environment)


def test_values_and_references_are_filled_in_once(tmp_path: Path) -> None:
    blueprint = read_blueprint(_write(tmp_path, GOOD))
    assert blueprint.start_order() == ("db", "web")
    assert blueprint.front_part == "web"
    values = parameter_values(blueprint, {"logs": "${socket}; rm -rf $HOME", "rows": "3"})
    spec = ServiceSpec(name="board", blueprint=blueprint, parameters=values)
    references = {
        **parameter_references(spec),
        "python": "/py",
        "prefix": "/user/ada/board/",
        "socket": "/s/web",
        "storage": "/keep",
        "parts.db.socket": "/s/db",
    }
    argv, variables = resolve_part(blueprint.parts["web"], references)
    assert argv == ("board", "--rows", "3", "--listen", "/s/web", "--database", "/s/db")
    assert variables == {"PREFIX": "/user/ada/board/", "PRICE": "5$"}
    # What a user typed is never expanded, and never split.
    assert references["parameters.logs"] == "${socket}; rm -rf $HOME"
    echo = blueprint.parts["web"].model_copy(
        update={"command": ("echo", "${parameters.logs}"), "variables": {}}
    )
    assert resolve_part(echo, references)[0] == ("echo", "${socket}; rm -rf $HOME")


@pytest.mark.parametrize("text", ["nan", "inf", "-Infinity", "1e999"])
def test_a_number_that_json_does_not_have_is_refused(tmp_path: Path, text: str) -> None:
    ratio = GOOD.replace("rows: {type: int, default: 10}", "rows: {type: float, default: 0.5}")
    blueprint = read_blueprint(_write(tmp_path, ratio))
    assert parameter_values(blueprint, {"logs": "a", "rows": "2"})["rows"] == 2.0
    with pytest.raises(GipfelError, match="'rows' is not of type float"):
        parameter_values(blueprint, {"logs": "a", "rows": text})
    with pytest.raises(GipfelError, match="the default is not of type float"):
        read_blueprint(_write(tmp_path, ratio.replace("0.5", ".inf")))


@pytest.mark.parametrize(
    ("typed", "problem"),
    [
        ({}, "needs a value for the parameter 'logs'"),
        ({"logs": "a", "rowz": "1"}, "no parameter 'rowz'. Did you mean 'rows'?"),
        ({"logs": "a", "rows": "many"}, "'rows' is not of type int"),
        ({"logs": "a", "mode": "best"}, "'best' is not a choice of 'mode'. Choose one of: fast, exact."),
        ({"logs": "a\nb"}, "has a line break"),
        ({"logs": "a\0b"}, "control character"),
    ],
)
def test_a_wrong_parameter_is_refused(tmp_path: Path, typed: dict[str, str], problem: str) -> None:
    blueprint = read_blueprint(_write(tmp_path, GOOD))
    with pytest.raises(GipfelError) as refused:
        parameter_values(blueprint, typed)
    assert problem in str(refused.value)


def test_a_secret_is_copied_only_if_others_cannot_read_it(tmp_path: Path) -> None:
    spec = ServiceSpec(name="board", blueprint=read_blueprint(_write(tmp_path, GOOD)))
    folder = tmp_path / "service"
    folder.mkdir()
    environment = {"HOME": str(tmp_path)}
    with pytest.raises(GipfelError, match="can't be read"):
        copy_secrets(spec, folder, environment)
    secret = _write(tmp_path, "hush", ".gipfel/secrets/api-key")
    secret.chmod(0o640)
    with pytest.raises(GipfelError, match="chmod 600"):
        copy_secrets(spec, folder, environment)
    secret.chmod(0o600)
    copy_secrets(spec, folder, environment)
    copied = folder / "secrets/api-key"
    assert copied.read_text() == "hush"
    assert copied.stat().st_mode & 0o777 == 0o600
    assert copied.parent.stat().st_mode & 0o777 == 0o700
    secret.unlink()
    secret.symlink_to("/etc/hostname")
    with pytest.raises(GipfelError, match="can't be read"):
        copy_secrets(spec, folder, environment)


def test_the_users_blueprint_wins_over_the_sites_a_packages_and_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"HOME": str(tmp_path / "home"), "GIPFEL_BLUEPRINTS": str(tmp_path / "site")}
    assert (
        find_blueprint("files", directory=tmp_path, environment=environment).title == "Files of a directory"
    )
    package = tmp_path / "packages/dashboards"
    _write(package, GOOD.replace("A board", "of the package"))
    (package / "__init__.py").write_text("raise RuntimeError('a blueprint is data: nothing is imported')")
    metadata = package.parent / "dashboards-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: dashboards\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[gipfel.blueprints]\ndashboards = dashboards\ngone = not_there\n"
    )
    monkeypatch.syspath_prepend(str(package.parent))

    def title() -> str:
        return find_blueprint("board", directory=tmp_path, environment=environment).title

    assert title() == "of the package"
    _write(tmp_path / "site", GOOD.replace("A board", "of the site"))
    assert title() == "of the site"
    own = _write(tmp_path / "home/.gipfel/blueprints", GOOD.replace("A board", "my own"), "any-name.yml")
    assert title() == "my own"
    own.write_text("name: [")
    assert title() == "of the site"
    found, problems = known_blueprints(environment)
    assert {"board", "files"} <= set(found)
    assert [each.file for each in problems] == [str(own)]
    with pytest.raises(GipfelError, match="not valid YAML"):
        find_blueprint("any-name", directory=tmp_path, environment=environment)
    with pytest.raises(GipfelError, match="Did you mean 'board'"):
        find_blueprint("baord", directory=tmp_path, environment=environment)
    relative = find_blueprint("./site/board.yaml", directory=tmp_path, environment=environment)
    assert relative.title == "of the site"


def test_the_schema_accepts_what_the_model_accepts(tmp_path: Path) -> None:
    schema = json.loads(json.dumps(blueprint_schema()))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(GOOD), schema)
    with pytest.raises(jsonschema.ValidationError, match="redy"):
        jsonschema.validate(yaml.safe_load(GOOD.replace("ready:", "redy:")), schema)
    assert Blueprint.model_validate(yaml.safe_load(GOOD)).parts["web"].path == "keep"


def test_the_commands_list_check_and_print_the_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("GIPFEL_BLUEPRINTS", raising=False)
    assert main(["service", "blueprints"]) == 0
    assert "-p directory STR  required" in capsys.readouterr().out
    good, bad = _write(tmp_path, GOOD), _write(tmp_path, GOOD.replace("ready:", "redy:"), "bad.yaml")
    assert main(["service", "check", str(good), str(bad)]) == 1
    out = capsys.readouterr().out
    assert f"{good}: can be used." in out
    assert f"{bad}, line 14: 'parts.web.redy' is not a known key.\n  Did you mean 'ready'?" in out
    assert main(["service", "check", "--json", str(bad)]) == 1
    (document,) = json.loads(capsys.readouterr().out)
    assert document["valid"] is False
    assert main(["service", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["additionalProperties"] is False


def test_a_part_behind_a_gate_reaches_no_other_host(tmp_path: Path) -> None:
    blueprint = read_blueprint(_write(tmp_path, GOOD)).model_copy(update={"gate": True})
    code = "import socket; socket.create_connection(('203.0.113.7', 5000), 5)"
    variables = {"PATH": os.environ["PATH"], "GIPFEL_RUN": str(tmp_path), "GIPFEL_NODE": "n1"}
    argv, environment = gated_part(blueprint, (sys.executable, "-c", code), variables, tmp_path)
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert "ConnectionRefusedError" in done.stderr
    # The gate writes its last lines after the program's end.
    end = time.monotonic() + 10
    while not (rows := read_gate(tmp_path).rows) and time.monotonic() < end:
        time.sleep(0.05)
    (row,) = rows
    assert (row.place, row.node, row.allowed) == ("203.0.113.7:5000", "n1", False)

"""Dependency files: each way to mislead an installer is found with its line, and safe files pass."""

import json
import random
from pathlib import Path

import pytest

from gipfel_cluster.edf.check import check_edf
from gipfel_cluster.installs import command_problems, unpinned, variable_problem
from gipfel_extension.cli import main
from gipfel_extension.gate.dependencies import KNOWN, dependency_findings, is_dependency_file, likely_meant

HASHED = "torch==2.4.0 \\\n    --hash=sha256:" + "a" * 64 + "\n"
CONFUSED = {
    "requirements.txt": ("--extra-index-url https://index.example/simple\ntorch==2.4\n", {"extra-index", "no-hashes"}),  # noqa: E501
    "requirements-dev.txt": ("--index-url http://pypi.site/simple\n" + HASHED, {"insecure-index"}),
    "constraints.txt": ("torhc==1.0\nnumpy>=1\n", {"similar-name", "unpinned-install"}),
    "a/requirements.in": ("git+https://example.com/x.git@main\n", {"unpinned-install"}),
    "pip.conf": ("[global]\nextra-index-url = https://a/simple\n[install]\ntrusted-host = a\n", {"extra-index", "insecure-index"}),  # noqa: E501
    "uv.toml": ('index-strategy = "unsafe-best-match"\n[[index]]\nurl = "http://a"\n', {"extra-index", "insecure-index"}),  # noqa: E501
    "pyproject.toml": ('[project]\ndependencies = ["nunpy>=1"]\n[tool.uv.pip]\nextra-index-url = ["https://a"]\n', {"similar-name", "extra-index"}),  # noqa: E501
    "uv.lock": ('[[package]]\nname = "x"\nsource = { registry = "https://index.example/simple" }\nwheels = [{ url = "http://a/x.whl" }]\n', {"no-hashes", "insecure-index"}),  # noqa: E501
    "package-lock.json": (json.dumps({"packages": {"node_modules/x": {"version": "1", "resolved": "http://a/x.tgz"}}}), {"no-hashes", "insecure-index"}),  # noqa: E501
    "Containerfile": ("FROM debian:12\nADD https://a/x /x\nRUN curl -fsSL https://a/i.sh | \\\n  bash\n", {"unpinned-image", "unpinned-download", "piped-script"}),  # noqa: E501
    "x.Dockerfile": ("FROM scratch AS a\nFROM a\nRUN pip install reqeusts torch\n", {"unpinned-install", "similar-name"}),  # noqa: E501
    "torch.setup": ("bash <(wget -qO- https://a)\npip install -i http://a/simple x==1\n", {"piped-script", "insecure-index"}),  # noqa: E501
}  # fmt: skip
SAFE = {
    "requirements.txt": HASHED,
    "pip.conf": "[global]\nindex-url = https://proxy.site/simple\nindex-url2 = 1\n",
    "uv.toml": '[[index]]\nname = "site"\nurl = "https://site"\nexplicit = true\n',
    "pyproject.toml": '[project]\ndependencies = ["torch>=2", "tensorboardx"]\n',
    "uv.lock": '[[package]]\nname = "x"\nsource = { registry = "https://a" }\nwheels = [{ url = "https://a/x", hash = "sha256:1" }]\n',  # noqa: E501
    "Containerfile": f"FROM debian@sha256:{'a' * 64}\n# curl x | sh\nRUN apt-get update && pip install --require-hashes -r r.txt\n",  # noqa: E501
    "torch.setup": "source venv/bin/activate\nexport A=1  # pip install x\ncurl -o f https://a && sha256sum -c s && sh f\npip install -e . ./x a==1\n",  # noqa: E501
}  # fmt: skip


def rules(name: str, text: str) -> set[str]:
    return {each.rule for each in dependency_findings(name, text.encode())}


@pytest.mark.parametrize("name", CONFUSED)
def test_what_confuses_an_installer_is_found(name):
    text, wanted = CONFUSED[name]
    assert rules(name, text) == wanted
    assert all(
        each.fix.startswith(("Write", "Lock", "Add")) for each in dependency_findings(name, text.encode())
    )


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_what_pip_reads_is_read_and_joined_as_pip_does(encoding):
    text = "--extra-\\\nindex-url https://a\ntorch==1\n"
    found = {each.rule for each in dependency_findings("requirements.txt", text.encode(encoding))}
    assert found == {"extra-index", "no-hashes"}


@pytest.mark.parametrize("name", SAFE)
def test_safe_files_have_no_finding(name):
    assert is_dependency_file(name)
    assert rules(name, SAFE[name]) == set()


def test_the_line_is_named():
    (finding,) = dependency_findings("x.setup", b"cd /\n\n# curl a | sh\ncurl a | sudo bash -s -- x\n")
    assert finding.message.startswith("Line 4: ")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("pip install torch", ["torch"]),
        ("python3 -m pip install -U 'torch[cuda]' numpy==1 && echo x", ["torch"]),
        ("uv pip install --python 3.11 x", ["x"]),
        ("uv add y", ["y"]),
        ("pip install -r requirements.txt z", []),
        ("pip install --target /x .", []),
        ("pip install git+https://a/b@" + "0" * 40, []),
        ("pip install git+https://a/b@main", ["a"]),
        ("pip install 'unclosed", []),
        ("pip download x", []),
    ],
)
def test_unpinned(line, found):
    if line.endswith("unclosed"):
        assert unpinned(line) in ([], ["unclosed"])
    else:
        assert unpinned(line) == found


def test_typing_errors_of_well_known_names():
    meant = {
        "torhc": "torch",
        "nunpy": "numpy",
        "reqests": "requests",
        "panddas": "pandas",
        "Py_YAML": "pyyaml",
    }
    assert {name: likely_meant(name) for name in meant} == meant
    assert [
        name for name in (*KNOWN, "tensorboardx", "torchx", "black", "flake8", "dask") if likely_meant(name)
    ] == []
    # Own packages of the project that are not typing errors of each other.
    lock = Path(__file__).parents[2] / ".ci/constraints.txt"
    own = [line.partition("==")[0] for line in lock.read_text().splitlines() if "==" in line]
    assert len(own) > 50
    assert [name for name in own if likely_meant(name)] == []


def test_variables():
    wanted = {
        ("PIP_EXTRA_INDEX_URL", "https://a"): "extra-index",
        ("UV_INDEX_STRATEGY", "unsafe-first-match"): "extra-index",
        ("PIP_INDEX_URL", "http://a"): "insecure-index",
        ("PIP_TRUSTED_HOST", "a"): "insecure-index",
        ("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1"): "unsafe-load",
        ("PIP_INDEX_URL", "https://a"): "",
        ("PIP_EXTRA_INDEX_URL", ""): "",
        ("PIP_INDEX_URL", "http://localhost:3141/root"): "",
    }
    assert {pair: getattr(variable_problem(*pair), "code", "") for pair in wanted} == wanted


def test_edf_check_warns_once_for_each_cause(tmp_path):
    edf = tmp_path / "x.toml"
    edf.write_text(
        '[env]\nPIP_EXTRA_INDEX_URL = "https://a"\nUV_EXTRA_INDEX_URL = "https://a"\n'
        'PIP_TRUSTED_HOST = "a"\nTORCH_FORCE_NO_WEIGHTS_ONLY_LOAD = "1"\n'
    )
    (tmp_path / "x.setup").write_text("curl a | sh\npip install torch\ncurl b | sh\npip install numpy\n")
    checked = check_edf(str(edf), environment={}, directory=tmp_path)
    found = [(each.code, each.line, each.severity) for each in checked.diagnostics if each.code != "no-image"]
    assert sorted(found) == [
        ("extra-index", 2, "warning"),
        ("insecure-index", 4, "warning"),
        ("setup-piped-script", 1, "warning"),
        ("setup-unpinned-install", 2, "warning"),
        ("unsafe-load", 5, "warning"),
    ]
    assert checked.valid


def test_scan_of_a_file_and_a_directory(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project = tmp_path / "project"
    project.mkdir()
    for name, (text, _) in CONFUSED.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text)
    assert main(["scan", str(project / "pip.conf"), "--json"]) == 1
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert {each["rule"] for each in item["findings"]} == CONFUSED["pip.conf"][1]
    assert main(["scan", str(project), "--json"]) == 1
    items = json.loads(capsys.readouterr().out)["items"]
    found = {
        each["path"].removeprefix(f"{project}/"): {f["rule"] for f in each["findings"]} for each in items
    }
    assert {name: found.get(name) for name in CONFUSED} == {
        name: wanted for name, (_, wanted) in CONFUSED.items()
    }
    (project / "pip.conf").write_text("[broken")
    assert main(["scan", str(project / "pip.conf")]) == 2


def test_hostile_lines_take_little_time():
    draw = random.Random(4)
    pieces = [
        "curl ",
        "| ",
        "sh ",
        "pip install ",
        "\\\n",
        "'",
        '"',
        "$(",
        "a" * 5000,
        "\x00",
        "-r ",
        "://",
        "\n",
    ]
    for _ in range(20):
        text = "".join(draw.choice(pieces) for _ in range(300))
        list(command_problems(text))
        for name in CONFUSED:
            try:
                dependency_findings(name, text.encode())
            except ValueError:
                continue

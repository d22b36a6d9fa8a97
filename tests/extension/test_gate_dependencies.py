"""Dependency files: each way to mislead an installer is found with its line, and safe files pass."""

import json
import random
import re
from pathlib import Path

import pytest

from gipfel_cluster.edf.check import check_edf
from gipfel_cluster.installs import command_problems, unpinned, variable_problem
from gipfel_extension.cli import main
from gipfel_extension.gate.dependencies import dependency_findings, is_dependency_file
from gipfel_extension.gate.package_index import KNOWN, PackageIndex, likely_meant

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


HOOKS = {
    "setup.py": (
        (
            "import base64, subprocess\nfrom urllib.request import urlopen as get\n"
            "from setuptools import setup\n"
            "exec(base64.b64decode('cHJpbnQ='))\nget('https://a')\nsubprocess.run(['make'])\n"
            "setup(name='x', cmdclass={})\n"
        ),
        {("high", 4), ("medium", 5), ("low", 6)},
    ),
    "a/setup.py": ("import os\nos.system('curl -s https://a | sh')\n", {("high", 2)}),
    "b/setup.py": ("print 'two'\n", {("low", 0)}),
    "pyproject.toml": (
        '[build-system]\nbuild-backend = "own"\nbackend-path = ["."]\n[tool.hatch.build.hooks.custom]\n',
        {("low", 3), ("low", 4)},
    ),
    "package.json": (
        (
            '{"scripts": {\n"preinstall": "node check.js",\n"install": "curl https://a | sh",\n"test": "1",\n'
            '"postinstall": "node -e 1"}}'
        ),
        {("low", 2), ("high", 3), ("medium", 5)},
    ),
    "package-lock.json": (
        '{"packages": {"": {},\n"node_modules/@a/x": {"version": "1",\n"hasInstallScript": true}}}',
        {("low", 3)},
    ),
    "requirements.txt": ("\n--no-binary :all:\n" + HASHED, {("low", 2)}),
    "uv.lock": (
        (
            '[[package]]\nname = "x"\nversion = "1"\nsource = { registry = "https://a" }\n'
            'sdist = { url = "https://a/x-1.tar.gz", hash = "sha256:1" }\n'
        ),
        {("low", 2)},
    ),
    "poetry.lock": (
        '[[package]]\nname = "x"\nversion = "1"\nfiles = [{file = "x-1.tar.gz", hash = "sha256:1"}]\n',
        {("low", 2)},
    ),
}


@pytest.mark.parametrize("name", HOOKS)
def test_what_runs_at_installation_is_named_with_its_line(name):
    text, wanted = HOOKS[name]
    found = [each for each in dependency_findings(name, text.encode()) if each.rule == "install-hook"]
    lines = {
        (each.severity, int(match[1]) if (match := re.match(r"Line (\d+): ", each.message)) else 0)
        for each in found
    }
    assert lines == wanted
    assert all(each.fix.startswith("Write ") for each in found)


def test_a_usual_setup_py_is_not_accused():
    text = (
        "from setuptools import find_packages, setup\nfrom pathlib import Path\n"
        "exec(open('x/version.py').read())\nreadme = Path('README.md').read_text()\n"
        "setup(name='x', version=__version__, packages=find_packages(), long_description=readme)\n"
    )
    assert dependency_findings("setup.py", text.encode()) == []


def _index(folder: Path) -> PackageIndex:
    """A mirror with listings as PEP 691 and as HTML, two of them cut off."""

    def listing(name: str, content: str, file: str = "index.json") -> None:
        place = folder / "simple" / name / file
        place.parent.mkdir(parents=True)
        place.write_text(content)

    files = [
        {"filename": "numpy-1.0-py3-none-any.whl", "yanked": "breaks\nall"},
        {"filename": "numpy-1.0.tar.gz", "yanked": True},
        {"filename": "numpy-1.1.tar.gz", "yanked": False},
        {"filename": "numpy-1.2rc1.tar.gz"},
        {"filename": "numpy-2.0.tar.gz"},
        {"filename": "numpy-1.0.exe"},
    ]
    listing("numpy", json.dumps({"files": files}), "index.v1_json")
    listing("acme-core", json.dumps({"files": []}))
    pages = '<a href="../torch_x-1.0%2Bcpu-py3-none-any.whl#sha256=1" data-yanked="old">x</a>'
    listing("torch-x", f"<html>{pages}</html>", "index.html")
    listing("broken", pages, "index.html")
    listing("half", '{"files": [{"filename": "half-1.0')
    listing("evil", json.dumps({"files": [], "project-status": {"status": "quarantined"}}))
    return PackageIndex(folder, ["acme-*", "@acme/*"])


def test_withdrawn_releases_are_found_in_a_mirror_of_an_index(tmp_path):
    index = _index(tmp_path)
    text = "numpy==1.0\nnumpy==1.1 ; python_version > '3'\nTorch_X==1.0+cpu\nevil==1\nscipy>=1\n"
    found = {each.rule: each for each in dependency_findings("requirements.txt", text.encode(), index)}
    assert found["yanked"].message == "Line 3: Torch_X 1.0+cpu was withdrawn (yanked): old."
    assert found["quarantined"].severity == "critical"
    (numpy,) = [
        each
        for each in dependency_findings("x.setup", b"cd /\npip install numpy==1.0\n", index)
        if each.rule == "yanked"
    ]
    assert numpy.message == "Line 2: numpy 1.0 was withdrawn (yanked): breaks all."
    assert numpy.fix == "Write numpy==1.1, and lock again."
    assert (index.not_judged, index.not_scanned) == ([], [])
    dependency_findings("requirements.txt", b"broken==1\nhalf==1\nabsent==2\nnumpy==3\n", index)
    lines = "\n".join(index.not_judged)
    for name in ("broken/index.html", "half/index.json", "absent 2", "numpy 3"):
        assert name in lines
    assert "could not be judged" in lines


def test_names_of_the_site_on_public_indexes(tmp_path):
    lock = (
        '[[package]]\nname = "acme-core"\nversion = "9"\nsource = { registry = "HOST/simple" }\n'
        '[[package]]\nname = "acme-site"\nversion = "1"\nsource = { registry = "https://pypi.site/simple" }\n'
    )
    hosts = ("https://pypi" + ".org", "https://registry" + ".npmjs.org")
    npm = {"node_modules/@acme/x": {"resolved": f"{hosts[1]}/@acme/x.tgz", "integrity": "1"}}
    several = "--extra-index-url https://a\n\nacme-x==1\nacme-y @ https://pypi.site/acme_y-1.whl\n"
    files = {
        "uv.lock": (lock.replace("HOST", hosts[0]), ["Line 2"]),
        "package-lock.json": (json.dumps({"packages": npm}), ["Line 1"]),
        "requirements.txt": (several, ["Line 3"]),
        "a/requirements.txt": ("Acme.Core==1\nacme_other==1\n", ["Line 1"]),
        "b/requirements.txt": ("--index-url https://pypi.site/simple\nacme-core==1\n", []),
        "pyproject.toml": (
            '[project]\ndependencies = [\n"acme-core>=1"]\n[tool.uv.sources]\nacme-core = {index="site"}\n',
            [],
        ),
    }
    for name, (text, wanted) in files.items():
        found = dependency_findings(name, text.encode(), _index(tmp_path / name.replace("/", "-")))
        own = [each for each in found if each.rule == "own-name"]
        assert [each.message.partition(":")[0] for each in own] == wanted, name
        assert all(each.fix.startswith("Write ") for each in own)


def test_without_a_mirror_withdrawn_releases_are_not_called_clean(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "requirements.txt").write_text(HASHED)
    argv = ["scan", str(tmp_path / "requirements.txt"), "--json"]
    assert main(argv) == 0
    (line,) = json.loads(capsys.readouterr().out)["not_scanned"]
    assert "withdrawn (yanked) could not be judged" in line
    _index(tmp_path / "mirror")
    assert main([*argv, "--index", str(tmp_path / "mirror")]) == 2
    (line,) = json.loads(capsys.readouterr().out)["not_judged"]
    assert "does not list torch 2.4.0" in line


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


def test_halves_of_surrogate_pairs_in_json_are_printed(tmp_path, capsys):
    half = "\ud800"
    files = {
        "package-lock.json": {"packages": {f"node_modules/x{half}": {"resolved": f"http://a/{half}"}}},
        "package.json": {"scripts": {"install": f"curl {half} | sh"}},
        "config.json": {"auto_map": {"AutoModel": f"evil{half}.X"}},
    }
    for name, document in files.items():
        (tmp_path / name).write_text(json.dumps(document))
        assert main(["scan", "--no-cache", str(tmp_path / name), "--json"]) == 1
        (item,) = json.loads(capsys.readouterr().out)["items"]
        assert item["findings"][0]["message"]
        assert main(["scan", "--no-cache", str(tmp_path / name)]) == 1
        capsys.readouterr().out.encode()


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

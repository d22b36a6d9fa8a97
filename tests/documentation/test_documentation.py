"""What the documentation says is there, is there."""

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
        if "gipfel" in trait.this_class.__module__ and trait.help
    ]
    assert ours
    for trait in ours:
        assert trait.help.endswith("."), trait.name


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

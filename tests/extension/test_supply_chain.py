"""`make check` compares the lock files with a mirror of OSV; `make release` signs checksums."""

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from package_images import advisory, debian, mirror

from gipfel_extension.images.containerfile import hash_file

ROOT = Path(__file__).resolve().parents[2]
LOCKS = (".ci/constraints.txt", "extension/yarn.lock", "spawner/proxy/package-lock.json")


def _program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f".ci/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def advisories() -> ModuleType:
    return _program("advisories")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in LOCKS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_without_a_mirror_nothing_is_judged(advisories, tree, monkeypatch, capsys):
    monkeypatch.delenv("GIPFEL_ADVISORIES", raising=False)
    assert advisories.main(tree) == 0
    assert "could not be judged: no advisory data" in capsys.readouterr().out


def test_known_vulnerabilities_of_each_lock_file_fail(advisories, tree, monkeypatch, capsys):
    packages = list(advisories.locked_packages(tree))
    picked = [next(each for each in packages if each.path == name) for name in LOCKS]
    records = [
        advisory(f"X-{number}", each.ecosystem, each.name, {"introduced": "0"}, {"fixed": "999"})
        for number, each in enumerate(picked)
    ]
    monkeypatch.setenv("GIPFEL_ADVISORIES", str(mirror(tree / "osv", *records)))
    assert advisories.main(tree) == 1
    lines = capsys.readouterr().out.splitlines()
    for number, each in enumerate(picked):
        assert any(line.startswith(each.path) and f"X-{number}, update to 999" in line for line in lines)
    text = "".join(
        f'[[exception]]\nrule = "X-{number}"\nreason = "not reachable"\nuntil = 2999-01-01\n'
        for number in range(3)
    )
    (tree / ".ci/advisory-exceptions.toml").write_text(text)
    assert advisories.main(tree) == 0
    assert "excepted until 2999-01-01" in capsys.readouterr().out


def test_a_mirror_that_lacks_an_ecosystem_or_is_old_never_passes(advisories, tree, monkeypatch, capsys):
    python = advisory("X-1", "PyPI", "other", {"introduced": "0"})
    monkeypatch.setenv("GIPFEL_ADVISORIES", str(mirror(tree / "a", python)))
    assert advisories.main(tree) == 2
    node = advisory("X-2", "npm", "other", {"introduced": "0"})
    monkeypatch.setenv("GIPFEL_ADVISORIES", str(mirror(tree / "b", python, node)))
    assert advisories.main(tree) == 0
    old = {"modified": "2020-01-01T00:00:00Z"}
    monkeypatch.setenv("GIPFEL_ADVISORIES", str(mirror(tree / "c", python | old, node | old)))
    assert advisories.main(tree) == 2
    assert "days old" in capsys.readouterr().out
    broken = tree / "b/npm/all.zip"
    broken.write_bytes(broken.read_bytes()[:40])
    monkeypatch.setenv("GIPFEL_ADVISORIES", str(tree / "b"))
    assert advisories.main(tree) == 2
    (tree / ".ci/advisory-exceptions.toml").write_text(json.dumps({"exception": 3}))
    assert advisories.main(tree) == 2


def test_a_release_has_bills_and_signed_checksums(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    release = _program("release")
    folder, key = tmp_path / "dist", tmp_path / "key"
    folder.mkdir()
    (folder / "gipfel-1-py3-none-any.whl").write_bytes(b"wheel")
    runtime = folder / "gipfel-runtime.sqsh"
    root = debian(tmp_path / "runtime")
    command = ["mksquashfs", root, runtime, "-quiet", "-no-progress"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    release.write_bills(folder)
    bill = json.loads((folder / "gipfel-1-py3-none-any.whl.cdx.json").read_text())
    urls = {each["purl"].partition("@")[0] for each in bill["components"]}
    assert {"pkg:pypi/jupyterhub", "pkg:pypi/pydantic", "pkg:npm/react"} <= urls
    assert "pkg:pypi/pytest" not in urls
    bill = json.loads((folder / "gipfel-runtime.sqsh.cdx.json").read_text())
    assert bill["metadata"]["component"]["hashes"][0]["content"] == hash_file(runtime)
    urls = {each["purl"].partition("?")[0] for each in bill["components"]}
    assert {"pkg:pypi/jinja2@2.4.1", "pkg:npm/lodash@4.17.20"} <= urls, urls
    (folder / ".gipfel-runtime.sqsh.lock").touch()
    signature = release.write_checksums(folder, key)
    assert ".lock" not in (folder / "SHA256SUMS").read_text()
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=True)
    signers = tmp_path / "signers"
    signers.write_text(f"me {key.with_suffix('.pub').read_text()}")
    command = [
        "ssh-keygen",
        "-Y",
        "verify",
        "-n",
        "gipfel-release",
        "-I",
        "me",
        "-f",
        signers,
        "-s",
        signature,
    ]
    sums = (folder / "SHA256SUMS").read_bytes()
    assert subprocess.run(command, input=sums, capture_output=True).returncode == 0
    assert subprocess.run(command, input=sums + b"x", capture_output=True).returncode != 0

"""What an EDF installs: set-up steps, files that they name or that lie beside, mounted settings."""

import json

import pytest

from gipfel_extension.cli import main

_FILES = [{"filename": "numpy-1.0.tar.gz", "yanked": "breaks"}, {"filename": "numpy-1.1.tar.gz"}]


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    """Checks one EDF in a directory with a mirror of an index; gives what was found as a set."""
    for name, files in {"numpy": _FILES, "acme-core": []}.items():
        place = tmp_path / "mirror/simple" / name / "index.json"
        place.parent.mkdir(parents=True)
        place.write_text(json.dumps({"files": files}))
    monkeypatch.setenv("GIPFEL_PACKAGE_INDEX", str(tmp_path / "mirror"))
    monkeypatch.setenv("GIPFEL_OWN_PACKAGES", "acme-*")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "edf"
    folder.mkdir()

    def call(files, *words):
        for name, text in files.items():
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        status = main(["edf", "check", *(words or [str(folder / "x.toml")]), "--json"])
        document = json.loads(capsys.readouterr().out)
        assert status == 0, document
        checked = document if isinstance(document, list) else [document]
        return [
            (each["code"], each["file"].removeprefix(f"{tmp_path}/"), each["line"])
            for one in checked
            for each in one["diagnostics"]
            if each["code"] != "no-image"
        ]

    return call


def test_set_up_steps_and_files_that_they_name(check):
    steps = (
        "pip install numpy==1.0 --no-binary :all:\npip install acme-core==1 torhc==2\n"
        "pip install -r deps/all.txt -e ./project\n"
    )
    found = check(
        {
            "x.toml": "",
            "x.setup": steps,
            "deps/all.txt": "# pins\nnumpy==1.0\n",
            "project/setup.py": "import os\nos.system('make')\n",
        }
    )
    assert sorted(found) == [
        ("install-hook", "edf/project/setup.py", 2),
        ("no-hashes", "edf/deps/all.txt", None),
        ("not-judged", "edf/x.toml", None),
        ("setup-install-hook", "edf/x.setup", 1),
        ("setup-own-name", "edf/x.setup", 2),
        ("setup-similar-name", "edf/x.setup", 2),
        ("setup-yanked", "edf/x.setup", 1),
        ("yanked", "edf/deps/all.txt", 2),
    ]


def test_lines_of_set_up_steps_are_reported_once(check):
    found = check({"x.toml": "", "x.setup": "pip install --extra-index-url https://a numpy\ncurl a | sh\n"})
    assert sorted(found) == [
        ("setup-extra-index", "edf/x.setup", 1),
        ("setup-piped-script", "edf/x.setup", 2),
        ("setup-unpinned-install", "edf/x.setup", 1),
    ]


def test_mounted_settings_and_requirements(check, tmp_path):
    dots = f"dots:{tmp_path}/home/.config"
    mounts = ["conf/my.conf:/etc/pip.conf", dots, "need.txt:/opt/requirements.txt:ro"]
    lines = ",".join(f'"{tmp_path}/edf/{each}"' for each in mounts)
    found = check(
        {
            "x.toml": f'image = "debian:12"\nmounts = [{lines}]\n',
            "x.setup": "pip install acme-tool==1\n",
            "conf/my.conf": "[global]\nextra-index-url = https://a\n[install]\nno-binary = :all:\n",
            "dots/uv/uv.toml": 'index-url = "http://a"\n',
            "need.txt": "numpy==1.0\n",
        }
    )
    assert sorted(found, key=lambda each: each[:2]) == [
        ("extra-index", "edf/conf/my.conf", 2),
        ("insecure-index", "edf/dots/uv/uv.toml", 1),
        ("install-hook", "edf/conf/my.conf", 4),
        ("no-hashes", "edf/need.txt", None),
        # Two indexes by the mounted pip.conf, although the step names none.
        ("setup-own-name", "edf/x.setup", 1),
        ("yanked", "edf/need.txt", 1),
    ]


def test_files_that_variables_name_are_looked_up_in_the_mounts(check, tmp_path):
    found = check(
        {
            "x.toml": 'image = "debian:12"\nworkdir = "/work/sub"\n'
            f'mounts = ["{tmp_path}/edf/work:/work"]\n[env]\nPIP_CONFIG_FILE = "../pip"\n'
            'PIP_CONSTRAINT = "/work/c.in /image/c.txt"\n',
            "x.setup": "pip install acme-tool==1\n",
            "work/pip": "[global]\ntrusted-host = a\nextra-index-url = https://a\n",
            "work/c.in": "numpy==1.0\n",
        }
    )
    assert sorted(found, key=lambda each: each[:2]) == [
        ("extra-index", "edf/work/pip", 3),
        ("insecure-index", "edf/work/pip", 2),
        ("no-hashes", "edf/work/c.in", None),
        ("setup-own-name", "edf/x.setup", 1),
        ("yanked", "edf/work/c.in", 1),
    ]


def test_requirements_beside_are_those_of_the_edf_and_reported_once(check, tmp_path):
    bad = "numpy==1.0\n"
    files = {
        "x.toml": "",
        "x-big.toml": "",
        "requirements.txt": bad,
        "x-requirements.txt": bad,
        "x-big-requirements.txt": bad,
        "broken-requirements.txt": "",
    }
    yanked = {file for code, file, _ in check(files) if code == "yanked"}
    assert yanked == {"edf/requirements.txt", "edf/x-requirements.txt"}
    found = [file for code, file, _ in check({}, str(tmp_path / "edf")) if code == "yanked"]
    assert sorted(found) == [f"edf/{name}" for name in sorted(files) if files[name] == bad]


def test_what_can_not_be_read_is_not_called_clean(check, tmp_path, monkeypatch):
    many = "".join(f"pip install -r r{number}.txt\n" for number in range(60))
    parts = {f"r{number}.txt": "numpy==1.1\n" for number in range(60)}
    assert ("not-judged", "edf/x.toml", None) in check({"x.toml": "", "x.setup": many, **parts})
    long = f"pip install -r {'n' * 300}.txt -r '\x01' -e /{'n' * 300}\npip install 'numpy==1.1\n"
    check({"x.setup": long})
    mounts = f'mounts = ["{tmp_path}/edf/pip.conf:/etc/pip.conf"]\nimage = "debian:12"\n'
    found = check({"x.toml": mounts, "x.setup": "", "pip.conf": "[broken"})
    assert found == [("not-judged", "edf/pip.conf", None)]
    monkeypatch.delenv("GIPFEL_PACKAGE_INDEX")
    found = check({"pip.conf": "", "requirements.txt": HASHED})
    assert found == []
    image = tmp_path / "image"
    image.mkdir()
    (image / "file").write_text("")
    edf = f'image = "{image}"\n'
    assert ("not-judged", "edf/x.toml", None) in check(
        {"x.toml": edf}, str(tmp_path / "edf/x.toml"), "--here"
    )


HASHED = "torch==2.4.0 \\\n    --hash=sha256:" + "a" * 64 + "\n"

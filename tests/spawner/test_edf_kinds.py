"""The EDFs in ``data/edf``: each gives the diagnostics in its comments, and no others."""

import re
from pathlib import Path

import pytest

from gipfel_cluster.edf import check_edf

FOLDER = Path(__file__).parent / "data/edf"
ENVIRONMENT = {
    "HOME": "/users/me",
    "PATH": "/usr/bin",
    "SCRATCH": "/capstor/scratch/me",
    "USER": "me",
    "TEAM": "a",
    "EDF_PATH": str(FOLDER),
}


def said(text, word):
    return re.findall(rf"^# {word}: *(.*?) *$", text, re.MULTILINE)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_a_kind_of_edf_gives_what_it_says(path):
    text = path.read_text()
    (dialect,) = said(text, "dialect") or ["ce"]
    checked = check_edf(str(path), environment=ENVIRONMENT, directory=FOLDER, dialect=dialect)
    found = [f"{each.severity} {each.code} {each.key}".strip() for each in checked.diagnostics]
    assert sorted(found) == sorted(said(text, "expect")), [str(each) for each in checked.diagnostics]
    assert checked.valid == (not any(each.startswith("error") for each in found))
    for each in checked.diagnostics:
        assert all(fix in each.fix for fix in said(text, "fix"))
        # Each key, and what it says of the file is on a line of it.
        assert each.fix
        assert each.line is None or path.read_text().split("\n")[each.line - 1].strip()


def test_what_each_dialect_makes_of_a_value():
    def loaded(name, dialect):
        return check_edf(name, environment=ENVIRONMENT, directory=FOLDER, dialect=dialect).edf

    sarus = loaded("sarus", "sarus")
    assert sarus.env == {"NESTED": "/capstor/scratch/me", "PART": "capstor/scratch/me", "NAME": "me"}
    assert [str(each) for each in sarus.mounts[:1]] == ["/a:/a:ro+rslave"]
    assert [each.source for each in sarus.mounts[3:]] == ["/capstor/scratch", "/capstor/scratch/me/x"]
    assert sarus.annotations["com.sarus.perfmon"] == "true"
    assert sarus.annotations["com.mine.count"] == "3"
    assert [str(each) for each in loaded("mount-special", "ce").mounts] == [
        "tmpfs:/x",
        "tmpfs:/y:x-create=dir+size=10G+mode=1777",
        "umount:/z:x-detach",
    ]
    relative = loaded("docs-relative", "ce")
    assert [str(each) for each in relative.mounts] == [
        f"{FOLDER}/data:{FOLDER}/data",
        f"{FOLDER}/here:{FOLDER}/here",
    ]
    later = loaded("job-variables", "ce")
    assert later.env == {"RUN": "${SLURM_JOB_ID}", "PORT": "29500"}
    assert loaded("docs-several-bases", "ce").env["NCCL_DEBUG"] == "INFO"


def test_in_a_job_its_variables_are_asked_for():
    environment = ENVIRONMENT | {"SLURM_JOB_ID": "7"}
    checked = check_edf("job-variables", environment=environment, directory=FOLDER)
    assert [(each.severity, each.code) for each in checked.diagnostics] == [("error", "unknown-variable")]

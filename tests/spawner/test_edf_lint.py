"""Each rule finds its mistake and nothing in what is right; the page about EDFs lists every rule."""

import json
import string
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gipfel_cluster.edf
from gipfel_cluster.edf.dialects import DIALECTS
from gipfel_cluster.edf.lint import RULES
from gipfel_cluster.edf.resolve import resolve_text
from gipfel_cluster.edf.toml_text import edf_toml
from gipfel_cluster.edf.written import WrittenEdf, schema_text

PAGE = Path(gipfel_cluster.edf.__file__).parent
OFI = "[annotations.com.hooks.aws_ofi_nccl]\n"
SSH = '[annotations.com.hooks.ssh]\nenabled = "true"\n'


def found(text, dialect="ce"):
    result = resolve_text(
        text, file="x.toml", environment={"HOME": "/home/me"}, directory=Path("/"), dialect=dialect
    )
    return {each.code: each for each in result.diagnostics}


MISTAKES = [
    ("unbraced-variable", "ce", '[env]\nA = "$USER"', '[env]\nA = "${HOME} $ $5"'),
    ("placeholder", "ce", 'image = "CHANGE_THIS"', 'image = "/changes/this.sqsh"'),
    ("placeholder", "ce", 'mounts = ["/scratch/<user>:/x"]', 'mounts = ["/scratch/user:/x"]'),
    ("placeholder", "ce", 'workdir = "/path/to/work"', 'workdir = "/my/path/tools"'),
    ("secret", "ce", '[env]\nHF_TOKEN = "abc"', '[env]\nHF_TOKEN = "${HOME}"'),
    ("secret", "ce", '[env]\nX = "hf_abcdefghijklmnopqrstuvwxyz"', '[env]\nX = "hf_hub"'),
    ("secret", "ce", '[env]\nWANDB_API_KEY = "1"', '[env]\nTOKENIZERS_PARALLELISM = "1"\nMAX_TOKENS = "9"'),
    ("hidden-gpus", "ce", '[env]\nNVIDIA_VISIBLE_DEVICES = "void"', '[env]\nNVIDIA_VISIBLE_DEVICES = "all"'),
    ("bound-variable", "ce", '[env]\nSLURM_MPI_TYPE = "pmix"', '[env]\nSLURMY = "1"\nHOMES = "1"'),
    ("bound-variable", "ce", '[env]\nHOME = "/x"', '[env]\nA = "${HOME}"'),
    ("image-is-host", "ce", 'image = "/"', 'image = "/images/root"'),
    ("image-is-host", "ce", 'image = "/."', 'image = ""'),
    ("hidden-kernel", "ce", 'mounts = ["/a:/proc"]', 'mounts = ["/a:/process", "/dev/shm:/dev/shm"]'),
    ("hidden-kernel", "ce", 'mounts = ["/a:/sys/class"]', 'mounts = ["/sys:/sys", "/a:/dev/fuse"]'),
    ("image-path", "ce", 'image = "x.sqsh"', 'image = "./x.sqsh"'),
    ("musl", "ce", 'image = "python:3.12-alpine"', 'image = "alpines/python:3.12"'),
    ("musl", "ce", 'image = "alpine"', 'image = "debian:12"'),
    ("home-mount", "ce", 'mounts = ["${HOME}/:/x"]', 'mounts = ["${HOME}/data:/x"]'),
    ("same-destination", "ce", 'mounts = ["/a:/x", "/b:/x/"]', 'mounts = ["/a:/x", "/a:/x", "/b:/y"]'),
    ("hidden-system", "ce", 'mounts = ["/opt/usr:/usr"]', 'mounts = ["/opt/usr:/usr/local"]'),
    ("hook-prefix", "ce", '[annotations.hooks.cxi]\nenabled = "true"', OFI + 'enabled = "true"'),
    ("hook-prefix", "ce", '[annotations.com.hooks]\ncom.hooks.cxi.enabled = "true"', ""),
    ("hook-name", "ce", '[annotations.com.hooks.cxl]\nenabled = "true"', OFI + 'variant = "cuda12"'),
    ("hook-name", "ce", '[annotations.com.hooks.cxi]\nenable = "true"', '[annotations.com.mine]\na = "1"'),
    ("hook-value", "ce", '[annotations.com.hooks.cxi]\nenabled = "True"', OFI + 'enabled = "false"'),
    ("variant-without-hook", "ce", OFI + 'variant = "cuda12"', OFI + 'variant = "cuda12"\nenabled = "true"'),
    ("unknown-variant", "ce", OFI + 'variant = "cuda99"', OFI + 'variant = "cuda-dl"'),
    ("forced-network", "ce", '[env]\nNCCL_NET = "AWS Libfabric"', '[env]\nNCCL_NET = "Socket"'),
    ("hook-needs-writable", "ce", "writable = false\n" + SSH, "writable = true\n" + SSH),
    ("ssh-without-key", "ce", SSH + 'authorize_ssh_key = "key.pub"', SSH + 'authorize_ssh_key = "/k.pub"'),
    ("sarus-one-field", "sarus", 'mounts = ["/a"]', 'mounts = ["/a:/a"]'),
    ("sarus-split", "sarus", 'mounts = ["${D:-/x}:/y"]', 'mounts = ["${HOME}/d:/y"]'),
    ("sarus-image", "sarus", 'image = "./x.sqsh"', 'image = "debian:12"'),
    ("ce-only-sqsh", "pyxis", 'mounts = ["/a:/b:sqsh"]', 'mounts = ["/a:/b:ro"]'),
    ("sarus-only-devices", "ce", 'devices = ["/dev/x"]', "devices = []"),
    ("ce-only-hook", "sarus", SSH, OFI + 'enabled = "true"'),
    ("pyxis-annotations", "pyxis", OFI + 'enabled = "true"', ""),
    ("pyxis-unset", "pyxis", '[env]\nA = ""', '[env]\nA = "1"'),
    ("pyxis-separator", "pyxis", 'mounts = ["/a,b:/c"]', 'mounts = ["/a-b:/c"]'),
]


@pytest.mark.parametrize(("code", "dialect", "wrong", "right"), MISTAKES)
def test_a_rule_finds_its_mistake_and_nothing_else(code, dialect, wrong, right):
    diagnostic = found(wrong, dialect)[code]
    rule = next(each for each in RULES if each.code == code)
    assert diagnostic.severity == rule.severity
    assert diagnostic.line
    assert diagnostic.key
    assert diagnostic.fix
    assert ": " in diagnostic.message, "what it causes"
    assert "{" not in diagnostic.message.replace("${", "")
    assert code not in found(right, dialect)


def test_every_rule_is_tried():
    assert {each[0] for each in MISTAKES} == {rule.code for rule in RULES}
    assert len({rule.code for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(
    "rule", [each for each in RULES if each.dialects != DIALECTS], ids=lambda each: each.code
)
def test_a_rule_of_a_dialect_says_nothing_in_another(rule):
    wrong = next(each[2] for each in MISTAKES if each[0] == rule.code)
    for dialect in DIALECTS:
        assert (rule.code in found(wrong, dialect)) == (dialect in rule.dialects)


def test_a_secret_is_not_repeated():
    assert "hunter2" not in str(found('[env]\nMY_PASSWORD = "hunter2"')["secret"])


class _Capitals(string.Formatter):
    """Puts the name of a word, in capitals, where the word would be."""

    def get_value(self, key, args, kwargs):
        return str(key).upper()

    def convert_field(self, value, conversion):
        return f"'{value}'" if conversion == "r" else value


def rules_table() -> str:
    rows = ["| code | dialects | what is wrong | what it causes | what to do |", "|---|---|---|---|---|"]
    for rule in RULES:
        code = f"`{rule.code}`" + (" (error)" if rule.severity == "error" else "")
        where = "all" if rule.dialects == DIALECTS else ", ".join(rule.dialects)
        texts = [_Capitals().format(text) for text in (rule.reason, rule.consequence, rule.fix)]
        rows.append("| " + " | ".join([code, where, *texts]) + " |")
    return "\n".join(rows) + "\n"


def test_the_page_lists_every_rule():
    assert rules_table() in (PAGE / "README.md").read_text()


def test_the_schema_is_that_of_the_model():
    assert (PAGE / "schema.json").read_text() == schema_text()
    schema = json.loads(schema_text())
    assert list(schema["properties"]) == list(WrittenEdf.model_fields)
    assert len(schema["properties"]) == 9
    for key, each in schema["properties"].items():
        assert each["description"]
        assert each["title"]
        assert "default" in each
        for example in each.get("examples", ()):
            model = WrittenEdf.model_validate({key: example}, strict=True)
            # What stands in a form as an example must be what an EDF takes without a word.
            text = edf_toml(model.model_dump(exclude_defaults=True))
            result = resolve_text(
                text, file="x.toml", environment={"SCRATCH": "/scratch/me"}, directory=Path("/"), dialect="ce"
            )
            assert {each.code for each in result.diagnostics} <= {"base", "sarus-only-devices"}
        assert "examples" in each or each["type"] == "boolean"
    paths = {key: each["x-path"] for key, each in schema["properties"].items() if "x-path" in each}
    assert paths == {
        "base_environment": "edf",
        "image": "image",
        "workdir": "container",
        "mounts": "mount",
    }


def test_the_program_prints_the_file_of_the_schema():
    argv = [sys.executable, "-m", "gipfel_cluster.edf", "schema"]
    done = subprocess.run(argv, capture_output=True, timeout=60, check=True)
    assert done.stdout == (PAGE / "schema.json").read_bytes()


def test_the_model_takes_what_the_schema_describes():
    WrittenEdf.model_validate(
        tomllib.loads('mounts = ["/a"]\nannotations.com.hooks.cxi.enabled = "true"\n[env]\nA = "1"'),
        strict=True,
    )

"""Each rule finds its mistake, and nothing in correct EDFs; the README lists every rule."""

import json
import string
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import gipfel_cluster.edf
from gipfel_cluster.edf.draft import edf_toml
from gipfel_cluster.edf.model import DIALECTS, EdfFile, schema_text
from gipfel_cluster.edf.resolve import RULES, resolve_text

PAGE = Path(gipfel_cluster.edf.__file__).parent
OFI = "[annotations.com.hooks.aws_ofi_nccl]\n"
NET = '[env]\nNCCL_NET = "AWS Libfabric"\n'
SSH = '[annotations.com.hooks.ssh]\nenabled = "true"\n'
GATE = "[annotations.com.gipfel.network]\n"


def found(text, dialect="ce"):
    file = text[2:] if text.startswith("# x.") else "x.toml"
    result = resolve_text(
        text,
        file=file,
        environment={"HOME": "/home/me", "PATH": "/bin"},
        directory=Path("/"),
        dialect=dialect,
    )
    return {each.code: each for each in result.diagnostics}


MISTAKES = [
    ("unbraced-variable", "ce", '[env]\nA = "$USER"', '[env]\nA = "${HOME} $ $5"'),
    ("placeholder", "ce", 'image = "CHANGE_THIS"', 'image = "/changes/this.sqsh"'),
    ("placeholder", "ce", 'mounts = ["/scratch/<user>:/x"]', 'mounts = ["/scratch/user:/x"]'),
    ("placeholder", "ce", 'workdir = "/path/to/work"', 'workdir = "/my/path/tools"'),
    ("placeholder", "ce", 'image = "/images/{arch}/x.sqsh"', 'image = "/images/${HOME}/x.sqsh"'),
    ("placeholder", "ce", 'mounts = ["/users/{{user}}:/x"]', '[env]\nLOG = "{time} {level}"'),
    ("placeholder", "ce", 'workdir = "/@ROOT@/x"', 'image = "me@registry.example#a/b"'),
    ("placeholder", "ce", 'workdir = "/home/%USER%"', '[env]\nNCCL_DEBUG_FILE = "/tmp/nccl.%h.%p"'),
    ("placeholder", "ce", 'workdir = "/users/USERNAME"', 'workdir = "/users/${USERNAME:-me}"'),
    ("placeholder", "ce", 'workdir = "/your/path"', 'workdir = "/yours/path"'),
    ("secret", "ce", '[env]\nHF_TOKEN = "abc"', '[env]\nHF_TOKEN = "${HOME}"'),
    ("secret", "ce", '[env]\nX = "hf_abcdefghijklmnopqrstuvwxyz"', '[env]\nX = "hf_hub"'),
    ("secret", "ce", '[env]\nWANDB_API_KEY = "1"', '[env]\nTOKENIZERS_PARALLELISM = "1"\nMAX_TOKENS = "9"'),
    ("hidden-gpus", "ce", '[env]\nNVIDIA_VISIBLE_DEVICES = "void"', '[env]\nNVIDIA_VISIBLE_DEVICES = "all"'),
    ("bound-variable", "ce", '[env]\nSLURM_MPI_TYPE = "pmix"', '[env]\nSLURMY = "1"\nHOMES = "1"'),
    ("bound-variable", "ce", '[env]\nHOME = "/x"', '[env]\nA = "${HOME}"'),
    ("extra-index", "ce", '[env]\nPIP_EXTRA_INDEX_URL = "https://a"', '[env]\nPIP_INDEX_URL = "https://a"'),
    (
        "insecure-index",
        "ce",
        '[env]\nPIP_INDEX_URL = "http://a"',
        '[env]\nPIP_INDEX_URL = "http://localhost"',
    ),
    ("unsafe-load", "ce", '[env]\nTORCH_FORCE_NO_WEIGHTS_ONLY_LOAD = "1"', '[env]\nTORCH_HOME = "1"'),
    ("image-is-host", "ce", 'image = "/"', 'image = "/images/root"'),
    ("image-is-host", "ce", 'image = "/."', 'image = ""'),
    ("hidden-kernel", "ce", 'mounts = ["/a:/proc"]', 'mounts = ["/a:/process", "/dev/shm:/dev/shm"]'),
    ("hidden-kernel", "ce", 'mounts = ["/a:/sys/class"]', 'mounts = ["/sys:/sys", "/a:/dev/fuse"]'),
    ("image-path", "ce", 'image = "x.sqsh"', 'image = "./x.sqsh"'),
    ("image-path", "ce", 'image = "~/x.sqsh"', 'image = "$HOME/x.sqsh"'),
    ("image-path", "ce", 'image = "file:///x.sqsh"', 'image = "<your>/x.sqsh"'),
    (
        "host-search-path",
        "ce",
        'image = "ubuntu"\n[env]\nPATH = "${PATH}:/custom/bin"',
        'image = "/x.sqsh"\n[env]\nPATH = "${PATH}:/custom/bin"',
    ),
    (
        "host-search-path",
        "pyxis",
        'image = "ubuntu"\n[env]\nLD_LIBRARY_PATH = "/x:${LD_LIBRARY_PATH:-}"',
        'image = "ubuntu"\n[env]\nPATH = "/bin"\nA = "${PATH}"',
    ),
    ("no-image", "ce", 'workdir = "/tmp"', '[env]\nimage = "/x.sqsh"'),
    ("no-image", "ce", 'image = ""', 'image = "${HOME}/x.sqsh"'),
    ("image-name", "ce", 'image = "ubuntu:24.04 "', 'image = "$oauthtoken@nvcr.io#nvidia/pytorch:25.11-py3"'),
    ("image-name", "ce", 'image = "alpine: *19"', 'image = "nvcr.io/nvidia/pytorch:25.11-py3"'),
    ("image-name", "ce", 'image = "ubuntu@sha256:12"', f'image = "ubuntu@sha256:{"a" * 64}"'),
    ("image-name", "ce", 'image = "https://nvcr.io/a/b"', 'image = "me@registry.example:5000#a/b"'),
    ("image-name", "ce", 'image = "docker://ubuntu"', 'image = "CHANGE_ME"'),
    ("image-name", "ce", 'image = "dockerd://mine:1"', 'image = "ubuntu\u200b"'),
    ("image-name", "pyxis", 'image = "podman://mine:1"', 'image = "dockerd://mine:1"'),
    ("invisible-character", "ce", 'image = "ubuntu\u200b:24.04"', '[env]\nA = "\u00a0"'),
    ("key-in-table", "ce", '[env]\nimage = "/x.sqsh"', '[env]\nIMAGE = "/x.sqsh"'),
    ("key-in-table", "ce", '[annotations]\nworkdir = "/x"', '[annotations]\nmine.workdirs = "/x"'),
    ("key-in-table", "ce", OFI + 'enabled = "true"\nimage = "/x"', OFI + 'enabled = "true"'),
    ("musl", "ce", 'image = "python:3.12-alpine"', 'image = "alpines/python:3.12"'),
    (
        "musl",
        "ce",
        'image = "alpine:3.19"',
        'image = "alpine:3.19"\nenv.ENROOT_SLURM_HOOK = "0"\nannotations.com.hooks.cxi.enabled = "false"',
    ),
    ("musl", "ce", 'image = "alpine"', 'image = "debian:12"'),
    ("home-mount", "ce", 'mounts = ["${HOME}/:/x"]', 'mounts = ["${HOME}/data:/x"]'),
    ("home-mount", "ce", 'mounts = ["/users"]\n' + SSH, 'mounts = ["/users"]'),
    ("home-mount", "ce", 'mounts = ["/home:/home"]\n' + SSH, 'mounts = ["/home:/host"]\n' + SSH),
    ("covered-mount", "ce", 'mounts = ["/a:/x/y", "/b:/x"]', 'mounts = ["/b:/x", "/a:/x/y"]'),
    ("squashfs-file", "ce", 'mounts = ["/x.sqsh:/d"]', 'mounts = ["/x.sqsh:/d:sqsh", "/y.sqsh"]'),
    ("conflicting-flags", "ce", 'mounts = ["/a:/b:ro+rw"]', 'mounts = ["/a:/b:ro+nosuid"]'),
    ("mount-flag", "ce", 'mounts = ["/a:/b:readonly"]', 'mounts = ["/a:/b:ro+relatime+lazytime+nofail"]'),
    ("mount-flag", "ce", 'mounts = ["/a:/b:size=1G"]', 'mounts = ["tmpfs:/b:x-create=dir+size=10G"]'),
    ("same-destination", "ce", 'mounts = ["/a:/x", "/b:/x/"]', 'mounts = ["/a:/x", "/a:/x", "/b:/y"]'),
    ("hidden-system", "ce", 'mounts = ["/opt/etc://etc"]', 'mounts = ["/opt/etc:/opt//etc"]'),
    ("hidden-system", "ce", 'mounts = ["/opt/usr:/usr"]', 'mounts = ["/opt/usr:/usr/local"]'),
    ("hook-prefix", "ce", '[annotations.hooks.cxi]\nenabled = "true"', OFI + 'enabled = "true"'),
    ("hook-prefix", "ce", '[annotations.com.hooks]\ncom.hooks.cxi.enabled = "true"', ""),
    ("hook-name", "ce", '[annotations.com.hooks.cxl]\nenabled = "true"', OFI + 'variant = "cuda12"'),
    ("hook-name", "ce", '[annotations.com.hooks.cxi]\nenable = "true"', '[annotations.com.mine]\na = "1"'),
    ("hook-prefix", "ce", '[annotations]\ncom.cxi.enabled = "true"', '[annotations]\ncom.cxi.mine = "true"'),
    ("hook-prefix", "ce", '[annotations]\nCom.Hooks.cxi.enabled = "true"', '[annotations]\nCom.mine = "1"'),
    ("hook-name", "ce", '[annotations]\ncom.hooks.nccl.enabled = "true"', ""),
    ("hook-name", "ce", '[annotations]\ncom.hooks.unknown.enabled = "true"', ""),
    ("hook-name", "ce", '[annotations]\ncom.pyxis.entrypoint-log = "true"', SSH),
    ("hook-value", "ce", '[annotations]\ncom.pyxis.entrypoint_log = "1"', SSH),
    ("hook-setting", "ce", '[annotations]\ncom.hooks.netstack.source = "Artifact"', SSH),
    ("hook-setting", "ce", SSH + 'port = "abc"', SSH + 'port = "15263"'),
    ("hook-setting", "ce", SSH + 'port = "99999"', '[annotations]\ncom.hooks.netstack.source = "host"'),
    ("hook-value", "ce", '[annotations.com.hooks.cxi]\nenabled = "True"', OFI + 'enabled = "false"'),
    ("variant-without-hook", "ce", OFI + 'variant = "cuda12"', OFI + 'variant = "cuda12"\nenabled = "True"'),
    ("variant-without-hook", "ce", OFI + 'variant = "cuda12"', OFI + 'variant = "cuda12"\nenabled = "true"'),
    ("unknown-variant", "ce", OFI + 'variant = "cuda99"', OFI + 'variant = "cuda-dl"'),
    ("forced-network", "ce", NET, '[env]\nNCCL_NET = "Socket"'),
    ("forced-network", "ce", NET, NET + 'NCCL_NET_PLUGIN = "ofi"'),
    ("forced-network", "ce", NET, NET + 'LD_LIBRARY_PATH = "/opt/aws-ofi-nccl/lib"'),
    ("forced-network", "ce", NET, NET + 'B = "1"\n[annotations]\ncom.hooks.cxi.enabled = "false"'),
    ("forced-network", "ce", NET, 'mounts = ["/opt/libnccl-net.so:/usr/lib/libnccl-net-ofi.so"]\n' + NET),
    ("hook-needs-writable", "ce", "writable = false\n" + SSH, "writable = true\n" + SSH),
    ("ssh-without-key", "ce", SSH + 'authorize_ssh_key = "key.pub"', SSH + 'authorize_ssh_key = "/k.pub"'),
    ("network-gate", "ce", GATE + 'allow = "https://example.org"', GATE + 'allow = "example.org *.hf.co"'),
    ("network-gate", "ce", GATE + 'mode = "warn"', GATE + 'allow = ""\nmode = "warn"'),
    ("network-gate", "ce", GATE + 'allowed = "example.org"', GATE + 'allow = "example.org"'),
    ("sarus-one-field", "sarus", 'mounts = ["/a"]', 'mounts = ["/a:/a"]'),
    ("sarus-split", "sarus", 'mounts = ["${D:-/x}:/y"]', 'mounts = ["${HOME}/d:/y"]'),
    ("sarus-image", "sarus", 'image = "./x.sqsh"', 'image = "debian:12"'),
    ("ce-only-sqsh", "pyxis", 'mounts = ["/a:/b:sqsh"]', 'mounts = ["/a:/b:ro"]'),
    ("sarus-only-devices", "ce", 'devices = ["/dev/x"]', "devices = []"),
    ("ce-only-hook", "sarus", SSH, OFI + 'enabled = "true"'),
    ("pyxis-annotations", "pyxis", OFI + 'enabled = "true"', ""),
    ("pyxis-unset", "pyxis", '[env]\nA = ""', '[env]\nA = "1"'),
    (
        "pyxis-host-path",
        "pyxis",
        'image = "a"\n[env]\nPATH = "${PATH}:/x"',
        'image = "a"\n[env]\nA = "${PATH}"',
    ),
    ("sarus-no-image", "sarus", 'workdir = "/x"', 'image = "debian:12"'),
    ("sarus-extension", "sarus", "# x.TOML", "# x.toml"),
    ("sarus-characters", "sarus", '[env]\nA = "a;b"', '[env]\nA = "a,b"'),
    ("sarus-characters", "sarus", "workdir = '/a\"b'", "workdir = '/a\\\"b'"),
    (
        "sarus-cxi",
        "sarus",
        OFI + 'enabled = "true"',
        OFI + 'enabled = "true"\n[annotations.com.hooks.cxi]\nenabled = "true"',
    ),
    ("sarus-image", "sarus", 'image = "nvcr.io/${A:-b}"', 'image = "docker://debian:12"'),
    ("pyxis-separator", "pyxis", 'mounts = ["/a,b:/c"]', 'mounts = ["/a-b:/c"]'),
]


@pytest.mark.parametrize(("code", "dialect", "wrong", "right"), MISTAKES)
def test_a_rule_finds_its_mistake_and_nothing_else(code, dialect, wrong, right):
    diagnostic = found(wrong, dialect)[code]
    rule = next(each for each in RULES if each.code == code)
    assert diagnostic.severity == rule.severity
    # What is said of a whole file has neither.
    assert bool(diagnostic.line) == bool(diagnostic.key)
    assert diagnostic.fix
    assert ": " in diagnostic.message, "what it causes"
    assert "{" not in diagnostic.message.replace("${", "") or code == "placeholder"
    assert code not in found(right, dialect)


def test_every_rule_is_tried():
    assert {each[0] for each in MISTAKES} == {rule.code for rule in RULES}
    assert len({rule.code for rule in RULES}) == len(RULES)


@pytest.mark.parametrize(
    "rule", [each for each in RULES if each.dialects != DIALECTS], ids=lambda each: each.code
)
def test_a_rule_of_a_dialect_reports_nothing_in_another(rule):
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
    assert list(schema["properties"]) == list(EdfFile.model_fields)
    for key, each in schema["properties"].items():
        assert each["description"]
        assert each["title"]
        assert "default" in each
        for example in each.get("examples", ()):
            model = EdfFile.model_validate({key: example}, strict=True)
            # What stands in a form as an example must be what an EDF takes without a word.
            text = edf_toml(model.model_dump(exclude_defaults=True))
            result = resolve_text(
                text, file="x.toml", environment={"SCRATCH": "/scratch/me"}, directory=Path("/"), dialect="ce"
            )
            assert {each.code for each in result.diagnostics} <= {"base", "sarus-only-devices", "no-image"}
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
    EdfFile.model_validate(
        tomllib.loads('mounts = ["/a"]\nannotations.com.hooks.cxi.enabled = "true"\n[env]\nA = "1"'),
        strict=True,
    )

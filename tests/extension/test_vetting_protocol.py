"""Protocols: Gipfel's and vetnode's load; invalid ones are reported with their line, and never pass."""

import random
import time
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from gipfel_cluster.model import GipfelError
from gipfel_extension.training.papermill.values import read_mapping
from gipfel_extension.vetting.check import BUILT_IN, check_class, check_types
from gipfel_extension.vetting.model import Scope, Verdict
from gipfel_extension.vetting.one_check import group_probe, is_group, time_limit
from gipfel_extension.vetting.protocol_files import (
    SHIPPED,
    load_protocol,
    parse_protocol,
    shipped_protocols,
)
from gipfel_extension.vetting.threshold import quantity, with_unit

ROOT = Path(__file__).resolve().parents[2]
VETNODE = """\
name: "before a large run"
scheduler: slurm            # or standalone
evals:
- name: gpu
  type: vetnode.evaluations.gpu_eval.GPUEval
  max_temp: 30              # degrees Celsius
  max_used_memory: 0.2      # fraction
- name: environment
  type: vetnode.evaluations.env_var_eval.EnvVarEval
  expected: {NCCL_NET: "AWS Libfabric", RANK: null}
- name: cuda
  type: vetnode.evaluations.cuda_eval.CUDAEval
  cuda_home: /usr/local/cuda
  requirements: ["cuda-python==12.*", "numpy"]
- name: within the node
  type: vetnode.evaluations.nccl_lib_eval.NcclLibEval
  topology: intranode
  payload: 8 GB
  method: allreduce
  min_bandwidth: 250 GB
  warmup: {payload: 256 MB, runs: 3}
- name: network
  type: vetnode.evaluations.internet_access.InternetAccessEval
  host: 127.0.0.1
  port: 53
  timeout: 3
"""

IN_CIRCULATION = """\
name: Image Vetting
scheduler: slurm
pip:
   index_url: "https://packages.example.org/simple"
evals:
- {name: internode, type: vetnode.evaluations.nccl_lib_eval.NcclLibEval, topology: internode,
   scheduler: slurm, payload: 8 GB, method: allreduce, min_bandwidth: 15 GB/s,
   warmup: {payload: 256 MB, runs: 2}, requirements: ["cuda-python", "numpy"]}
- {name: full, type: vetnode.evaluations.nccl_lib_eval.NcclLibEval, payload: 8 GB, min_bandwidth: 50 GB/s}
- {name: rccl, type: vetnode.evaluations.rccl_lib_eval.RcclLibEval, requirements: ["hip-python~=7.0.2"]}
- name: torch
  type: vetnode.evaluations.nccl_pytorch_eval.NcclPytorchEval
  scheduler: slurm
  method: roundrobin
  min_bandwidth: 50 GB/s
  requirements:
  - ['torch', '--index-url', 'https://download.pytorch.org/whl/cu130']
  - numpy
"""

LISTING_3 = """\
name: "ML Training Node Vetting"
evals:
  - name: "Check GPU"
    type: vetnode.evaluations.gpu_eval.GPUEval
    max_temp: 30
    max_used_memory: 0.2
  - name: "NCCLBandwidth"
    type: vetnode.evaluations.nccl_eval.NCCEval
    min_bandwidth: 90.0
    requirements:
      - torch
  - name: "CudaKernel"
    type: vetnode.evaluations.cuda_eval.CUDAEval
    requirements:
      - cuda-python
      - numpy
"""


def test_vetnodes_protocol_loads_as_it_is():
    protocol = parse_protocol(VETNODE)
    assert not protocol.problems()
    assert protocol.name == "before a large run"
    assert [(check.name, check.type, check.scope) for check in protocol.checks] == [
        ("gpu: temperature", "temperature", "gpu"), ("gpu: gpu_memory", "gpu_memory", "gpu"),
        ("environment", "environment", "node"), ("cuda: matmul", "matmul", "gpu"),
        ("cuda: libraries", "libraries", "node"), ("within the node", "collective", "node"),
        ("network", "internet", "node"),
    ]  # fmt: skip
    of = {check.name: check for check in protocol.checks}
    # vetnode refuses a temperature that equals the limit.
    assert of["gpu: temperature"].threshold.at_most == 29.5
    assert of["environment"].parameters["expected"] == {"NCCL_NET": "AWS Libfabric", "RANK": None}
    assert of["within the node"].threshold.at_least == 250 * 2**30
    assert group_probe(of["within the node"]).request["payload"] == 8 * 2**30
    assert all("is ignored" in note for note in of["cuda: matmul"].notes)
    assert len(of["cuda: matmul"].notes) == 2
    assert of["cuda: matmul"].requirements == ()
    assert "scheduler" in protocol.notes[0]


def test_protocols_in_circulation_and_the_papers_names_load():
    protocol = parse_protocol(IN_CIRCULATION)
    assert not protocol.problems()
    assert [check.scope for check in protocol.checks] == [Scope.PAIR, Scope.ALL, Scope.ALL, Scope.PAIR]
    assert protocol.checks[0].threshold.at_least == 15 * 2**30
    assert protocol.checks[3].parameters["method"] == "send"
    assert protocol.checks[3].requirements == ("torch",)
    assert [group_probe(check).per_gpu for check in protocol.checks] == [False, True, True, True]
    assert any("pip" in note for note in protocol.notes)
    listing = parse_protocol(LISTING_3)
    assert not listing.problems()
    assert next(check for check in listing.checks if check.type == "collective").threshold.at_least == 90e9


@pytest.mark.parametrize("name", shipped_protocols())
def test_shipped_protocols_can_be_run(name):
    protocol = load_protocol(name)
    assert not protocol.problems()
    for check in protocol.checks:
        if check.threshold is not None:
            assert check.threshold.source, f"{check.name} does not say where its threshold comes from"
        assert is_group(check) is (check.type == "collective")
        assert 0 < time_limit(check) <= (protocol.time_limit_s or 0)
    assert {"quick", "standard", "network", "gh200", "h100", "cpu"} <= set(shipped_protocols())
    limits = {"quick": 30.0, "standard": 240.0}
    assert protocol.time_limit_s <= limits.get(name, 600.0)


GPU_EVAL = "- name: a\n  type: vetnode.evaluations.gpu_eval.GPUEval"


def one(text: str):
    protocol = parse_protocol("name: p\nchecks:\n" + text)
    return protocol.checks[0], protocol.problems()


@pytest.mark.parametrize(
    ("text", "line", "problem", "fix"),
    [
        ("- {name: a, type: temprature}", 3, "no check of type 'temprature'", "Did you mean 'temperature'?"),
        ("- name: a\n  type: vetnode.evaluations.gpu_eval.GpuEval", 4, "no check", "gpu_eval.GPUEval"),
        ("- name: a\n  type: vetnode.evaluations.random.RandomEval", 3, "checks nothing", "Remove it."),
        ("- name: a\n  type: temperature\n  serverity: error", 5, "'serverity' is not a key", "'severity'"),
        ("- name: a\n  type: dns\n  parameters:\n    at_mots: 3 s", 6, "'at_mots' is not known", "'at_most'"),
        ("- name: a\n  type: dns\n  parameters: {at_most: soon}", 5, "not a number with a unit", "Correct"),
        ("- name: a\n  type: matmul\n  threshold: {at_leats: 3}", 5, "at_leats", "'at_least'"),
        ("- name: a\n  type: matmul\n  threshold: {source: x}", 5, "has no condition", "Correct"),
        ("- name: a\n  type: dns\n  scope: pair", 5, "can be: node", "Choose one."),
        ("- name: a\n  type: dns\n  time_limit: -3 s", 0, "", ""),
        ("- name: a\n  type: dns\n  time_limit: never", 5, "time limit", "30 s"),
        ("- name: a", 3, "has no type", "temperature"),
        ("- just words", 1, "has no keys", "'name' and 'type'"),
        ("- name: a\n  type: dns\n  requirements: [1, 2]", 5, "requirements", "Correct"),
        ("- name: a\n  type: environment", 3, "expected", "Correct"),
        (f"{GPU_EVAL}\n  max_temp: 30\n  max_used_memory: 20", 6, "max_used_memory", "Correct"),
        (f"{GPU_EVAL}\n  max_tmep: 30", 5, "max_t", "max_temp"),
    ],
)  # fmt: skip
def test_an_entry_that_cannot_be_run_is_a_named_verdict(text, line, problem, fix):
    check, problems = one(text)
    assert check.problem, "it can be run"
    (result,) = problems[:1]
    assert result.verdict is Verdict.NOT_RUN
    assert result.check == check.name
    assert problem in check.problem
    assert fix in check.fix or not fix
    assert not line or check.line == line
    assert "\n" not in result.reason


@pytest.mark.parametrize("text", ["checks: []", "evals:", "checks:\n- {type: dns, severity: warning}"])
def test_a_protocol_that_decides_nothing_is_a_named_verdict(text):
    (result,) = parse_protocol(f"name: p\n{text}").problems()
    assert (result.check, result.verdict) == ("protocol", Verdict.NOT_RUN)


@pytest.mark.parametrize(
    "text",
    [
        "", "just words", "- a\n- b", "name: p", "checks: dns", "checks: {a: 1}", "checks: []\nevals: []",
        "chekcs: []", "checks: [", "a: b: c", "\0", "checks:\n- {type: dns}\nchecks: []",
        "<<: {a: 1}\nchecks: []", "checks: []\ntime_limit: soon", "checks: []\n? [a]\n: 1",
        "!!python/object/apply:os.system [id]", "checks: !!python/name:os.system",
        "a: &a [x, x]\nb: &b [*a, *a]\nchecks: " + "[" * 200 + "]" * 200,
        "x0: &x0 [a]\n" + "".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]\n" for i in range(1, 9)),
        "#" * 300_000,
        "checks: &a [*a]",
    ],
)  # fmt: skip
def test_what_is_no_protocol_is_an_error_of_one_line(text):
    with pytest.raises(GipfelError) as caught:
        parse_protocol(text, "p.yaml")
    assert "\n" not in str(caught.value)
    assert "p.yaml" in caught.value.problem


@pytest.mark.parametrize("piece", ["[", "{a: ", "- ", "? ", "[[], "])
def test_deep_nesting_is_refused_where_it_begins(piece: str) -> None:
    begun = time.process_time()
    for read in (parse_protocol, lambda text: read_mapping(text, "it")):
        with pytest.raises(GipfelError, match="nested too deeply"):
            read("checks:\n  " + piece * (180_000 // len(piece)))
    assert time.process_time() - begun < 5


def test_files_that_cannot_be_read(tmp_path: Path):
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for reference in ("quik", tmp_path, tmp_path / "none.yaml", tmp_path / "binary.yaml", "a\0b", ""):
        with pytest.raises(GipfelError):
            load_protocol(reference)
    with pytest.raises(GipfelError, match="quick"):
        load_protocol("quik")
    own = tmp_path / "mine.yaml"
    own.write_text("checks:\n- {type: dns}\n- {type: dns}\n")
    assert [check.name for check in load_protocol(own).checks] == ["dns", "dns (2)"]


def test_every_type_is_an_entry_point_and_one_class():
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["gipfel.checks"]
    assert set(points) == set(BUILT_IN)
    assert set(BUILT_IN) <= set(check_types())
    for type_ in BUILT_IN:
        found = check_class(type_)
        assert EntryPoint(type_, points[type_], "gipfel.checks").load() is found
        assert found.__doc__
        assert hasattr(found, "run") is not hasattr(found, "probe")


def test_quantities():
    assert quantity("50 GB/s") == 50e9
    assert quantity("8 GB", binary=True) == 8 * 2**30
    assert quantity("256 MiB") == 2**28
    assert (quantity("20 %"), quantity("30 s"), quantity("12ms"), quantity("84 C")) == (0.2, 30, 0.012, 84)
    for wrong in ("", "fast", "1 parsec", True, None, [1], float("nan"), "1e999", "9" * 5000, "1 kiB/s"):
        with pytest.raises(ValueError, match=r".+"):
            quantity(wrong)
    assert quantity("2 TFLOP/s", binary=True) == 2e12
    assert quantity("2 GiB/s", binary=True) == 2**31
    assert with_unit(26.4e9, "B/s") == "26.4 GB/s"
    assert with_unit(999.6e9, "B/s") == "1 TB/s"
    assert with_unit(999.4e9, "FLOP/s") == "999 GFLOP/s"
    assert with_unit(999.6, "B") == "1 kB"
    assert with_unit(0.0, "B") == "0 B"
    assert with_unit(2.5e18, "B") == "2500 PB"
    assert with_unit(1980.4, "MHz") == "1980 MHz"


def test_any_text_is_a_protocol_or_an_error_of_one_line():
    chance = random.Random(5)
    pieces = [*"{}[]:,&*!?|>-#'\"%@`\n\t\0 \u2028\x85", "null", "1e999", ".inf", "true", "- ", "<<: "]
    pieces += ["9" * 400, "2020-01-01"]
    texts = [VETNODE, IN_CIRCULATION, *(path.read_text() for path in SHIPPED.glob("*.yaml"))]
    loaded, refused = 0, []
    for _ in range(400):
        text = chance.choice(texts)
        for _ in range(chance.randint(1, 4)):
            start = chance.randrange(len(text))
            text = text[:start] + chance.choice(pieces) + text[start + chance.choice([0, 0, 1, 3, 20]) :]
        try:
            protocol = parse_protocol(text)
            assert all("\n" not in each.reason for each in protocol.problems())
            assert all(check.model_dump_json() for check in protocol.checks)
            loaded += 1
        except GipfelError as error:
            refused.append(str(error))
    assert not [each for each in refused if "\n" in each]
    assert loaded > 50
    assert len(refused) > 50


def test_every_check_has_a_name_of_its_own():
    """Results are told apart by it: two checks of one name would answer for each other."""
    given = ("a", "a", "a (2)", "a (2)", "b")
    entries = "".join(f"- {{name: {name}, type: affinity}}\n" for name in given)
    names = [check.name for check in parse_protocol(f"checks:\n{entries}").checks]
    assert names == ["a", "a (3)", "a (2)", "a (2) (2)", "b"]


def test_another_demand_is_another_protocol():
    text = "name: p\nchecks:\n- {{name: m, type: matmul, threshold: {{at_least: {}}}}}\n"
    one, same = parse_protocol(text.format(5)), parse_protocol("# a comment\n" + text.format("5.0"))
    assert one.digest == same.digest
    assert one.digest != parse_protocol(text.format(6)).digest


def test_a_protocol_does_not_drive_a_terminal():
    text = 'name: "a\\e[31m"\ndescription: "b\\e]0;c\\a"\nchecks:\n- {name: "d\\e[2J", type: "\\e[31mX"}\n'
    made = parse_protocol(text)
    (check,) = made.checks
    assert "\x1b" not in made.name + made.description + check.name + check.type + check.problem

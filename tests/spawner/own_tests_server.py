"""JupyterHub's own test server behind a port that it picks and posts to the hub."""

import json
import os
import signal
import sys
import urllib.request

from jupyterhub.tests.mocksu import ArgsHandler, EchoHandler, EnvHandler
from tornado import httpserver, ioloop, netutil, web

sockets = netutil.bind_sockets(0, "127.0.0.1")
routes = [(r".*/args", ArgsHandler), (r".*/env", EnvHandler), (r".*", EchoHandler)]
httpserver.HTTPServer(web.Application(routes)).add_sockets(sockets)
request = urllib.request.Request(
    os.environ["JUPYTERHUB_API_URL"] + "/gipfel/server",
    data=json.dumps({"port": sockets[0].getsockname()[1]}).encode(),
    headers={"Authorization": f"token {os.environ['JUPYTERHUB_API_TOKEN']}"},
)
with urllib.request.urlopen(request, timeout=30):
    print("The hub has the port.", file=sys.stderr)
# As a notebook server does that is asked to end.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
ioloop.IOLoop.current().start()

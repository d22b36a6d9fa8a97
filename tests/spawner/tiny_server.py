"""A fake notebook server: binds a port, reports it to the hub, and answers; ~/behaviour configures it."""

import http.server
import json
import os
import sys
import time
import urllib.request
from pathlib import Path

home = Path(os.environ["HOME"])
behaviour = (home / "behaviour").read_text() if (home / "behaviour").exists() else ""
(home / "environment.json").write_text(json.dumps(dict(os.environ)))
if behaviour == "die":
    print("gipfel: The image /none.sqsh is not there. Import it first.", file=sys.stderr)
    print(os.environ["JUPYTERHUB_API_TOKEN"], file=sys.stderr)
    sys.exit(3)
while behaviour == "wait" and (home / "behaviour").exists():
    time.sleep(0.1)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("X-JupyterHub-Version", "6.1.0")
        self.end_headers()
        self.wfile.write(f"hello from {os.environ['JUPYTERHUB_USER']}".encode())

    def log_message(self, *_: object) -> None:
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
request = urllib.request.Request(
    os.environ["JUPYTERHUB_API_URL"] + "/gipfel/server",
    data=json.dumps({"port": server.server_port}).encode(),
    headers={"Authorization": f"token {os.environ['JUPYTERHUB_API_TOKEN']}"},
)
if behaviour != "silent":
    urllib.request.urlopen(request, timeout=30).close()
server.serve_forever()

"""A fake notebook server on a node: binds every address, reports its port to the hub, answers.

``~/behaviour`` says how: ``wait`` before it tells, until the file is gone; ``write`` into the home folder.
"""

import http.server
import json
import os
import time
import urllib.request
from pathlib import Path

told = Path(os.environ["HOME"]) / "behaviour"
behaviour = told.read_text() if told.exists() else ""
while behaviour == "wait" and told.exists():
    time.sleep(0.2)
if behaviour == "write":
    (told.parent / "big").write_bytes(b"x" * 10_000_000)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("X-JupyterHub-Version", "6.1.1")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


server = http.server.ThreadingHTTPServer(("0.0.0.0", 0), Handler)
request = urllib.request.Request(
    os.environ["JUPYTERHUB_API_URL"] + "/gipfel/server",
    data=json.dumps({"port": server.server_port}).encode(),
    headers={"Authorization": f"token {os.environ['JUPYTERHUB_API_TOKEN']}"},
)
while True:
    try:
        urllib.request.urlopen(request, timeout=30).close()
        break
    except urllib.error.HTTPError:
        raise
    except OSError:
        # The hub is being restarted.
        time.sleep(0.5)
server.serve_forever()

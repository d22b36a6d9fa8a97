"""A fake notebook server on a node: reports its port as the real one does, and answers with its name."""

import http.server
import json
import os
import urllib.request

from gipfel_cluster.ports import PORTS_VARIABLE, PortRange, bind_port


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("X-JupyterHub-Version", "6.1.1")
        self.end_headers()
        self.wfile.write(os.environ["JUPYTERHUB_SERVER_NAME"].encode())

    def log_message(self, *_: object) -> None:
        pass


server = http.server.ThreadingHTTPServer(("", 0), Handler, bind_and_activate=False)
server.socket.close()
server.socket = bind_port("0.0.0.0", PortRange.parse(os.environ.get(PORTS_VARIABLE, "")))
server.socket.settimeout(None)
request = urllib.request.Request(
    os.environ["JUPYTERHUB_API_URL"] + "/gipfel/server",
    data=json.dumps({"port": server.socket.getsockname()[1]}).encode(),
    headers={"Authorization": f"token {os.environ['JUPYTERHUB_API_TOKEN']}"},
)
urllib.request.urlopen(request, timeout=60).close()
server.serve_forever()

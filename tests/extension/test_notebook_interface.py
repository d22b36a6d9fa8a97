"""Jupyter Notebook 7, which the form offers beside JupyterLab: its page loads Gipfel's extension."""

import json
import re
import urllib.request
from typing import Any

import pytest
from conftest import JupyterServer


def test_the_page_of_notebook_7_loads_the_panel(server: JupyterServer) -> None:
    pytest.importorskip("notebook", reason="pip install gipfel[notebook]")
    request = urllib.request.Request(server.url + "tree", headers={"Cookie": server.cookie()})
    with urllib.request.urlopen(request, timeout=20) as answer:
        page = answer.read().decode()
    found = re.search(r'<script id="jupyter-config-data"[^>]*>(.*?)</script>', page, re.DOTALL)
    assert found
    config: dict[str, Any] = json.loads(found[1])
    assert config["appVersion"].startswith("7.")
    assert "@gipfel/extension" in {each["name"] for each in config["federated_extensions"]}

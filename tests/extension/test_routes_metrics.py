"""``gipfel/metrics`` on a real server."""

import urllib.request


def test_a_scrape_with_the_token_and_none_without(server):
    def scrape() -> tuple[str, str]:
        request = urllib.request.Request(
            server.url + "gipfel/metrics", headers={"Authorization": "token a-token-of-the-tests"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.headers["Content-Type"], answer.read().decode()

    found = server.wait(lambda: "gipfel_host_cpu_util{" in scrape()[1], 60)
    assert found
    kind, content = scrape()
    assert kind.startswith("text/plain; version=0.0.4")
    assert "# TYPE gipfel_host_memory_used gauge\n" in content
    assert 'Hostname="' in content
    # Without a GPU there is no line, rather than a zero.
    assert "DCGM_FI_DEV_GPU_UTIL{" not in content or "nvidia0" in content
    assert server.call("gipfel/metrics", Authorization="")[0] == 403
    assert server.call("gipfel/metrics", Authorization="token wrong")[0] == 403

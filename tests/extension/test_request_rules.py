"""Rules of the front door for paths, cookies, redirects and headers."""

from gipfel_extension.services.request_rules import (
    RefusedError,
    headers_to_service,
    limited_cookie,
    limited_redirect,
    service_path,
)


def test_prefix_modes_and_allowed_paths() -> None:
    def path(target: str, mode: str = "strip", allowed: tuple[str, ...] = ()) -> str | int:
        try:
            return service_path(target, "/p/", mode=mode, allowed=allowed)
        except RefusedError as refused:
            return refused.status

    assert path("/p/a?b") == "/a?b"
    assert path("/p/a?b", "keep") == "/p/a?b"
    assert path("/p/") == "/"
    assert path("/p/m%2Fn") == "/m%2Fn"
    for outside in ("/", "/p", "/q/a", "/pp/a", "/P/a", "//p/a", "/%70/a"):
        assert path(outside) == 404, outside
    dots = (
        "..",
        ".",
        "%2e%2e",
        "%2E.",
        "a/../b",
        "..%2fa",
        "a%5c..%5cb",
        "%252e%252e",
        "..;x",
        "a/..",
        "%00",
        "a%0d%0aSet-Cookie:%20a=b",
        "a%250ab",
        "a%7f",
    )
    for each in dots:
        assert path(f"/p/{each}") == 400, each
    for malformed in ("http://x/p/", "*", "p/", "/p/a#b", "/p/a b", "/p/\x7f", "/p/%25252525252e"):
        assert path(malformed) == 400, malformed
    allowed = ("/v1/", "/health")
    for good in ("/v1/models", "/v1/", "/health", "/health?a=/../b", "/v1/a%20b"):
        assert path(f"/p{good}", allowed=allowed) == good
    for bad in (
        *("/", "/v1", "/v2/", "/healthz", "/health/", "/pause", "/V1/a", "//v1/a", "/v1//a", "/v1%2fmodels"),
        *("/v1/%2Fa", "/v1/a%5Cb", "/v1/a\\b", "/v1/%252fa", "/v1/a;b", "/health;/x", "/x/v1/a"),
    ):
        assert path(f"/p{bad}", allowed=allowed) == 404, bad


def test_cookies_and_redirects_of_the_service_stay_below_its_path() -> None:
    assert limited_cookie("a=b", "/p/") == "a=b; Path=/p/"
    assert limited_cookie("a=b; path=/; DOMAIN=x; Secure", "/p/") == "a=b; Secure; Path=/p/"
    assert limited_cookie("a=b; Path=/p/../hub", "/p/") == "a=b; Path=/p/"
    for foreign in (
        "jupyterhub-user-ada=x",
        "JupyterHub-x=y",
        "_xsrf=1",
        "__Secure-a=b",
        "nothing",
        "a b=c",
        "=v",
    ):
        assert limited_cookie(foreign, "/p/") == ""

    def redirect(location: str, mode: str = "strip") -> str | int:
        try:
            return limited_redirect(location, prefix="/p/", mode=mode)
        except RefusedError as refused:
            return refused.status

    assert redirect("/a?b#c") == "/p/a?b#c"
    assert redirect("/p/a") == "/p/a"
    assert redirect("a/b") == "a/b"
    assert redirect("?a") == "?a"
    assert redirect("http://localhost/a") == "/p/a"
    assert redirect("http://localhost") == "/p/"
    assert redirect("/p/a", "keep") == "/p/a"
    assert redirect("/hub/logout", "keep") == 502
    for elsewhere in (
        *(
            "https://evil.example/",
            "//evil.example/",
            "///evil",
            "/\\evil",
            "\\\\evil",
            "javascript:alert(1)",
        ),
        *(
            "http://localhost@evil/",
            "http://localhost:8000/hub",
            "http:evil",
            "http://[",
            "data:,x",
            "/a\tb",
            "",
        ),
        *("../hub/home", "/p/../hub", "/%2e%2e/hub", "a/..%2f..%2fhub", "http:///a"),
    ):
        assert redirect(elsewhere) == 502, elsewhere
    kept = headers_to_service(
        [("Cookie", "a=1"), ("Cookie", "jupyterhub-x=2; b=3")], own_cookies=frozenset("b"), prefix="/"
    )
    assert dict(kept)["Cookie"] == "a=1"
    for origin in ("null", "https://evil.example", "http://["):
        kept = headers_to_service([("Origin", origin)], own_cookies=frozenset(), prefix="/")
        assert dict(kept)["Origin"] == origin

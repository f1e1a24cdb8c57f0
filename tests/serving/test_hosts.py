"""Pages of other sites in a browser: DNS rebinding, forged forms, and what CORS does not open."""

import json
import socket

import pytest

pytest.importorskip("uvicorn", reason="needs the extra `serve`")

import regard
from regard.core.errors import InvalidArgument
from regard.serving.http.cors import CrossOrigin
from regard.serving.http.errors import RequestRefused
from regard.serving.http.hosts import AllowedHosts, from_another_origin
from support.forged import GOLDEN
from support.predictors import translator
from support.served_process import command, exchange
from support.servers import served

MODEL = GOLDEN / "transformer"
JSON = "Content-Type: application/json"
ASKED = json.dumps({"input": "abc", "max_length": 2}).encode()
RELOAD = json.dumps({"name": "en"}).encode()
EVIL = "http://evil.example"
BOUNDARY = "----WebKitFormBoundary7MA4YWxkTrZu0gW"
FORM = f"Content-Type: multipart/form-data; boundary={BOUNDARY}"
FIELDS = "".join(
    f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
    for name, value in (("input", "abc"), ("max_length", "2"))
)
FORM_BODY = f"{FIELDS}--{BOUNDARY}--\r\n".encode()
LOCAL = ["localhost", "localhost:{}", "LOCALHOST:{}", "127.0.0.1:{}", "127.1.2.3", "[::1]:{}"]
FOREIGN = [
    "evil.example", "evil.example:{}", "localhost.evil.example", "127.0.0.1.evil.example:{}", "0.0.0.0:{}",
    "192.168.1.5:{}", "[::]:{}", "127.0.0.1@evil.example", "::1", "", "localhost, evil.example", "[::1].evil.example",
]  # fmt: skip


@pytest.fixture(scope="module")
def port():
    """Of `regard serve` with its defaults."""
    with command("serve", f"en={MODEL}") as (port, _):
        yield port


@pytest.mark.parametrize("host", LOCAL)
def test_a_server_on_this_machine_answers_to_its_local_names(port, host):
    given = f"Host: {host.format(port)}"
    assert exchange(port, "GET", "/models", given)[0] == 200
    assert exchange(port, "POST", "/predict", given, JSON, body=ASKED)[0] == 200


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("GET", "/studio/models", b""), ("GET", "/metrics", b""), ("GET", "/none", b""), ("GET", "/", b""),
     ("OPTIONS", "/predict", b""), ("POST", "/predict", ASKED), ("POST", "/admin/models", RELOAD)],
)  # fmt: skip
def test_a_page_whose_name_points_here_gets_no_answer(port, host, method, path, body):
    """DNS rebinding: the browser sends the name of the page, and lets the page read the answer."""
    host = host.format(port)
    headers = [f"Host: {host}", f"Origin: http://{host}", "Sec-Fetch-Site: same-origin", JSON]
    status, _, content = exchange(port, method, path, *headers, body=body)
    assert status == 421
    assert "--allowed-host" in json.loads(content)["detail"]
    assert b'"en"' not in content


def test_the_message_names_the_option_for_this_name(port):
    _, _, content = exchange(port, "GET", "/models", f"Host: My.Proxy.example:{port}")
    assert "--allowed-host my.proxy.example" in json.loads(content)["detail"]
    _, _, content = exchange(port, "GET", "/models", "Host: $(touch${IFS}x)")
    assert "--allowed-host NAME" in json.loads(content)["detail"]


@pytest.mark.parametrize("hosts", [[], ["Host: localhost", "Host: evil.example"],
                                   ["Host: localhost", "Host: localhost"]])  # fmt: skip
def test_no_host_and_several_are_refused(port, hosts):
    assert exchange(port, "GET", "/health/live", *hosts)[0] == 400


def test_http_1_0_needs_no_host(port):
    assert exchange(port, "GET", "/health/live", version="1.0")[0] == 200


@pytest.mark.parametrize(
    "headers",
    [(f"Origin: {EVIL}",), ("Origin: null",), ("Origin: http://localhost:1",), ("Sec-Fetch-Site: cross-site",),
     ("Sec-Fetch-Site: same-site",), (f"Origin: {EVIL}", "Sec-Fetch-Site: cross-site")],
)  # fmt: skip
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("POST", "/admin/models", RELOAD), ("GET", "/admin/models", b""), ("GET", "/studio/models", b""),
     ("HEAD", "/studio/models", b""), ("POST", "/studio/beam", b'{"input": ["abc"]}')],
)  # fmt: skip
def test_a_page_of_another_origin_uses_neither_admin_nor_studio(port, headers, method, path, body):
    host = f"Host: localhost:{port}"
    assert exchange(port, method, path, host, JSON, *headers, body=body)[0] == 403
    for own in (
        (),
        (f"Origin: http://localhost:{port}",),
        (f"Origin: http://localhost:{port}", "Sec-Fetch-Site: same-origin"),
        ("Sec-Fetch-Site: none",),
    ):
        assert exchange(port, method, path, host, JSON, *own, body=body)[0] == 200


@pytest.mark.parametrize(
    "headers",
    [(f"Origin: {EVIL}",), (f"Origin: {EVIL}", "Sec-Fetch-Site: cross-site"), ("Sec-Fetch-Site: cross-site",),
     ("Origin: null", "Sec-Fetch-Site: cross-site")],
)  # fmt: skip
@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [("/predict", FORM, FORM_BODY), ("/look", FORM, FORM_BODY), ("/score", FORM, FORM_BODY),
     ("/embed", FORM, FORM_BODY),
     ("/translate", "Content-Type: application/x-www-form-urlencoded", b"q=abc&source=auto&target=en"),
     ("/predict", "Content-Type: text/plain", ASKED)],
)  # fmt: skip
def test_a_form_of_another_site_is_refused(port, headers, path, kind, body):
    """A browser sends it without asking. The page cannot read the answer, and has used the model."""
    host = f"Host: 127.0.0.1:{port}"
    assert exchange(port, "POST", path, host, kind, *headers, body=body)[0] == 403


@pytest.mark.parametrize("path", ["/predict", "/look", "/embed"])
def test_a_form_of_this_site_and_of_a_program_is_answered(port, path):
    for headers in (
        (),
        (f"Origin: http://127.0.0.1:{port}", "Sec-Fetch-Site: same-origin"),
        (f"Origin: http://127.0.0.1:{port}",),
    ):
        body = FORM_BODY if path != "/embed" else FORM_BODY.replace(b"max_length", b"truncate")
        body = body if path != "/embed" else body.replace(b"\r\n2\r\n", b"\r\ntrue\r\n")
        given = (f"Host: 127.0.0.1:{port}", FORM, *headers)
        assert exchange(port, "POST", path, *given, body=body)[0] == 200


def test_json_of_programs_that_name_an_origin_is_answered(port):
    """No page of another origin can send JSON without a preflight, which is refused."""
    given = (f"Host: localhost:{port}", JSON, f"Origin: {EVIL}")
    assert exchange(port, "POST", "/predict", *given, body=ASKED)[0] == 200
    _, headers, _ = exchange(
        port, "OPTIONS", "/predict", *given, "Access-Control-Request-Method: POST"
    )
    assert not any(name.startswith("access-control") for name in headers)


def test_a_link_from_another_site_opens_the_pages(port):
    headers = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
    for path in ("/", "/docs"):
        assert exchange(port, "GET", path, f"Host: 127.0.0.1:{port}", *headers)[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_listed_name_is_answered_and_no_other(workers):
    options = (
        "--allowed-host",
        "studio.example",
        "--allowed-host",
        "10.0.0.7",
        "--workers",
        str(workers),
    )
    with command("serve", f"en={MODEL}", *options) as (port, _):
        for host in ("studio.example", "Studio.Example:8443", "10.0.0.7:80", f"localhost:{port}"):
            assert exchange(port, "POST", "/predict", f"Host: {host}", JSON, body=ASKED)[0] == 200
        for host in ("evil.example", "a.studio.example", "10.0.0.8"):
            assert exchange(port, "GET", "/models", f"Host: {host}")[0] == 421
        # Behind a proxy that puts its own address into the Host header, and over plain HTTP.
        own = (f"Host: 127.0.0.1:{port}", "Origin: http://studio.example:8080")
        assert exchange(port, "POST", "/admin/models", *own, JSON, body=RELOAD)[0] == 200
        assert exchange(port, "POST", "/predict", *own, FORM, body=FORM_BODY)[0] == 200


@pytest.mark.slow
def test_the_studio_answers_to_local_and_listed_names():
    with command("studio", "--no-open", "--allowed-host", "hub.example") as (port, _):
        for host, wanted in (
            ("hub.example", 200),
            (f"127.0.0.1:{port}", 200),
            ("evil.example", 421),
        ):
            assert exchange(port, "GET", "/studio/models", f"Host: {host}")[0] == wanted


@pytest.mark.slow
def test_on_all_interfaces_any_name_is_answered_until_some_are_listed():
    with command("serve", f"en={MODEL}", "--host", "0.0.0.0") as (port, _):
        assert exchange(port, "GET", "/models", "Host: any.example")[0] == 200
        assert exchange(port, "GET", "/models")[0] == 400
    options = ("--host", "0.0.0.0", "--allowed-host", "api.example")
    with command("serve", f"en={MODEL}", *options) as (port, _):
        for host, wanted in (("api.example", 200), ("localhost", 200), ("any.example", 421)):
            assert exchange(port, "GET", "/models", f"Host: {host}")[0] == wanted


def test_a_star_without_keys_is_told_and_does_not_open_the_administration():
    preflight = ("Access-Control-Request-Method: POST", f"Origin: {EVIL}")
    with command("serve", f"en={MODEL}", "--cors", "*") as (port, logged):
        assert any("cors" in line and "no keys" in line for line in logged)
        host = f"Host: localhost:{port}"
        for path in ("/admin/models", "/studio/look"):
            assert exchange(port, "OPTIONS", path, host, *preflight)[0] == 403
        given = (host, JSON, f"Origin: {EVIL}", "Sec-Fetch-Site: cross-site")
        assert exchange(port, "POST", "/admin/models", *given, body=RELOAD)[0] == 403
        assert exchange(port, "GET", "/studio/models", *given)[0] == 403
        # The API itself is open to all pages, as the operator wants.
        assert exchange(port, "OPTIONS", "/predict", host, *preflight)[0] == 204
        assert exchange(port, "POST", "/predict", *given, body=ASKED)[0] == 200
        form = (host, FORM, f"Origin: {EVIL}", "Sec-Fetch-Site: cross-site")
        assert exchange(port, "POST", "/predict", *form, body=FORM_BODY)[0] == 200
        # Not to those whose names point here.
        assert exchange(port, "POST", "/predict", "Host: evil.example", JSON, body=ASKED)[0] == 421


def test_a_key_opens_the_administration_to_a_listed_origin():
    page = "https://pages.example"
    options = {"keys": ["k admin"], "cors": CrossOrigin([page])}
    with served({"en": translator(decoder="rnn")}, **options) as server:
        given = ("Host: localhost", JSON, f"Origin: {page}", "Sec-Fetch-Site: cross-site")
        asked = "Access-Control-Request-Method: GET"
        assert exchange(server.port, "OPTIONS", "/admin/models", *given, asked)[0] == 204
        key = "Authorization: Bearer k"
        for path in ("/admin/models", "/studio/models"):
            assert exchange(server.port, "GET", path, *given, key)[0] == 200
            assert exchange(server.port, "GET", path, *given)[0] == 401
        assert exchange(server.port, "POST", "/predict", *given, key, body=ASKED)[0] == 200


def test_a_listed_origin_may_send_forms_and_others_may_not():
    page = "https://pages.example"
    with served({"en": translator(decoder="rnn")}, cors=CrossOrigin([page])) as server:
        for origin, wanted in ((page, 200), (EVIL, 403)):
            given = ("Host: localhost", FORM, f"Origin: {origin}", "Sec-Fetch-Site: cross-site")
            assert exchange(server.port, "POST", "/predict", *given, body=FORM_BODY)[0] == wanted


@pytest.mark.parametrize(
    "name",
    ["https://a.example", "a.example:80", "a.example/x", "*", "*.example", "", " ", "a b", "-a", "ä.example", "[::1"],
)  # fmt: skip
def test_what_is_no_host_name_is_refused(name):
    with pytest.raises(InvalidArgument, match="allowed_hosts: wanted a host name or an address"):
        AllowedHosts([name])


def test_a_server_refuses_a_wrong_name_before_it_listens():
    for names in (["https://a.example"], "a.example"):
        with pytest.raises(InvalidArgument, match="allowed_hosts: wanted a"):
            regard.serve(MODEL, port=0, allowed_hosts=names)


@pytest.mark.parametrize(
    ("name", "host"),
    [("A.example", "a.example:80"), ("a.example", "A.EXAMPLE."), ("[fd00::1]", "[fd00::1]:8000"),
     ("fd00::1", "[FD00::1]"), ("10.0.0.7", "10.0.0.7:8000"), ("a_b", "a_b")],
)  # fmt: skip
def test_names_are_compared_without_case_port_and_brackets(name, host):
    AllowedHosts([name], address="127.0.0.1").check([host.encode()], needed=True)
    with pytest.raises(RequestRefused):
        AllowedHosts(["other.example"], address="127.0.0.1").check([host.encode()], needed=True)


def test_the_name_given_for_the_address_is_answered():
    """As Debian's name of a machine, which is 127.0.1.1."""
    hosts = AllowedHosts(address="127.0.1.1", host="laptop")
    hosts.check([b"laptop:8000"], needed=True)
    with pytest.raises(RequestRefused):
        hosts.check([b"desktop:8000"], needed=True)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_loopback_addresses_have_local_names_only(address):
    with pytest.raises(RequestRefused, match=r"evil\.example"):
        AllowedHosts(address=address).check([b"evil.example"], needed=True)


def test_an_origin_is_that_of_the_host_or_of_a_listed_name():
    hosts = AllowedHosts(["proxy.example"], address="127.0.0.1")
    for origin, foreign in (
        ("http://localhost:8000", False),
        ("https://LOCALHOST:8000", False),
        ("http://localhost", True),
        ("http://proxy.example", False),
        ("https://proxy.example:8443", False),
        ("https://a.proxy.example", True),
        ("null", True),
        ("", True),
    ):
        headers = {"host": "localhost:8000", "origin": origin}
        assert from_another_origin(headers, hosts) is foreign, origin
    assert from_another_origin({"host": "", "origin": "null"}, hosts)


def test_ipv6():
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    with command("serve", f"en={MODEL}", "--host", "::1") as (port, _):
        for host, wanted in ((f"[::1]:{port}", 200), ("evil.example", 421)):
            given = (f"Host: {host}",)
            answer = exchange(port, "GET", "/models", *given, client="::1", server="::1")
            assert answer[0] == wanted

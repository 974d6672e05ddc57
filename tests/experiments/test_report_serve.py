"""The live report: on the loopback only, nothing but its two addresses, and up to date."""

import http.client
import threading

import pytest

from experiments.report import cli, serve
from tests.experiments.synthetic_run import write_run


@pytest.fixture
def served(tmp_path):
    write_run(tmp_path / "run", steps=2)
    with serve.Server([tmp_path / "run"]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server, tmp_path / "run"
        server.shutdown()
        thread.join()


def get(server, path: str, host: str | None = None) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    try:
        connection.putrequest("GET", path, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def test_it_listens_on_the_loopback_only(served):
    assert served[0].server_address[0] == "127.0.0.1"


def test_the_page_follows_the_run(served):
    server, run = served
    status, text, headers = get(server, "/")
    assert status == 200 and "arithmetic" in text and headers["Content-Type"] == "text/html; charset=utf-8"
    _, before, _ = get(server, "/version")
    assert get(server, "/version")[1] == before
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 77, "reward/mean": 0.5}\n')
    assert get(server, "/version")[1] != before
    assert ">77</b>" in get(server, "/")[1]
    with open(run / "metrics.jsonl", "a") as file:
        file.write("{torn\n")
    status, text, _ = get(server, "/")
    assert status == 500 and "metrics.jsonl:5: damaged line" in text


@pytest.mark.parametrize(
    "path", ["/run.json", "/../run.json", "/..%2f..%2fetc/passwd", "//etc/passwd", "/metrics.jsonl", "/?x=1", "*"]
)
def test_no_other_address_exists(served, path):
    status, text, _ = get(served[0], path)
    assert status == 404 and text == "the report is at /\n"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1:1", "localhost.evil.example:80"])
def test_another_host_name_is_refused(served, host):
    assert get(served[0], "/", host)[0] == 403
    assert get(served[0], "/version", host)[0] == 403


def test_only_the_live_page_has_a_script_and_it_is_named_by_a_nonce(served):
    _, text, _ = get(served[0], "/")
    nonce = text.split('<script nonce="')[1].split('"')[0]
    assert f'data-version="{get(served[0], "/version")[1]}"' in text
    assert len(nonce) > 20 and f"script-src 'nonce-{nonce}'; connect-src 'self'" in text


def test_a_taken_port_is_an_error_without_a_traceback(served):
    server, run = served
    with pytest.raises(SystemExit, match="report: .*[Aa]ddress already in use"):
        cli.main([str(run), "--serve", f"--port={server.server_port}"])


def test_a_missing_run_is_an_error_before_anything_is_served(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run at"):
        serve.serve([tmp_path / "gone"], port=0)

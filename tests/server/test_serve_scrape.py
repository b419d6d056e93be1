"""/metrics and the health pages over the wire."""

from __future__ import annotations

import gzip

import pytest
import sample_reports as samples
from each_case import each_case
from serving import ServedNode, ask, is_problem

from gpumon.model.reading import Page
from gpumon.outputs.dcgm import DcgmPage
from gpumon.server.scrape import accepts_gzip
from gpumon.state.report import Report

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def test_metrics_are_the_exposition(node: ServedNode, port: int) -> None:
    """The bytes of the renderer, under the type without which Prometheus 3 fails the scrape."""
    answer = ask(port, "/metrics")
    assert (answer.status, answer.headers["Content-Type"]) == (200, CONTENT_TYPE)
    assert answer.body == node.exposition().raw
    assert answer.headers["Content-Encoding"] is None


def test_links_have_a_page_of_their_own(node: ServedNode, port: int) -> None:
    """It is rendered when a client requests it, with each link, and /metrics has none."""
    answer = ask(port, Page.LINKS.value)
    assert (answer.status, answer.headers["Content-Type"]) == (200, CONTENT_TYPE)
    assert answer.body == node.exposition(Page.LINKS).raw
    assert b"gpumon_nvlink_up{" in answer.body
    assert b"gpumon_nvlink_up{" not in ask(port, Page.METRICS.value).body


def test_metrics_are_compressed(node: ServedNode, port: int) -> None:
    """The page has a tenth of the size, and the Vary header is set."""
    answer = ask(port, "/metrics", headers={"Accept-Encoding": "gzip"})
    assert (answer.headers["Content-Encoding"], answer.headers["Vary"]) == ("gzip", "Accept-Encoding")
    assert gzip.decompress(answer.body) == node.exposition().raw
    assert int(answer.headers["Content-Length"]) == len(answer.body)


@each_case(
    ("header", "taken"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5, br", True),
        ("*", True),
        ("gzip;q=0", False),
        ("*, gzip;q=0", False),
        ("*;q=0", False),
        ("identity", False),
        ("gzip;q=x", False),
        ("", False),
    ],
)
def test_encoding_is_negotiated(header: str, taken: bool) -> None:  # noqa: FBT001
    """A client that refuses gzip does not get it."""
    assert accepts_gzip(header) is taken


def test_head_has_the_headers_of_get(port: int) -> None:
    """Status and headers are the same, without the body."""
    head, get = (ask(port, "/metrics", method) for method in ("HEAD", "GET"))
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Length"] == str(len(get.body))
    assert head.headers["Content-Type"] == CONTENT_TYPE


def test_trailing_slash_is_no_redirect(port: int) -> None:
    """Some scrapers do not follow redirects."""
    assert ask(port, "/metrics/").body == ask(port, "/metrics").body


def test_metrics_take_no_post(port: int) -> None:
    """405 lists the allowed methods."""
    answer = ask(port, "/metrics", "POST")
    assert is_problem(answer, 405)
    assert answer.headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize("broken", [samples.without_driver(), samples.without_gpus(), samples.troubled_node()])
def test_liveness_depends_on_the_process_alone(node: ServedNode, port: int, broken: Report) -> None:
    """A missing driver or a lost GPU does not make the target unhealthy."""
    node.report = broken
    assert [ask(port, path).status for path in ("/-/healthy", "/-/ready", "/metrics")] == [200, 200, 200]


def test_not_ready_before_the_first_poll(node: ServedNode, port: int) -> None:
    """503 until then, while the process is healthy."""
    node.ready = False
    answer = ask(port, "/-/ready")
    assert is_problem(answer, 503)
    assert answer.headers["Retry-After"] == "1"
    assert ask(port, "/-/healthy").status == 200
    node.ready = True
    assert ask(port, "/-/ready").status == 200


def test_dcgm_names_have_a_page_of_their_own(node: ServedNode, port: int) -> None:
    """It is rendered when a client requests it, needs no token, and can be compressed."""
    answer = ask(port, "/metrics/dcgm")
    assert (answer.status, answer.headers["Content-Type"]) == (200, CONTENT_TYPE)
    assert answer.body == DcgmPage(host="gpu-17").render(node.report).encode()
    assert b"DCGM_FI_DEV_GPU_TEMP{" in answer.body
    assert b"DCGM_" not in ask(port, "/metrics").body
    packed = ask(port, "/metrics/dcgm", headers={"Accept-Encoding": "gzip"})
    assert gzip.decompress(packed.body) == answer.body

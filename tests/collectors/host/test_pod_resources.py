"""Claims of pods, as a real gRPC server with the kubelet's interface lists them."""

from __future__ import annotations

import socket as sockets
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import eventually
from each_case import each_case

from gpumon.collectors.host.pod_resources import MAX_BYTES, MAX_DEVICES, PodReader, PodResources
from gpumon.collectors.host.reader import Tree, Trees, Turn
from gpumon.model.allocation import MAX_NAME, Claim, Owner
from gpumon.model.orders import HostOrders

grpc, _, _ = (pytest.importorskip(name, reason="not in this environment") for name in ("grpc", "google.protobuf", "h2"))
from kubelet import answer, container, pod, serving  # noqa: E402

UUID = "GPU-8f2d7c11-06a5-4f5e-9d21-5b8c0e4a7d90"
MIG = "MIG-c2e1f0a4-6d70-5b3c-9d53-0f5e6a2b7c11"
LATER: dict[str, Any] = {"later_number": 7, "later_ratio": 0.5, "later_flag": True, "later_data": b"\xff" * 300}
LONG_GROUP = b"\x9b\x06\x0a\x05hello\x9c\x06"
"""A field 99 of a type that proto3 has not, a group, with a field 1 that must not be taken for a pod."""


@pytest.fixture
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket needs a short path
        yield Path(folder) / "kubelet.sock"


class Turns:
    """Calls the reader ten seconds after the last turn, and keeps the errors of the last turn."""

    def __init__(self, reader: PodReader) -> None:
        self.errors = ""
        self.reader = reader
        self._at = 1000.0

    def poll(self, after: float = 10.0) -> tuple[Claim, ...] | None:
        self._at += after
        tree = Tree(Path("/nowhere"))
        turn = Turn("owners", Trees(tree, tree, tree), HostOrders(), self._at)
        claims = self.reader(turn)
        self.errors = turn.errors.words
        return claims


def reader_of(socket: Path) -> Turns:
    """Return a reader whose turns wait for the answer."""
    return Turns(PodReader(PodResources(socket), wait=60.0))


def claim(name: str, *devices: str, container: str = "main", namespace: str = "training") -> Claim:
    owner = Owner(pod_namespace=namespace, pod_name=name, container_name=container)
    return Claim(owner=owner, devices=devices)


def dynamic(driver: str, *devices: str) -> dict[str, object]:
    """Return the devices of one resource claim."""
    resources = [
        {"driver_name": driver, "pool_name": "gpu-17", "device_name": device, "cdi_devices": [{"name": "a"}]}
        for device in devices
    ]
    return {"claim_name": "gpus", "claim_namespace": "training", "claim_resources": resources}


@each_case(
    ("containers", "claims"),
    [
        ([container(UUID, "GPU-2")], [claim("a", UUID, "GPU-2")]),
        ([container(f"{UUID}::3", resource="nvidia.com/gpu.shared")], [claim("a", f"{UUID}::3")]),
        ([container(MIG, resource="nvidia.com/mig-1g.10gb")], [claim("a", MIG)]),
        ([container("nvidia0/gi1", "nvidia3")], [claim("a", "nvidia0/gi1", "nvidia3")]),
        ([container("any-id", resource="team.nvidia.com/gpu")], [claim("a", "any-id")]),
        ([container(f"{UUID}-4", resource="hami.io/vgpu")], [claim("a", f"{UUID}-4")]),
        ([container("nvidia0", resource="example.com/vgpu")], [claim("a", "nvidia0")]),
        ([container("0000:3a:00.1", "nvidia-uvm", "", resource="example.com/nic")], []),
        ([container("GPU-1", "GPU-1", ""), container()], [claim("a", "GPU-1")]),
        (
            [container("GPU-1", name="x"), container("GPU-1", "GPU-2", name="y")],
            [claim("a", "GPU-1", container="x"), claim("a", "GPU-1", "GPU-2", container="y")],
        ),
        (
            [container(dynamic_resources=[dynamic("gpu.nvidia.com", "gpu-3", "gpu-0-mig-1g10gb-19-0")])],
            [claim("a", "gpu-3", "gpu-0-mig-1g10gb-19-0")],
        ),
        ([container(dynamic_resources=[dynamic("compute-domain.nvidia.com", "channel-0", "gpu-1")])], []),
        (
            [container("GPU-1", cpu_ids=[1, 300], memory=[{"memory_type": "hugepages", "size": 1 << 40}], **LATER)],
            [claim("a", "GPU-1")],
        ),
        (
            [container("GPU-\x1b\u00e9" + "1" * 100)],
            [claim("a", ("GPU-\N{REPLACEMENT CHARACTER}\u00e9" + "1" * 100)[:MAX_NAME])],
        ),
    ],
)
def test_the_gpus_of_each_container_are_a_claim(containers: list[dict[str, object]], claims: list[Claim]) -> None:
    """Device plugins, DRA and fields of other versions; a container without a GPU has no claim."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        socket = Path(folder) / "s"
        with serving(socket, answer(pod("idle"), pod("a", *containers)) + LONG_GROUP):
            assert PodResources(socket).read() == tuple(claims)


def test_the_pods_of_two_namespaces_are_two_owners(socket: Path) -> None:
    """Replicas of one GPU have several owners. Names are cut."""
    name = "n" * 200
    pods = (pod(name, container("GPU-1::0"), namespace="a"), pod(name, container("GPU-1::1"), namespace="b"))
    with serving(socket, answer(*pods)):
        claims = PodResources(socket).read()
    assert claims == tuple(
        claim(name[:MAX_NAME], f"GPU-1::{number}", namespace=space) for number, space in enumerate("ab")
    )


def test_a_large_answer_is_read_and_a_larger_one_refused(socket: Path) -> None:
    """The limit is 4 MiB, which is more than HTTP/2 transfers without acknowledgements."""
    small = answer(pod("a", container("GPU-1", later_data=b"x" * 3_000_000)))
    with serving(socket, small) as kubelet:
        assert PodResources(socket).read() == (claim("a", "GPU-1"),)
        kubelet.answer = answer(pod("a", container("GPU-1", later_data=b"x" * 5_000_000)))
        with pytest.raises(OSError, match=f"more than {MAX_BYTES} bytes"):
            PodResources(socket).read()


def test_more_devices_than_a_node_can_have_are_refused(socket: Path) -> None:
    devices = [f"GPU-{number}" for number in range(MAX_DEVICES)]
    with serving(socket, answer(pod("a", container(*devices)))) as kubelet:
        [all_of_them] = PodResources(socket).read()
        assert len(all_of_them.devices) == MAX_DEVICES
        kubelet.answer = answer(pod("a", container(*devices)), pod("b", container("GPU-1")))
        with pytest.raises(OSError, match=f"more than {MAX_DEVICES} GPUs"):
            PodResources(socket).read()


@each_case(
    "message",
    [
        *(b"\x0a", b"\x0a\xff", b"\x0a\x05abc", b"\xff" * 20, b"\x80" * 5, b"\x0d\x01", b"\x09\x01", b"\x08"),
        *(
            b"\x0f\x01",
            b"\x0b",
            b"\x0c",
            b"\x0b\x0a\x01a",
            b"\x0c\x0b",
            b"\x08" + b"\x80" * 10 + b"\x01",
            b"not a protobuf message",
            b"\x0a\x02\x1a\x09",
        ),
    ],
)
def test_garbage_is_an_error(message: bytes) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        socket = Path(folder) / "s"
        with serving(socket, message), pytest.raises(OSError, match="is not valid PodResources v1"):
            PodResources(socket).read()


def test_no_truncated_answer_has_other_claims(socket: Path) -> None:
    """It is an error, or has a part of the pods."""
    pods = [pod(name, container(UUID, name=name, **LATER)) for name in ("a", "b")]
    whole = answer(*pods)
    expected = [claim(name, UUID, container=name) for name in ("a", "b")]
    with serving(socket, whole) as kubelet:
        complete = []
        for size in range(1, len(whole)):
            kubelet.answer = whole[:size]
            try:
                complete.append((size, PodResources(socket).read()))
            except OSError:
                continue
    assert complete == [(len(answer(pods[0])), (expected[0],))]


def test_a_host_without_kubelet_has_no_error(socket: Path) -> None:
    """Its pods are unknown."""
    with pytest.raises(FileNotFoundError):
        PodResources(socket).read()
    turns = reader_of(socket)
    assert turns.poll() is None
    assert turns.errors == ""
    assert not turns.reader.silent


def test_a_refusal_is_an_error_with_its_status(socket: Path) -> None:
    """Its text is in one line."""
    with serving(socket, answer(pod("a", container("GPU-1")))) as kubelet:
        kubelet.refusal = grpc.StatusCode.RESOURCE_EXHAUSTED
        turns = reader_of(socket)
        assert turns.poll() is None
        assert turns.errors == f"{socket}: PodResources failed: 'gRPC status 8: too many\\nrequests'"
        kubelet.refusal = None
        assert turns.poll() == (claim("a", "GPU-1"),)
        assert turns.errors == ""


def test_a_restarted_kubelet_is_read_through_its_new_socket(socket: Path) -> None:
    """Until it answers and lists pods again, the claims are those of the last answer, for two minutes."""
    turns = reader_of(socket)
    with serving(socket, answer(pod("a", container("GPU-1")))):
        assert turns.poll() == (claim("a", "GPU-1"),)
    assert turns.poll() == (claim("a", "GPU-1"),)
    with serving(socket, answer()) as kubelet:
        assert turns.poll() == (claim("a", "GPU-1"),)
        assert turns.poll(after=90.0) == (claim("a", "GPU-1"),)
        assert turns.poll(after=11.0) is None
        assert turns.errors == ""
        kubelet.answer = answer(pod("a"))
        assert turns.poll() == ()
        kubelet.answer = answer(pod("b", container("GPU-2")))
        assert turns.poll() == (claim("b", "GPU-2"),)


def test_a_kubelet_that_never_answers_delays_no_turn(socket: Path) -> None:
    """One call is in progress, whose error the first turn after its end reports, and then the next one begins."""
    with sockets.socket(sockets.AF_UNIX) as listener:
        listener.bind(str(socket))
        listener.listen()
        turns = Turns(PodReader(PodResources(socket, timeout=60.0), wait=0.01))
        assert [turns.poll() for _ in range(3)] == [None] * 3
        assert turns.reader.silent
        first, _ = listener.accept()
        listener.setblocking(False)  # noqa: FBT003 - its name is in the method
        with pytest.raises(BlockingIOError):
            listener.accept()
        first.close()
        assert str(socket) in eventually(lambda: turns.errors if turns.poll() is None else None)
        turns.poll()
        listener.setblocking(True)  # noqa: FBT003
        listener.accept()[0].close()


def test_an_answer_that_comes_late_is_taken_by_a_later_turn(socket: Path) -> None:
    with serving(socket, answer(pod("a", container("GPU-1")))) as kubelet:
        turns = Turns(PodReader(PodResources(socket), wait=0.0))
        assert eventually(lambda: turns.poll(after=0.0)) == (claim("a", "GPU-1"),)
        assert kubelet.calls >= 1


def test_the_call_ends_at_its_deadline(socket: Path) -> None:
    with sockets.socket(sockets.AF_UNIX) as listener:
        listener.bind(str(socket))
        listener.listen()
        turns = Turns(PodReader(PodResources(socket, timeout=0.1), wait=60.0))
        assert turns.poll() is None
        assert turns.errors == f"{socket}: the server did not answer within 0.1 s"


def test_an_absent_package_is_named(socket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host without a kubelet does not need it."""
    monkeypatch.setitem(sys.modules, "h2.connection", None)
    with pytest.raises(FileNotFoundError):
        PodResources(socket).read()
    socket.touch()
    with pytest.raises(OSError, match=r"PodResources needs .* install gpumon\[kubernetes\]"):
        PodResources(socket).read()

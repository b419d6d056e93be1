"""Recordings as files, and their masks."""

from __future__ import annotations

import gzip
import json
import re
import tracemalloc
from pathlib import Path

import pynvml
import pytest
from each_case import each_case
from gpumon_sim import capture
from gpumon_sim.capture import EVENT, Capture, CapturedQuery, Timeline
from gpumon_sim.command import main
from gpumon_sim.open_library import open_simulated
from gpumon_sim.recording.mask import FIRST_PID, Mask
from gpumon_sim.recording.summary import summary
from recorded import HEADER, poll_of, recording, replay_capture, write_and_read

from gpumon.model.orders import SimulationError


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A valid recording of a T4."""
    with recording("t4x1") as one:
        one.survey()
        one.polls(1)
        write_and_read(one.capture(), tmp_path)
    return tmp_path / "node.capture"


def test_a_recording_is_read_as_written(tmp_path: Path) -> None:
    """Every kind of value is read as written, and no temporary file remains."""
    with recording("h100x1") as one:
        one.survey()
        one.polls(2)
        made = one.capture()

    assert write_and_read(made, tmp_path) == made
    assert [path.name for path in tmp_path.iterdir()] == ["node.capture"]


def test_a_value_that_does_not_change_is_stored_once() -> None:
    timeline = Timeline()
    for time, value in enumerate((7, 7, 7, 8, 8, 7)):
        timeline.add(time, (0, value))

    assert timeline.times == [0, 3, 5]
    assert [timeline.at(time)[1] for time in (-1.0, 0.0, 2.9, 3.0, 4.9, 5.0, 99.0)] == [7, 7, 7, 8, 8, 7, 7]


def _nested(depth: int) -> list[object]:
    return [_nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda whole: whole[: len(whole) // 2], "ends too early"),
        (lambda _: b"gpus: {3: {lost: true}}\n", "not a recording of gpumon"),
        (lambda _: gzip.compress(b'{"some": "thing"}\n'), "not a recording of gpumon"),
        (lambda _: gzip.compress(b""), "not a recording of gpumon"),
        (lambda whole: gzip.compress(b"\n".join(gzip.decompress(whole).split(b"\n")[:5])), "ends too early"),
        (lambda whole: _change_line(whole, 0, **{capture.FORMAT: 2}), "of format 2"),
        (lambda whole: _change_line(whole, -2, answers=[]), "damaged"),
        (lambda whole: _change_line(whole, 1, takes=["what"]), "damaged"),
        (lambda whole: _change_line(whole, -2, answers=[[10**400, 0]]), "damaged"),
        (lambda whole: _change_line(whole, -2, given=_nested(600)), "damaged"),
    ],
)
def test_an_invalid_file_is_refused_with_a_message(good: Path, spoil: object, message: str) -> None:
    """For a truncated, foreign, newer or damaged file the error names the file and the remedy."""
    assert callable(spoil)
    good.write_bytes(spoil(good.read_bytes()))

    with pytest.raises(SimulationError, match=message) as caught:
        open_simulated(str(good), scenario=None, epoch=0.0)
    assert str(good) in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused_with_a_message(tmp_path: Path) -> None:
    for path in (tmp_path / "none.capture", tmp_path):
        with pytest.raises(SimulationError, match="cannot be read"):
            capture.read(path)


def test_a_failed_write_keeps_the_previous_file(good: Path) -> None:
    before = good.read_bytes()
    broken = capture.read(good)
    broken.answers[CapturedQuery("nvmlDeviceGetName", (object(),))] = Timeline()

    with pytest.raises(TypeError):
        capture.write(broken, good)
    assert good.read_bytes() == before
    assert len(list(good.parent.iterdir())) == 1


def _change_line(whole: bytes, line: int, **values: object) -> bytes:
    lines = gzip.decompress(whole).splitlines()
    lines[line] = json.dumps(json.loads(lines[line]) | values).encode()
    return gzip.compress(b"\n".join(lines) + b"\n")


def test_an_empty_recording_is_valid() -> None:
    with recording("t4x1") as one:
        header = one.capture().header
    assert capture.by_bus_id(Capture(header=header), capture.BUS, 0.0) == {}


def test_one_enormous_line_is_refused_before_it_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kilobytes on the disk may hold a line of gigabytes."""
    monkeypatch.setattr(capture, "LARGEST", 1 << 20)
    path = tmp_path / "node.capture"
    path.write_bytes(gzip.compress(b"[" + b" " * (1 << 26)))
    tracemalloc.start()
    try:
        with pytest.raises(SimulationError, match=r"node\.capture"):
            capture.read(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


@each_case("line", [b"[" + b"[],[[]]," * (1 << 19), b"[" + b"0," * (1 << 20), b"[" * ((1 << 20) + 1)])
def test_a_recording_of_too_many_values_is_refused(
    line: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take 20 times their size in memory, so they are counted before they are parsed."""
    monkeypatch.setattr(capture, "MAX_ITEMS", 1 << 20)
    path = tmp_path / "node.capture"
    path.write_bytes(gzip.compress(line + b"\n" + line))
    with pytest.raises(SimulationError, match=r"node\.capture: more than 512 MiB or 1,048,576 values: record for a sh"):
        capture.read(path)


def test_a_recording_is_not_written_through_a_link(good: Path) -> None:
    """Another user may have left a link under the name of the temporary file."""
    victim = good.with_name("victim")
    victim.write_text("secret")
    good.with_name(f".{good.name}.new").symlink_to(victim)
    capture.write(capture.read(good), good)
    assert victim.read_text() == "secret"


def test_the_summary_lists_only_xids_as_xids() -> None:
    """The data of a MIG change or of another event is no Xid."""
    events = Timeline()
    for code, event_type in ((79, 0x8), (0, 0x100), (48, 0x8)):
        events.add(1.0, (0, "GPU 0", event_type, code, 0, 0), anyway=True)
    assert "Xids 48, 79; no GPU was lost" in summary(Capture(header=HEADER, answers={CapturedQuery(EVENT): events}))


def test_a_recording_of_a_stranger_does_not_control_the_terminal(
    good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its summary has no escape sequences, and values of other types are an error with a remedy."""
    good.write_bytes(_change_line(good.read_bytes(), 0, bindings="\x1b[2J", remarks=["\x1b]0;me\x07"]))
    assert main(["record", str(good), "--summary"]) == 0
    shown = capsys.readouterr().out
    assert "]0;me" in shown
    assert shown.replace("\n", "").isprintable()
    good.write_bytes(_change_line(good.read_bytes(), 0, seconds="x"))
    assert main(["record", str(good), "--summary"]) == 2
    assert "damaged" in capsys.readouterr().err


SECRET = b"of this test"
BUSY = "busy: true"


def test_a_masked_recording_has_no_identifiers_of_the_host(tmp_path: Path) -> None:
    """No UUID, serial, PID, chassis or port of the node is in the file, as text or as bytes."""
    with recording("gb200x4", tmp_path / "scenario.yml", BUSY) as one:
        one.survey()
        one.polls(1)
        plain, masked = one.capture(), one.capture(SECRET)
        secrets = {
            timeline.answers[0][1]
            for function in ("nvmlDeviceGetUUID", "nvmlDeviceGetSerial")
            for _, timeline in plain.questions(function)
        }
        secrets |= {timeline.answers[0][1][:64] for _, timeline in plain.questions("nvmlDeviceGetPlatformInfo")}
        secrets |= {timeline.answers[0][1][:32] for _, timeline in plain.questions("nvmlDeviceGetGpuFabricInfoV")}
        secrets |= {
            entry[:8]
            for _, timeline in plain.questions("nvmlDeviceGetComputeRunningProcesses_v3")
            for entry in timeline.answers[0][1]
        }
    write_and_read(masked, tmp_path)
    text = gzip.decompress((tmp_path / "node.capture").read_bytes()).decode()

    assert len(secrets) > 12
    assert not [secret for secret in secrets if secret.removeprefix("GPU-") in text]
    assert plain.timeline("nvmlSystemGetDriverVersion") == masked.timeline("nvmlSystemGetDriverVersion")


def test_lookups_work_in_a_masked_recording(tmp_path: Path) -> None:
    """A GPU is found by its masked UUID, and its PIDs do not exist on the host."""
    with recording("h100x1", tmp_path / "scenario.yml", BUSY) as one:
        one.survey()
        one.polls(1)
        capture = write_and_read(one.capture(SECRET), tmp_path)

    with replay_capture(capture) as node:
        [reading] = poll_of(node).poll().gpus
        assert reading.uuid is not None
        assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", reading.uuid)
        assert node.node.uuids() == {reading.bus_id: reading.uuid}
        handle = pynvml.nvmlDeviceGetHandleByUUID(reading.uuid)
        assert pynvml.nvmlDeviceGetUUID(handle) == reading.uuid
        assert re.fullmatch(r"\d{13}", pynvml.nvmlDeviceGetSerial(handle))
        assert [process.pid >= FIRST_PID for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)] == [True]


def test_only_the_same_secret_gives_the_same_mask() -> None:
    """Two recordings of a host can be compared only with the secret of their masks."""
    uuid = "GPU-4d2f7c1e-5d0b-6a0e-8c1f-2b3a4c5d6e7f"
    assert Mask(SECRET).inputs(uuid) == Mask(SECRET).inputs(uuid.upper().replace("GPU", "GPU")) != uuid
    assert Mask(SECRET).inputs(uuid) != Mask(b"another").inputs(uuid)
    assert Mask(None).inputs(uuid) == uuid
    assert Mask(SECRET).inputs(f"MIG-{uuid}/1/0") == f"MIG-{Mask(SECRET).inputs(uuid)}/1/0"


def test_placeholder_identifiers_are_not_masked() -> None:
    """A serial of zeros, or an absent one, is not masked."""
    mask = Mask(SECRET)
    assert mask.outputs("nvmlDeviceGetSerial", ("0",)) == ("0",)
    assert mask.outputs("nvmlDeviceGetSerial", ("N/A",)) == ("N/A",)
    assert mask.outputs("nvmlDeviceGetSerial", ("1650223012345",)) != ("1650223012345",)

"""Identifiers of a host are masked: equal ones alike, and in their format."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pynvml
from gpumon_sim.recording.mask import FIRST_PID, Mask
from recorded import poll_of, recording, replay_capture, write_and_read

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

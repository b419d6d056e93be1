"""What tells one host from another is masked, alike as alike, and in the form it had."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pynvml
from recorded import poll_of, recording, replayed, stored

from gpumon.sim.recording.mask import FIRST_PID, Mask

SECRET = b"of this test"
BUSY = "busy: true"


def test_a_masked_recording_names_nothing_of_the_host(tmp_path: Path) -> None:
    """No uuid, serial, process id, chassis or port of the node stands in the file, as text or as bytes."""
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
    stored(masked, tmp_path)
    text = gzip.decompress((tmp_path / "node.capture").read_bytes()).decode()

    assert len(secrets) > 12
    assert not [secret for secret in secrets if secret.removeprefix("GPU-") in text]
    assert plain.timeline("nvmlSystemGetDriverVersion") == masked.timeline("nvmlSystemGetDriverVersion")


def test_lookups_work_in_a_masked_recording(tmp_path: Path) -> None:
    """A GPU is found by the uuid that it gives, and its processes exist nowhere."""
    with recording("h100x1", tmp_path / "scenario.yml", BUSY) as one:
        one.survey()
        one.polls(1)
        capture = stored(one.capture(SECRET), tmp_path)

    with replayed(capture) as node:
        [seen] = poll_of(node).poll().gpus
        assert seen.uuid is not None
        assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", seen.uuid)
        assert node.node.uuids() == {seen.bus_id: seen.uuid}
        handle = pynvml.nvmlDeviceGetHandleByUUID(seen.uuid)
        assert pynvml.nvmlDeviceGetUUID(handle) == seen.uuid
        assert re.fullmatch(r"\d{13}", pynvml.nvmlDeviceGetSerial(handle))
        assert [one.pid >= FIRST_PID for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)] == [True]


def test_one_secret_masks_alike_and_another_does_not() -> None:
    """So two recordings of a host can be compared by whoever keeps the secret, and by nobody else."""
    uuid = "GPU-4d2f7c1e-5d0b-6a0e-8c1f-2b3a4c5d6e7f"
    assert Mask(SECRET).inputs(uuid) == Mask(SECRET).inputs(uuid.upper().replace("GPU", "GPU")) != uuid
    assert Mask(SECRET).inputs(uuid) != Mask(b"another").inputs(uuid)
    assert Mask(None).inputs(uuid) == uuid
    assert Mask(SECRET).inputs(f"MIG-{uuid}/1/0") == f"MIG-{Mask(SECRET).inputs(uuid)}/1/0"


def test_what_says_that_there_is_none_stays() -> None:
    """A serial of zeros, and one that is not there, are no secrets."""
    mask = Mask(SECRET)
    assert mask.outputs("nvmlDeviceGetSerial", ("0",)) == ("0",)
    assert mask.outputs("nvmlDeviceGetSerial", ("N/A",)) == ("N/A",)
    assert mask.outputs("nvmlDeviceGetSerial", ("1650223012345",)) != ("1650223012345",)

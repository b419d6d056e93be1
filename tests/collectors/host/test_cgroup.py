"""The owner of a process, by the content of its /proc/PID/cgroup."""

from __future__ import annotations

from each_case import each_case

from gpumon.collectors.host.cgroup import owner_of
from gpumon.model.allocation import MAX_NAME, Owner

OUTER, INNER = "0f" * 32, "3a" * 32
UID = "8f2d7c11-06a5-4f5e-9d21-5b8c0e4a7d90"
SLICED = UID.replace("-", "_")
STATIC = "2d6d93b5d1e8c4b72d6d93b5d1e8c4b7"
POD = Owner(pod_uid=UID, container_id=INNER)
CONTAINER = Owner(container_id=INNER)
BURSTABLE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICED}.slice"
ROOTLESS = "/user.slice/user-1000.slice/user@1000.service/user.slice"
STEPS = "/system.slice/slurmstepd.scope"
SLUID = "sEKNKTV3WPV500"
V1_SLURM = """\
11:freezer:/slurm/uid_1000/job_42/step_0
10:memory:/system.slice/slurmd.service
9:devices:/slurm/uid_1000/job_42/step_0/task_1
8:cpu,cpuacct:/system.slice/slurmd.service
1:name=systemd:/system.slice/slurmd.service
0::/system.slice/slurmd.service
"""
V1_NESTED = f"""\
3:devices:/docker/{OUTER}/docker/{INNER}
2:misc:/docker/{OUTER}
0::/docker/{OUTER}
"""


@each_case(
    ("path", "owner"),
    [
        (f"{BURSTABLE}/cri-containerd-{INNER}.scope", POD),
        (f"{BURSTABLE}/crio-{INNER}.scope", POD),
        (f"{BURSTABLE}/crio-{INNER}.scope/container", POD),
        (f"/kubepods.slice/kubepods-pod{SLICED}.slice/cri-containerd-{INNER}.scope", POD),
        (f"/kubepods/burstable/pod{UID}/{INNER}", POD),
        (f"/kubepods/pod{STATIC}/{INNER}", Owner(pod_uid=STATIC, container_id=INNER)),
        (f"/system.slice/containerd.service{BURSTABLE}:cri-containerd:{INNER}", POD),
        (f"/docker/{OUTER}/kubelet.slice/kubelet-kubepods-pod{SLICED}.slice/cri-containerd-{INNER}.scope", POD),
        (f"/../../kubepods-besteffort.slice/kubepods-besteffort-pod{SLICED}.slice/cri-containerd-{INNER}.scope", POD),
        (f"/../../pod{UID}/{INNER}", POD),
    ],
)
def test_a_process_of_a_pod_has_the_uid_and_the_container(path: str, owner: Owner) -> None:
    """The systemd and the cgroupfs driver of the kubelet, nested in a container or seen from one."""
    assert owner_of(f"0::{path}\n") == owner


@each_case(
    ("path", "owner"),
    [
        (f"/system.slice/docker-{INNER}.scope", CONTAINER),
        (f"/docker/{INNER}", CONTAINER),
        (f"{ROOTLESS}/docker-{INNER}.scope", CONTAINER),
        (f"/machine.slice/libpod-{INNER}.scope/container", CONTAINER),
        (f"/machine.slice/machine-libpod_pod_{OUTER}.slice/libpod-{INNER}.scope/container", CONTAINER),
        (f"{ROOTLESS}/libpod-{INNER}.scope/container", CONTAINER),
        (f"/system.slice/nerdctl-{INNER}.scope", CONTAINER),
        (f"/default/{INNER}", CONTAINER),
        (f"/../{INNER}", CONTAINER),
        (f"/docker/{INNER}/system.slice/trainer.service", CONTAINER),
        (f"/docker/{INNER[:-1]}", Owner()),
        (f"/docker/{INNER}0", Owner()),
    ],
)
def test_a_process_of_a_container_has_its_id(path: str, owner: Owner) -> None:
    """Runtimes other than Kubernetes; a systemd unit inside or around the container is not its owner."""
    assert owner_of(f"0::{path}\n") == owner


@each_case(
    ("path", "owner"),
    [
        (f"{STEPS}/job_42/step_0/user/task_0", Owner(slurm_job_id="42")),
        (f"{STEPS}/job_42/step_batch/slurm", Owner(slurm_job_id="42")),
        ("/system.slice/n01_slurmstepd.scope/job_42/step_0/user/task_0", Owner(slurm_job_id="42")),
        ("/slurmstepd.scope/job_42/step_extern/user/task_special", Owner(slurm_job_id="42")),
        (f"{STEPS}/{SLUID}/step_0/user/task_0", Owner(slurm_sluid=SLUID)),
        (
            f"{BURSTABLE}/cri-containerd-{INNER}.scope{STEPS}/job_42/step_0/user/task_0",
            Owner(slurm_job_id="42", pod_uid=UID, container_id=INNER),
        ),
        (f"{STEPS}/system", Owner(systemd_unit="slurmstepd.scope")),
        (f"{ROOTLESS}/slurmstepd.scope/job_42/step_0", Owner()),
        ("/user.slice/user-1000.slice/slurm/uid_0/job_42/step_0", Owner()),
        ("/system.slice/job_42", Owner()),
    ],
)
def test_a_process_of_a_slurm_job_has_its_id(path: str, owner: Owner) -> None:
    """Version 2, in a pod too; a user's own cgroup of such a name is no job."""
    assert owner_of(f"0::{path}\n") == owner


@each_case(
    ("path", "unit"),
    [
        ("/system.slice/vllm@0.service", "vllm@0.service"),
        ("/system.slice/system-vllm.slice/vllm@1.service/sub", "vllm@1.service"),
        ("/../vllm.service", "vllm.service"),
        (f"/system.slice/{'a' * 200}.service", "a" * MAX_NAME),
        ("/system.slice/a\x1b[31m.service", "a\N{REPLACEMENT CHARACTER}[31m.service"),
        ("/user.slice/user-1000.slice/session-3.scope", None),
        ("/../user-1000.slice/session-c1.scope", None),
        ("/../session-3.scope", None),
        ("/../user-1000.slice/run-u5.scope", None),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/notebook.service", None),
        ("/", None),
        ("", None),
    ],
)
def test_another_process_has_its_unit_unless_a_user_has_started_it(path: str, unit: str | None) -> None:
    """Sessions and the units of users name no owner: that is the user."""
    assert owner_of(f"0::{path}\n") == Owner(systemd_unit=unit)


@each_case(
    ("cgroup", "owner"),
    [
        (V1_SLURM, Owner(slurm_job_id="42")),
        (V1_SLURM.replace("/slurm/", "/slurm_n01/"), Owner(slurm_job_id="42")),
        (V1_NESTED, CONTAINER),
        (f"4:pids:/\n3:devices:{BURSTABLE}/cri-containerd-{INNER}.scope\n0::/", POD),
        (f"0::/machine.slice/libpod-conmon-{INNER}.scope\n", Owner()),
        (f"0::{BURSTABLE}/crio-conmon-{INNER}.scope\n", Owner()),
        ("", Owner()),
        ("garbage\n0:\n", Owner()),
    ],
)
def test_all_lines_are_read(cgroup: str, owner: Owner) -> None:
    """Version 1 has a line for each hierarchy; the monitor of a container is no workload in any."""
    assert owner_of(cgroup) == owner

"""READINESS CHECKS of the agent, its systemd unit, and what it needs from the host."""

from __future__ import annotations

import re
import shlex

from gpumon import __version__
from gpumon.cli.readiness.host_facts import ABSENT, SOCKET_UNIT, UNIT, UNREADABLE, HostFacts, Readiness, ReadinessCheck
from gpumon.health.verdict import FAIL, OK, UNKNOWN, WARN

AS_ROOT = "sudo gpumon doctor"
DROP_INS = f"/etc/systemd/system/{UNIT}.d"
ADD_DROP_IN = (
    f"sudo mkdir -p {DROP_INS} && printf '[Service]\\n%s\\n' '{{line}}' | sudo tee {DROP_INS}/{{name}}.conf && "
    "sudo systemctl daemon-reload && sudo systemctl restart gpumon"
)
LOGS = "sudo journalctl -u gpumon -n 50"


def configuration(facts: HostFacts) -> Readiness:
    error, web = facts.errors.get("configuration", "").partition("\n")[2], facts.errors.get("web", "")
    if not error and "denied" in web:
        return Readiness(UNKNOWN, f"{web}.", AS_ROOT)
    if problem := f"{error} (The answers below are those for the defaults.)" if error else web:
        file = re.match(r"(\S+\.ya?ml):\d+:", problem)
        flag = f" --config.file {shlex.quote(file[1])}" if file else ""
        return Readiness(FAIL, problem, f"gpumon config check{flag}")
    return Readiness(OK, "It is valid.")


def agent(facts: HostFacts) -> Readiness:
    version, error, state = facts.node["build"]["version"], facts.errors.get("agent"), facts.unit.get("ActiveState")
    if error is None and version == __version__:
        return Readiness(OK, f"It answers, version {version}.")
    if error is None:
        detail = f"Version {version} runs, {__version__} is installed."
        return Readiness(WARN, detail, "sudo systemctl restart gpumon")
    detail = f"No agent answers at {facts.agent}: {error}. "
    if "denied" in error:
        return Readiness(UNKNOWN, detail, AS_ROOT)
    if refused := facts.errors.get("unit"):
        return Readiness(UNKNOWN, f"{detail}systemd does not report {UNIT}: {refused}.", AS_ROOT)
    if state is None:
        return Readiness(FAIL, f"{detail}There is no unit {UNIT}.", "gpumon serve")
    detail += f"Its unit is {state}."
    if state == "activating" and facts.errors.get("configuration"):
        detail += " It starts within seconds after its configuration is valid."
    command = {"failed": "reset-failed gpumon gpumon.socket; sudo systemctl start", "inactive": "start"}
    return Readiness(FAIL, detail, f"sudo systemctl {command.get(state, 'restart')} gpumon; {LOGS}")


def port(facts: HostFacts) -> Readiness:
    web, error, up = facts.configuration.web, facts.errors.get("port", ""), "agent" not in facts.errors
    address, (host, number) = web.listen_address, web.address
    if facts.listeners:
        listening = " and ".join(facts.listeners)
        named = facts.configuration.origin("web.listen_address")
        if named != "default" and not any(_same(each, host, number) for each in facts.listeners):
            detail = f"systemd listens on {listening}, and the {address} of {named} has no effect."
            return Readiness(WARN, detail, f"sudo systemctl edit {SOCKET_UNIT}  # ListenStream, see docs/install.md")
        return Readiness(OK, f"systemd listens on {listening}.")
    if error and not (up and error.endswith(("in use", "denied"))):
        remedy = f"sudo ss -ltnp 'sport = :{number}'" if "in use" in error else "ip -brief address"
        return Readiness(FAIL, f"The agent cannot listen on {address}: {error}.", remedy)
    if up and not error and number:
        detail = f"The agent runs, but {address} is free: it was started with another address."
        return Readiness(WARN, detail, "sudo systemctl restart gpumon")
    return Readiness(OK, f"The agent listens on {address}." if up else f"{address} is free.")


def _same(listener: str, host: str, number: int) -> bool:
    bound, _, port = listener.replace("[", "").replace("]", "").rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host
    return port == str(number) and (bound == host or {bound, host} <= {"", "0.0.0.0", "::"})  # noqa: S104 - binds nothing


def store(facts: HostFacts) -> Readiness:
    path, error = facts.configuration.store.path, facts.errors.get("store")
    if "agent" not in facts.errors and facts.node["store_up"] == 0:
        error = facts.notice("store") or "the agent cannot write it"
    elif "agent" not in facts.errors:
        return Readiness(OK, "The agent writes it.")
    if error == UNREADABLE:
        return Readiness(UNKNOWN, f"{path}: {error}.", AS_ROOT)
    if error:
        upgrade = "sudo apt-get install --only-upgrade gpumon || sudo dnf upgrade gpumon"
        remedy = upgrade if "newer gpumon" in error else f"df -h {path.parent}; sudo ls -la {path.parent}"
        return Readiness(FAIL, f"{path}: {error.removeprefix(f'{path}: ')}.", remedy)
    return Readiness(OK, f"{path} is not damaged." if path.exists() else f"{path} is created by the agent.")


def kernel_log(facts: HostFacts) -> Readiness:
    path, up = facts.configuration.kernel_log.path, facts.node["kernel_log_up"]
    if facts.kernel_log is None:
        return Readiness(ABSENT, "A simulated node has none." if facts.node["simulated"] else f"There is no {path}.")
    if up is None:  # no agent answers
        unprivileged = bool(facts.unit.get("User")) and "cap_syslog" not in facts.unit["AmbientCapabilities"]
        up = not unprivileged if facts.unit else facts.kernel_log
    if up:
        return Readiness(OK, f"{path} can be read.")
    if not facts.unit:
        return Readiness(UNKNOWN, f"This user may not read {path}.", AS_ROOT)
    remedy = ADD_DROP_IN.format(name="kernel-log", line="AmbientCapabilities=CAP_SYSLOG")
    return Readiness(FAIL, f"The agent may not read {path}, so it misses Xids and SXids.", remedy)


def cgroup(facts: HostFacts) -> Readiness:
    if not facts.unit:
        unknown = Readiness(UNKNOWN, f"systemd does not report {UNIT}.", AS_ROOT)
        return unknown if "unit" in facts.errors else Readiness(ABSENT, f"There is no unit {UNIT}.")
    if facts.cgroup2 and facts.unit.get("Delegate") == "yes":
        return Readiness(OK, f"{UNIT} has Delegate=yes, with cgroup version 2.")
    detail = "so the ranks of a probe are contained only by their process group."
    if not facts.cgroup2:
        remedy = "sudo grubby --update-kernel=ALL --args=systemd.unified_cgroup_hierarchy=1  # or: /etc/default/grub"
        return Readiness(WARN, f"The host has cgroup version 1, {detail}", remedy)
    return Readiness(
        WARN, f"{UNIT} lacks Delegate=yes, {detail}", ADD_DROP_IN.format(name="cgroup", line="Delegate=yes")
    )


def memlock(facts: HostFacts) -> Readiness:
    if not facts.has_gpus:
        return Readiness(ABSENT, "There is no GPU.")
    who, limit = UNIT if facts.unit else "This shell", int(facts.memlock)
    if facts.unit:
        text = facts.unit["LimitMEMLOCK"]
        limit = int(text) if text.isdecimal() and int(text) < 1 << 63 else -1
    if limit < 0:
        return Readiness(OK, f"{who} may lock memory without limit.")
    remedy = "printf '* - memlock unlimited\\n' | sudo tee /etc/security/limits.d/90-memlock.conf  # then log in again"
    remedy = ADD_DROP_IN.format(name="memlock", line="LimitMEMLOCK=infinity") if facts.unit else remedy
    return Readiness(WARN, f"{who} may lock only {limit >> 10} KiB; NCCL and RDMA pin more memory.", remedy)


def scheduler(facts: HostFacts) -> Readiness:
    if not facts.schedulers:
        unknown = Readiness(UNKNOWN, "The processes of this host cannot be listed.", AS_ROOT)
        return unknown if facts.schedulers is None else Readiness(ABSENT, "No slurmd and no kubelet is on this host.")
    schedulers, probe = " and ".join(facts.schedulers), facts.configuration.probe
    schedulers += " is on this host" if len(facts.schedulers) == 1 else " are on this host"
    if not probe.enabled or probe.scheduler_gate or facts.node["simulated"]:
        gate = "a gate is set" if probe.scheduler_gate else "no probe is scheduled"
        simulated = facts.node["simulated"] and probe.enabled and not probe.scheduler_gate
        return Readiness(OK, f"{schedulers}, and {'a simulated node needs no gate' if simulated else gate}.")
    detail = f"{schedulers}, and probe.scheduler_gate (docs/probe.md) is not set: no scheduled probe runs."
    return Readiness(WARN, detail, "sudoedit /etc/gpumon/gpumon.yml && sudo systemctl reload gpumon")


CHECKS = (
    ReadinessCheck("configuration", "Is the configuration valid?", configuration),
    ReadinessCheck("agent", "Does the agent answer on its unix socket, in the installed version?", agent),
    ReadinessCheck("port", "Can the agent listen on `web.listen_address`?", port),
    ReadinessCheck("store", "Is the store intact, and can the agent write it?", store),
    ReadinessCheck("kernel_log", "May the agent read the kernel log, which has the Xids?", kernel_log),
    ReadinessCheck("cgroup", "Is a cgroup delegated to the agent's unit, for the ranks of a probe?", cgroup),
    ReadinessCheck("memlock", "May the ranks of a probe lock memory without limit?", memlock),
    ReadinessCheck("scheduler", "Is slurmd or a kubelet on this host, and a gate for probes set?", scheduler),
)

#!/bin/sh
# probe.scheduler_gate of gpumon on a node of Kubernetes: checks whether the node is free for an all-reduce of half a
# minute. Exit code: 0 free, 1 not free, 2 unknown; the last line states why. gpumon skips its run unless it is 0.
#
# It lists pods of this node that have GPUs by limit (nvidia.com/gpu) and have not ended. In a pod with the token of a
# service account it asks the API server with python3, else with kubectl. It needs the right to list pods in all namespaces, which
# schedulerGate.enabled of the Helm chart grants, or:
#
#   kubectl create clusterrole gpumon-gate --verb=list --resource=pods
#   kubectl create clusterrolebinding gpumon-gate --clusterrole=gpumon-gate --serviceaccount=monitoring:gpumon
#
# What this does not do:
# - It reserves nothing. A pod that is bound a moment later takes seconds to start; its first process on a GPU ends the
#   run within two seconds. To rule that out too, cordon the node here, and uncordon it when the run is over.
# - It offers no part of a node, because the API server does not report which GPUs a pod has: probe.allow_partial has no
#   effect.
# - It does not detect GPUs that are allocated by resource claims (DRA), or by time slicing under another name: see
#   RESOURCE.
#
# Settings, from the environment:
#   NODE_NAME  the node (of a pod, by the downward API: spec.nodeName), else the host's name
#   RESOURCE   nvidia.com/gpu
#   ACCOUNT    folder with token and ca.crt of the service account
set -u
PATH=${PATH:+$PATH:}/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
node=${NODE_NAME:-$(hostname)}
resource=$(printf '%s' "${RESOURCE:-nvidia.com/gpu}" | sed 's/\./\\./g')
account=${ACCOUNT:-/var/run/secrets/kubernetes.io/serviceaccount}
unfinished="spec.nodeName=$node,status.phase!=Succeeded,status.phase!=Failed"

# Both functions print a line for each pod: namespace/name and its limits of RESOURCE.
by_kubectl() {
    timeout 8 kubectl get pods --all-namespaces --request-timeout=6s --field-selector="$unfinished" \
        --output="jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name} {.spec['initContainers','containers'][*].resources.limits.$resource}{'\n'}{end}"
}
by_python() {
    timeout 8 python3 -I - "$unfinished" "${RESOURCE:-nvidia.com/gpu}" "$account" << 'END'
import json, os, ssl, sys, urllib.parse, urllib.request

unfinished, resource, account = sys.argv[1:]
host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
url = f"https://{f'[{host}]' if ':' in host else host}:{port}/api/v1/pods?fieldSelector={urllib.parse.quote(unfinished)}"
try:
    with open(f"{account}/token", encoding="utf-8") as file:
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {file.read().strip()}"})
    trusted = ssl.create_default_context(cafile=f"{account}/ca.crt")
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted))
    with direct.open(request, timeout=6) as answer:
        pods = json.load(answer)["items"]
except (OSError, ValueError, KeyError) as error:
    sys.exit(str(error))
for pod in pods:
    containers = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
    limits = [(each.get("resources") or {}).get("limits") or {} for each in containers]
    print(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}", *(each[resource] for each in limits if resource in each))
END
}
if [ -r "$account/token" ]; then ask=by_python; else ask=by_kubectl; fi

pods=$($ask 2>&1) || {
    echo "the API server does not list the pods on node $node: $pods"
    exit 2
}
# A line without a namespace is a warning of kubectl. Every node has pods, at least that of its network: if there are none,
# the API server has no node of this name, and answers without an error.
if ! printf '%s\n' "$pods" | grep -q '^[^ /]\{1,\}/[^ /]'; then
    echo "no pod at all on node $node: is that its name? Set NODE_NAME (spec.nodeName)"
    exit 2
fi
holders=$(printf '%s\n' "$pods" | awk '$1 ~ /.\/./ {
    gpus = 0
    for (field = 2; field <= NF; field++) gpus += $field != "0"
    if (gpus) { printf "%s%s", sep, $1; sep = ", " }
}')
if [ -n "$holders" ]; then
    echo "pods with GPUs on node $node: $holders"
    exit 1
fi
echo "no pod on node $node has a GPU"

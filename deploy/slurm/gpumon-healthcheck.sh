#!/bin/sh
# HealthCheckProgram of slurm.conf: checks whether this node's GPUs are fit for work (gpumon check), and writes the result
# to the system log unless it is "ok". With GPUMON_SLURM_DRAIN=fail it also drains the node while a verdict is "fail".
#
# What this does not do:
# - It drains nothing by default: without GPUMON_SLURM_DRAIN it only writes to the log.
# - It drains for "fail" alone: not for a warning, and not because gpumon does not run. In a maintenance window it neither
#   drains nor resumes.
# - It does not change a node that is already drained, draining, down or failing, nor its reason.
# - It resumes nothing by default. With GPUMON_SLURM_RESUME=yes it resumes only what it drained itself: nodes whose reason
#   is as it wrote it, with the checksum at its end. A node whose reason is edited stays drained, and so does one that is to
#   be rebooted, or in a maintenance reservation.
# - It drains a node once per failure: a node that an operator resumes while it fails stays in service, until its verdict
#   was ok or warn, or until it is rebooted.
# - It does not drain a whole partition: it counts the nodes of each partition of this node that are drained with its
#   reason, waits a random delay, counts again, and drains only if this node keeps within GPUMON_SLURM_MAX_DRAINED both
#   times. If it cannot count, it does not drain. Nodes that an operator drained are not counted.
# - It does not limit the prolog, for whose refusal Slurm itself drains the node.
# - It ends no job: a draining node finishes its jobs.
# - It never fails: slurmd does not register with the controller before this program has exited 0.
#
# Settings, beside those of gpumon-common.sh:
#   GPUMON_SLURM_DRAIN        no, or fail
#   GPUMON_SLURM_RESUME       no, or yes
#   GPUMON_SLURM_MAX_DRAINED  max percentage of a partition's nodes that gpumon drains (10); at least one node, unless 0
#   GPUMON_SLURM_DELAY        max random delay in seconds between both counts (15): slurmd ends this program after 60 s
#   GPUMON_SLURM_MARK         file that exists while a failure for which the node was drained lasts
set -u
common=${0%/*}/gpumon-common.sh
if [ ! -r "$common" ]; then # a failure would make Slurm drain the node
    logger -st gpumon-healthcheck -- "$common is missing: GPUs are not checked"
    exit 0
fi
# shellcheck source-path=SCRIPTDIR source=gpumon-common.sh
. "$common"

node=${SLURMD_NODENAME:-$(hostname -s)}
own='gpumon: '
mark=${GPUMON_SLURM_MARK:-/run/gpumon-slurm-drained}

# Prints the reason $1 with its checksum, by which an edited reason is detected, also after a reboot.
sign() {
    set -- "$1" "$(printf '%s' "$1" | cksum)"
    printf '%s #%s' "$1" "${2%% *}"
}

# Prints why this node may not be drained as well; nothing if it may.
find_refusal() {
    nodes=$(timeout -k 1 8 scontrol --oneliner show node) || {
        echo "Slurm does not list the nodes"
        return
    }
    printf '%s\n' "$nodes" | awk -v node="$node" -v own="$own" -v share="${GPUMON_SLURM_MAX_DRAINED:-10}" '
        function field(name, from) { # its first match: a reason, at the end of the line, may contain the same words
            from = index($0, " " name "=")
            return from ? substr($0, from + length(name) + 2) : ""
        }
        /^NodeName=/ {
            split(field("Partitions"), words, " ")
            count = split(words[1], names, ",")
            split(field("State"), words, " ")
            drained = words[1] ~ /DRAIN/ && index(field("Reason"), own) == 1
            for (i = 1; i <= count; i++) { nodes[names[i]]++; drains[names[i]] += drained }
            if ($1 == "NodeName=" node) {
                state = words[1]
                for (i = 1; i <= count; i++) mine[names[i]]
            }
        }
        END {
            if (state ~ /DRAIN|DOWN|FAIL|MAINT/) { print "its state is " state " by now"; exit } # an operator was faster
            if (share !~ /^[0-9]+$/ || share + 0 > 100) { print "GPUMON_SLURM_MAX_DRAINED is " share ", not 0 to 100"; exit }
            for (name in mine) {
                found = 1
                limit = int(nodes[name] * share / 100)
                if (share > 0 && limit < 1) limit = 1
                if (drains[name] + 1 > limit) {
                    print "gpumon has drained " drains[name] " of " nodes[name] " nodes of partition " name ", of max " limit
                    exit
                }
            }
            if (!found) print "Slurm lists no partition of this node"
        }' || echo "the nodes cannot be counted"
}

# Waits up to GPUMON_SLURM_DELAY seconds. Nodes that fail at the same time then count one after the other.
wait_random() {
    case "${GPUMON_SLURM_DELAY:-15}" in
    *[!0-9]* | ???*) limit=15 ;;
    *) limit=${GPUMON_SLURM_DELAY:-15} ;;
    esac
    sleep "$(od -An -N2 -tu2 /dev/urandom | awk -v limit="$limit" '{ printf "%.3f", $1 / 65536 * limit }')"
}

drain() {
    reason_text=$(sign "$(printf '%s%s' "$own" "$line" | cut -c1-188)")
    if [ -e "$mark" ]; then
        log "node $node was resumed while it fails, and is not drained again (remove $mark to have it drained)"
        return
    fi
    refusal=$(find_refusal)
    if [ -z "$refusal" ]; then
        wait_random
        refusal=$(find_refusal)
    fi
    if [ -n "$refusal" ]; then
        log "node $node is not drained: $refusal"
    elif timeout -k 1 8 scontrol update nodename="$node" state=drain reason="$reason_text"; then
        touch "$mark" || log "$mark cannot be written: if an operator resumes the node while it fails, it is drained again"
        log "node $node drained: $reason_text"
    else
        log "node $node could not be drained"
    fi
}

# shellcheck disable=SC2119 # the whole node: no argument
run_check
[ "$code" -eq 0 ] || log "$line (exit code $code)"

case "$code" in 0 | 1) rm -f "$mark" ;; esac

case "$line" in *" [maintenance until "*) exit 0 ;; esac # the operator works on the node
case "$code ${GPUMON_SLURM_DRAIN:-no} ${GPUMON_SLURM_RESUME:-no}" in
"2 fail "*) change=drain ;;
"0 "*" yes") change=resume ;;
*) exit 0 ;;
esac

record=$(timeout -k 1 8 scontrol --oneliner show node "$node") || {
    log "Slurm does not report the state of node $node: neither drained nor resumed"
    exit 0
}
# The first match of each: a reason may contain the same words.
state=${record#* State=}
state=${state%% *}
# Slurm appends how far a reboot is, and [user@time]. Other fields may follow.
reason=$(printf '%s\n' "$record" | LC_ALL=C sed -nE 's/.* Reason=(.*) \[[^] ]*@[^] ]*\]( [A-Za-z]+=.*| *)$/\1/p' |
    LC_ALL=C sed -E 's/( : [Rr]eboot (ASAP|requested|issued|complete))+$//')

case "$change $state" in
"drain "*DRAIN* | "drain "*DOWN* | "drain "*FAIL* | "drain "*MAINT*)
    ;; # already out of service
"drain "*) drain ;;
"resume "*DOWN* | "resume "*FAIL* | "resume "*REBOOT* | "resume "*POWER* | "resume "*MAINT*)
    ;; # not only by this program: to resume would cancel the reboot that an administrator requested
"resume "*DRAIN*)
    case "$reason" in
    "$own"*)
        if [ "$reason" != "$(sign "${reason% #*}")" ]; then
            : # edited, so that an administrator keeps the node drained
        elif timeout -k 1 8 scontrol update nodename="$node" state=resume; then
            log "node $node resumed: $line"
        else
            log "node $node could not be resumed"
        fi
        ;;
    esac
    ;;
esac
exit 0

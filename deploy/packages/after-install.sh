#!/bin/sh
# After the files of a package were installed: creates the user, compiles the modules and starts the agent. A running agent
# is restarted; gpumon.socket holds its port meanwhile, so a scrape waits instead of failing.
set -e
case "$1" in configure | [0-9]*) ;; *) exit 0 ;; esac
prefix=/opt/gpumon

version=$($prefix/bin/python -I -S -c 'import sys; print("%d.%d" % sys.version_info[:2])')
systemd-sysusers gpumon.conf

# The agent may not write here. Without compiled modules each start of a child process would compile them. Compiled modules
# that are there already are those of an earlier version, because a removal deletes them.
[ -e $prefix/lib/agent/gpumon/__pycache__ ] && upgrade=yes || upgrade=no
$prefix/bin/python -I -m compileall -q -f $prefix/lib/agent "$prefix/lib/python$version" || :

invoke=systemctl
if command -v deb-systemd-invoke > /dev/null; then invoke=deb-systemd-invoke; fi # obeys policy-rc.d
[ "$upgrade" = yes ] || systemctl preset gpumon.socket gpumon.service || :
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload
if [ "$upgrade" = yes ]; then
    # Also one that fails or waits for its next start: with another file, or this version, it may succeed.
    case $(systemctl is-active gpumon.service || :) in
    inactive | unknown) ;;
    *)
        systemctl reset-failed gpumon.service gpumon.socket 2> /dev/null || : # a start limit that an earlier unit had
        $invoke restart gpumon.service || :
        ;;
    esac
elif systemctl is-enabled -q gpumon.service; then
    $invoke start gpumon.socket gpumon.service || :
fi

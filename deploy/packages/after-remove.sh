#!/bin/sh
# After a removal: a purge on Debian deletes the agent's state. The user stays, because files elsewhere may belong to it.
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
[ "$1" != purge ] || rm -rf /var/lib/gpumon /etc/gpumon /run/gpumon

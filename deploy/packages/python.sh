#!/bin/bash
# /opt/gpumon/bin/python of the rpm: RHEL 9 has newer Pythons beside its 3.9, which another may replace after the
# installation. The name that it is called by makes /opt/gpumon the virtual environment.
# shellcheck disable=SC3038 # bash has exec -a
for version in 3.12 3.11 3.13 3.10; do
    if [ -x "/usr/bin/python$version" ]; then exec -a "$0" "/usr/bin/python$version" "$@"; fi
done
echo "gpumon needs Python 3.10 or later: dnf install python3.12" >&2
exit 127

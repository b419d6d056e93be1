#!/bin/sh
# Installs the given Debian packages that are missing. A package is present if its command exists: the command of the same
# name, or the one before the colon, as in systemd-sysusers:systemd.
set -eu
missing=
for package in "$@"; do command -v "${package%%:*}" > /dev/null || missing="$missing ${package#*:}"; done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "The tests need these Debian packages:$missing. Install them as root: apt-get install$missing" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq < /dev/null
# shellcheck disable=SC2086 # a list of words
apt-get install -y -qq --no-install-recommends $missing < /dev/null

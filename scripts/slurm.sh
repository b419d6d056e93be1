#!/bin/sh
# Unpacks Slurm and munge from Debian's archive in a folder, for the tests: slurm.sh FOLDER. Nothing is installed, so that no
# daemon is enabled, and the agent detects no scheduler on this host. Their libraries come along where the host lacks them.
set -eu
folder=$1
[ ! -e "$folder/usr/sbin/slurmd-wlm" ] || exit 0
command -v apt-get > /dev/null || { echo "The tests of Slurm need a Debian or Ubuntu, for its packages" >&2; exit 1; }
mkdir -p "$(dirname "$folder")"
new=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$new"' EXIT
[ "$(id -u)" != 0 ] || apt-get update -qq < /dev/null
packages="slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge"
# shellcheck disable=SC2086 # a list of words
libraries=$(apt-get install -s --no-install-recommends $packages | sed -n 's/^Inst \(lib[^ ]*\).*/\1/p')
# shellcheck disable=SC2086
(cd "$new" && apt-get download -qq -o APT::Sandbox::User=root $packages $libraries)
for package in "$new"/*.deb; do dpkg -x "$package" "$new/root"; done
[ -e "$folder" ] || mv "$new/root" "$folder"

#!/bin/sh
# Installs the Debian packages of apt.txt that are missing. Does nothing, and needs no network, where all are there.
set -eu
cd "$(dirname "$0")"

installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q '^install ok installed$'; }

missing=
while read -r line; do
  alternatives=$(printf '%s' "${line%%#*}" | tr '|' ' ')
  [ -n "$(printf '%s' "$alternatives" | tr -d ' ')" ] || continue
  found=
  for name in $alternatives; do
    if installed "$name"; then found=1; break; fi
  done
  [ -n "$found" ] || missing="$missing;$alternatives"
done < apt.txt
[ -n "$missing" ] || exit 0

root=
if [ "$(id -u)" != 0 ]; then root=sudo; fi
if ! command -v apt-get >/dev/null; then
  echo "packages/apt.txt lists what is needed; this system has no apt-get to install it with" >&2
  exit 1
fi
$root apt-get update -q >/dev/null
wanted=
IFS=';'
for alternatives in ${missing#;}; do
  choice=
  IFS=' '
  for name in $alternatives; do
    if apt-cache show "$name" >/dev/null 2>&1; then choice=$name; break; fi
  done
  IFS=';'
  [ -n "$choice" ] || { echo "no Debian package among: $alternatives" >&2; exit 1; }
  wanted="$wanted $choice"
done
unset IFS
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $root apt-get install -y -q --no-install-recommends $wanted >/dev/null

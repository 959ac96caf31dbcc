#!/bin/sh
# Makes .venv from python-test.txt. Does nothing, and needs no network, where it is there and the list has not changed.
set -eu
cd "$(dirname "$0")/.."
stamp=.venv/python-test.txt
cmp -s packages/python-test.txt "$stamp" && exit 0
[ -x .venv/bin/python ] || python3 -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check -r packages/python-test.txt 2>pip.log || {
  cat pip.log; rm -f pip.log; exit 1
}
rm -f pip.log
cp packages/python-test.txt "$stamp"

#!/bin/sh
# Harbor's own models of trajectories, for tests that compare ours with them:
#
#     tests/components/atif.sh up      downloads the package and unpacks its models alone; nothing is installed
#     tests/components/atif.sh down    removes them
set -eu

state=${ROLLOUT_ATIF_STATE:-/tmp/rollout-test-atif}

case ${1:-} in
up)
    [ ! -f "$state/models/harbor/models/trajectories/trajectory.py" ] || exit 0
    mkdir -p "$state"
    python3 -m venv "$state/venv"
    "$state/venv/bin/python" -m pip download --quiet --no-deps --only-binary :all: --ignore-requires-python \
        --dest "$state/wheels" harbor==0.25.0
    python3 -c '
import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel:
    wheel.extractall(sys.argv[2], [name for name in wheel.namelist() if name.startswith("harbor/models/trajectories/")])
' "$state"/wheels/harbor-*.whl "$state/models"
    ;;
down)
    rm -rf "$state"
    ;;
*)
    echo "usage: $0 up|down" >&2
    exit 2
    ;;
esac

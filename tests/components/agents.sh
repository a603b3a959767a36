#!/bin/sh
# What real agents need of a Debian machine, as root, before they are installed in sandboxes by their own installers:
#
#     tests/components/agents.sh up      installs Node with npm, and Python with venv, where they are missing
#     tests/components/agents.sh down    leaves them
set -eu

case ${1:-} in
up)
    wanted=
    command -v npm > /dev/null || wanted="nodejs npm"
    /usr/bin/python3 -c 'import venv, ensurepip' 2> /dev/null || wanted="$wanted python3-venv"
    if [ -n "$wanted" ]; then
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -q
        # shellcheck disable=SC2086 # several words
        apt-get install -q -y --no-install-recommends $wanted
    fi
    ;;
down) ;;
*)
    echo "usage: $0 up|down" >&2
    exit 2
    ;;
esac

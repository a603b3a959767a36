#!/bin/sh
# A Docker engine for tests, and the images that they start from, on a Debian machine as root:
#
#     tests/components/docker.sh up      installs docker.io where it is missing, starts dockerd, makes the images
#     tests/components/docker.sh down    stops the dockerd that `up` started
#
# The images are made of Debian's packages, so that no image registry is needed. An engine that answers already is used as it is.
set -eu

state=${ROLLOUT_DOCKER_STATE:-/tmp/rollout-test-docker}
packages=adduser,python3,python3-venv,python3-pytest,ca-certificates,git,procps,make,gcc,libc6-dev,sqlite3,xz-utils,curl,file

answers() { docker version > /dev/null 2>&1; }

image() { # SUITE NAME...: a Debian of this suite under these names
    suite=$1
    shift
    missing=
    for name in "$@"; do docker image inspect "$name" > /dev/null 2>&1 || missing=1; done
    [ -n "$missing" ] || return 0
    id=$(mmdebstrap --quiet --variant=minbase --include="$packages" \
        --customize-hook='ln -sf python3 "$1/usr/bin/python"' "$suite" - | docker import -)
    for name in "$@"; do docker tag "$id" "$name"; done
}

compose() { # the compose command of Debian's newest suite, which needs nothing of that suite
    ! docker compose version > /dev/null 2>&1 || return 0
    mkdir -p "$state/apt/lists/partial" "$state/apt/cache/archives/partial"
    mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -m 1 '/debian/$')
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" > "$state/apt/list"
    set -- -qq -o "Dir::Etc::SourceList=$state/apt/list" -o Dir::Etc::SourceParts=/dev/null \
        -o "Dir::State::Lists=$state/apt/lists" -o "Dir::Cache=$state/apt/cache"
    apt-get "$@" update
    (cd "$state/apt" && apt-get "$@" download docker-compose docker-buildx 2> /dev/null)
    for package in "$state"/apt/docker-*.deb; do dpkg -x "$package" "$state/apt/unpacked"; done
    mkdir -p /usr/libexec/docker/cli-plugins
    cp "$state"/apt/unpacked/usr/libexec/docker/cli-plugins/docker-* /usr/libexec/docker/cli-plugins/
}

case ${1:-} in
up)
    mkdir -p "$state"
    if ! command -v dockerd > /dev/null || ! command -v mmdebstrap > /dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker.io mmdebstrap iptables > "$state/apt.log"
    fi
    if ! answers; then
        setsid dockerd > "$state/dockerd.log" 2>&1 < /dev/null &
        echo $! > "$state/dockerd.pid"
        for _ in $(seq 150); do
            answers && break
            sleep 0.2
        done
        answers || { tail -5 "$state/dockerd.log" >&2; exit 1; }
    fi
    compose
    image trixie debian:trixie-slim
    image bookworm python:3.12-bookworm
    ;;
down)
    if [ -f "$state/dockerd.pid" ]; then
        kill "$(cat "$state/dockerd.pid")"
        rm "$state/dockerd.pid"
    fi
    ;;
*)
    echo "usage: $0 up|down" >&2
    exit 2
    ;;
esac

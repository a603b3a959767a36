#!/bin/sh
# What tests of several Docker engines need beside Docker itself, on a Debian machine as root:
#
#     tests/components/docker-engines.sh up      installs a registry, an SSH server, OpenSSL and a static busybox
#     tests/components/docker-engines.sh down    nothing: the tests start and stop the engines and servers themselves
set -eu

case ${1:-} in
up)
    for program in dockerd sshd ssh openssl busybox docker-registry; do
        command -v "$program" > /dev/null || missing=1
    done
    [ -n "${missing:-}" ] || exit 0
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        docker.io iptables busybox-static openssh-server openssh-client openssl docker-registry > /tmp/rollout-test-engines-apt.log
    ;;
down) ;;
*)
    echo "usage: $0 up|down" >&2
    exit 2
    ;;
esac

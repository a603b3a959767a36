#!/bin/sh
# Podman's API twice, for tests: as root and as an ordinary user, on a Debian machine as root.
#
#     tests/components/podman.sh up      installs podman where it is missing, starts both services, imports the image of docker.sh
#     tests/components/podman.sh down    stops both, and removes their storage and the user
#
# The sockets are /tmp/rollout-test-podman/root/podman.sock and /tmp/rollout-test-podman/user/podman.sock.
set -eu

state=/tmp/rollout-test-podman
user=rollout-podman
image=debian:trixie-slim

as() { # WHO COMMAND...: as root or as the user, with storage and settings of the tests' own
    who=$1
    shift
    home=$state/$who
    set -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME="$home" XDG_RUNTIME_DIR="$home/run" XDG_CONFIG_HOME="$home" \
        CONTAINERS_CONF="$state/containers.conf" CONTAINERS_STORAGE_CONF="$home/storage.conf" "$@"
    if [ "$who" = user ]; then
        set -- setpriv --reuid="$user" --regid="$user" --init-groups "$@"
    fi
    cd "$home" && "$@"
}

service() { # WHO
    home=$state/$1
    ! curl -sf --unix-socket "$home/podman.sock" http://d/_ping > /dev/null 2>&1 || return 0
    mkdir -p "$home/run" "$home/containers"
    {
        echo '[storage]'
        echo 'driver = "overlay"'
        echo "runroot = \"$home/run/containers\""
        echo "graphroot = \"$home/storage\""
        echo "rootless_storage_path = \"$home/storage\""
    } > "$home/storage.conf"
    [ "$1" = root ] || chown -R "$user:$user" "$home"
    chmod 711 "$home"
    chmod 700 "$home/run"
    (as "$1" setsid podman system service --time=0 "unix://$home/podman.sock") > "$home.log" 2>&1 < /dev/null &
    for _ in $(seq 150); do
        ! curl -sf --unix-socket "$home/podman.sock" http://d/_ping > /dev/null 2>&1 || break
        sleep 0.2
    done
    curl -sf --unix-socket "$home/podman.sock" http://d/_ping > /dev/null || { tail -5 "$home.log" >&2; exit 1; }
    as "$1" podman image exists "docker.io/library/$image" || as "$1" podman import - "docker.io/library/$image" < "$state/image.tar"
}

case ${1:-} in
up)
    "$(dirname "$0")/docker.sh" up
    if ! command -v podman > /dev/null || ! command -v catatonit > /dev/null || ! command -v newuidmap > /dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            podman catatonit slirp4netns uidmap curl > /tmp/rollout-test-podman-apt.log
    fi
    mkdir -p "$state"
    chmod 755 "$state"
    # This machine's root may not raise limits (as in many containers), and crun does not know hybrid control groups.
    {
        echo '[containers]'
        echo "default_ulimits = [\"nofile=$(ulimit -Hn):$(ulimit -Hn)\", \"nproc=32768:32768\"]"
        echo '[engine]'
        echo 'cgroup_manager = "cgroupfs"'
        echo 'events_logger = "file"'
        echo 'runtime = "runc"'
    } > "$state/containers.conf"
    id "$user" > /dev/null 2>&1 || useradd --system --home-dir "$state/user" --shell /bin/sh "$user"
    grep -q "^$user:" /etc/subuid || usermod --add-subuids 400000-465535 --add-subgids 400000-465535 "$user"
    chmod 666 /dev/net/tun /dev/fuse 2> /dev/null || :
    container=$(docker create "$image" true)
    docker export "$container" > "$state/image.tar"
    docker rm "$container" > /dev/null
    service root
    service user
    rm "$state/image.tar"
    ;;
down)
    for who in user root; do
        [ -d "$state/$who" ] || continue
        as "$who" podman rm --all --force > /dev/null 2>&1 || :
        pids=$(pgrep -f "^podman system service --time=0 unix://$state/$who/" || :)
        [ -z "$pids" ] || kill $pids
        as "$who" podman unshare true > /dev/null 2>&1 || :
    done
    pkill -KILL -u "$user" 2> /dev/null || :
    grep " $state/" /proc/mounts | cut -d ' ' -f 2 | sort -r | xargs -r umount -l
    rm -rf "$state"
    ! id "$user" > /dev/null 2>&1 || userdel "$user"
    ;;
*)
    echo "usage: $0 up|down" >&2
    exit 2
    ;;
esac

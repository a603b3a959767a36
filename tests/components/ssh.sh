#!/bin/sh
# Machines to log in to, for tests, on a Debian machine as root:
#
#     tests/components/ssh.sh up [COUNT]     installs openssh-server where it is missing, starts COUNT machines (default 20)
#     tests/components/ssh.sh add N          starts machine N too
#     tests/components/ssh.sh down           stops them and removes every trace
#     tests/components/ssh.sh cut|mend N     takes the network cable of machine N out, or puts it back
#     tests/components/ssh.sh kill|start N   kills sshd and all its sessions on machine N, or starts sshd again
#
# Each is a network, mount, process and host name namespace with a copy-on-write root and an sshd of its own with its own host key,
# at 10.213.77.(10 + N). Users: root (by key) and lab, an ordinary user (by key, or with the password "correct horse").
set -eu

state=${ROLLOUT_SSH_STATE:-/tmp/rollout-test-ssh}
net=10.213.77
bridge=rollout-ssh

machine() { echo "$state/$1"; }
inside() { # N COMMAND...: in machine N
    number=$1
    shift
    nsenter --target "$(cat "$(machine "$number")/pid")" --mount --pid --net --uts --ipc --root --wd "$@"
}

boot() { # N: make machine N and start it
    here=$(machine "$1")
    mkdir -p "$here/home/root" "$here/home/lab" "$here/disk"
    ssh-keygen -q -t ed25519 -N '' -f "$here/host_key"
    ip netns add "rollout-ssh-$1"
    ip link add "rollssh$1" type veth peer name eth0 netns "rollout-ssh-$1"
    ip link set "rollssh$1" master $bridge up
    ip -n "rollout-ssh-$1" addr add "$net.$((10 + $1))/24" dev eth0
    ip -n "rollout-ssh-$1" link set eth0 up
    ip -n "rollout-ssh-$1" link set lo up
    # `ip netns exec` hides the control groups: every other machine is without
    enter="nsenter --net=/run/netns/rollout-ssh-$1"
    [ $(($1 % 2)) = 0 ] || enter="ip netns exec rollout-ssh-$1"
    setsid $enter unshare --mount --uts --ipc --pid --fork --kill-child \
        sh "$0" init "$1" > "$here/log" 2>&1 < /dev/null &
    outer=$!
    for _ in $(seq 200); do
        first=
        read -r first < "/proc/$outer/task/$outer/children" || : # it has no newline at its end
        [ -z "$first" ] || echo "${first% }" > "$here/pid"
        [ -s "$here/pid" ] && inside "$1" test -s /run/sshd.pid 2> /dev/null && return
        sleep 0.05
    done
    cat "$here/log" >&2
    exit 1
}

known() { # N: its line of known hosts
    echo "$net.$((10 + $1)) $(cut -d ' ' -f 1,2 "$(machine "$1")/host_key.pub")"
}

init() { # N: in the new namespaces, as process 1
    here=$(machine "$1")
    hostname "machine$1"
    mount --make-rprivate /
    mount -t tmpfs -o mode=755 tmpfs "$here/disk"
    root=$here/disk/root
    mkdir "$here/disk/upper" "$here/disk/work" "$root"
    mount -t overlay -o "lowerdir=/,upperdir=$here/disk/upper,workdir=$here/disk/work" overlay "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --rbind /sys "$root/sys"
    for place in tmp run home; do mount -t tmpfs -o mode=755 tmpfs "$root/$place"; done
    chmod 1777 "$root/tmp"
    mkdir "$root/run/sshd" "$root/home/lab" "$root/run/rollout"
    cp "$here/host_key" "$state/key.pub" "$root/run/rollout"
    if [ -S /run/docker.sock ]; then
        touch "$root/run/docker.sock"
        mount --bind /run/docker.sock "$root/run/docker.sock"
    fi
    mount --bind "$here/home/root" "$root/root"
    mount --bind "$here/home/lab" "$root/home/lab"
    echo "lab:x:4400:4400::/home/lab:/bin/sh" >> "$root/etc/passwd"
    echo "lab:x:4400:" >> "$root/etc/group"
    echo "lab:$(openssl passwd -6 "correct horse"):19000:0:99999:7:::" >> "$root/etc/shadow"
    grep -q '^sshd:' "$root/etc/passwd" || echo "sshd:x:74:65534::/run/sshd:/usr/sbin/nologin" >> "$root/etc/passwd"
    cat > "$root/run/rollout/sshd_config" <<CONFIG
HostKey /run/rollout/host_key
AuthorizedKeysFile /run/rollout/key.pub
PermitRootLogin prohibit-password
PasswordAuthentication yes
UsePAM no
StrictModes no
PidFile /run/sshd.pid
Subsystem sftp internal-sftp
CONFIG
    cd "$root"
    mkdir -p old
    pivot_root . old
    exec chroot . sh -c 'umount -l /old; rmdir /old; chown lab:lab /home/lab
        /usr/sbin/sshd -f /run/rollout/sshd_config -E /run/rollout/sshd.log
        while :; do sleep 3600 & wait $!; done'
}

down() {
    for here in "$state"/[0-9]*; do
        [ -d "$here" ] || continue
        number=${here##*/}
        [ ! -s "$here/pid" ] || kill -KILL "$(cat "$here/pid")" 2> /dev/null || :
        ip netns del "rollout-ssh-$number" 2> /dev/null || :
        ip link del "rollssh$number" 2> /dev/null || :
    done
    ip link del $bridge 2> /dev/null || :
    rm -rf "$state"
}

case ${1:-} in
up)
    if ! command -v sshd > /dev/null || ! command -v ip > /dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openssh-server openssh-client iproute2 \
            > /dev/null
    fi
    if [ -d "$state" ]; then "$0" down; fi
    mkdir -p "$state"
    ssh-keygen -q -t ed25519 -N '' -f "$state/key"
    ip link add $bridge type bridge
    ip addr add "$net.1/24" dev $bridge
    ip link set $bridge up
    for number in $(seq "${2:-20}"); do boot "$number"; done
    for number in $(seq "${2:-20}"); do known "$number"; done > "$state/known_hosts"
    ;;
add)
    boot "$2"
    known "$2" >> "$state/known_hosts"
    ;;
down) down ;;
init) init "$2" ;;
cut) ip link set "rollssh$2" down ;;
mend) ip link set "rollssh$2" up ;;
kill) inside "$2" pkill -KILL -x sshd ;;
start) inside "$2" /usr/sbin/sshd -f /run/rollout/sshd_config -E /run/rollout/sshd.log ;;
run)
    number=$2
    shift 2
    inside "$number" "$@"
    ;;
*)
    echo "usage: $0 up [COUNT] | add N | down | cut N | mend N | kill N | start N | run N COMMAND..." >&2
    exit 2
    ;;
esac

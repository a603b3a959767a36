#!/bin/sh
# An Apptainer for tests, and an image to start from, on a Debian machine as root:
#
#     tests/components/apptainer.sh up      puts Apptainer and base.sif into $ROLLOUT_APPTAINER_STATE, adds a user for tests
#     tests/components/apptainer.sh down    removes both
#
# Apptainer comes from Debian's newest suite, with the libraries that it needs beside it, so that it runs where the machine's own are
# older. Nothing of it is set-uid. The image is made of Debian's packages, so that no registry is needed.
set -eu

state=${ROLLOUT_APPTAINER_STATE:-/tmp/rollout-test-apptainer}
user=rollout-apptainer
packages=python3,python3-venv,python3-pytest,ca-certificates,git,procps,curl

install() {
    mkdir -p "$state/apt/lists/partial" "$state/apt/cache/archives/partial"
    mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -m 1 '/debian/$')
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    printf "deb [signed-by=$keys] $mirror %s main\n" sid trixie > "$state/apt/list"
    set -- -qq -o "Dir::Etc::SourceList=$state/apt/list" -o Dir::Etc::SourceParts=/dev/null \
        -o "Dir::State::Lists=$state/apt/lists" -o "Dir::Cache=$state/apt/cache" -o APT::Sandbox::User=root
    apt-get "$@" update
    (cd "$state/apt" && apt-get "$@" download apptainer/sid libc6/trixie libseccomp2/trixie libsqlite3-0/trixie 2> /dev/null)
    for package in "$state"/apt/*.deb; do
        case $package in
        */apptainer_*) dpkg-deb -x "$package" "$state" ;;
        *) dpkg-deb -x "$package" "$state/libraries" ;;
        esac
    done
    triplet=$(basename "$(dirname "$(ls -d "$state"/usr/lib/*/apptainer)")")
    libraries=$state/libraries/usr/lib/$triplet
    loader=$(ls "$libraries"/ld-linux*.so.*)
    for binary in "$state/usr/bin/apptainer" "$state/usr/lib/$triplet/apptainer/bin/starter"; do
        # an RPATH, because a RUNPATH does not count for what libraries themselves need
        patchelf --set-interpreter "$loader" --force-rpath --set-rpath "$libraries" "$binary"
    done
    # where the moved programs look for their settings
    ln -sfn ../etc "$state/usr/etc"
    ln -sfn ../var "$state/usr/var"
    ln -sfn ../../etc "$state/usr/lib/etc"
    ln -sfn ../../var "$state/usr/lib/var"
    ln -sf apptainer "$state/usr/bin/singularity"
    sed -i -e 's/^systemd cgroups = .*/systemd cgroups = no/' "$state/etc/apptainer/apptainer.conf"
    rm -rf "$state/apt"
}

case ${1:-} in
up)
    mkdir -p "$state"
    chmod 755 "$state"
    for program in patchelf mmdebstrap mksquashfs squashfuse fuse2fs fuse-overlayfs newuidmap setpriv; do
        command -v "$program" > /dev/null || missing=1
    done
    if [ "${missing:-}" ]; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            patchelf mmdebstrap squashfs-tools squashfuse fuse2fs fuse-overlayfs uidmap util-linux > "$state/install.log"
    fi
    [ -x "$state/usr/bin/singularity" ] || install
    id "$user" > /dev/null 2>&1 || useradd --no-create-home --home-dir /nonexistent "$user"
    [ ! -e /dev/fuse ] || chmod 666 /dev/fuse # as distributions have it
    if [ ! -e "$state/base.sif" ]; then
        rm -rf "$state/base"
        mmdebstrap --quiet --variant=minbase --include="$packages" trixie "$state/base"
        ln -sf python3 "$state/base/usr/bin/python"
        "$state/usr/bin/apptainer" -s build --mksquashfs-args "-comp gzip -Xcompression-level 1" "$state/base.part" "$state/base"
        mv "$state/base.part" "$state/base.sif"
        rm -rf "$state/base"
    fi
    ;;
down)
    rm -rf "$state"
    if id "$user" > /dev/null 2>&1; then userdel "$user"; fi
    ;;
*)
    echo "usage: $0 up|down" >&2
    exit 2
    ;;
esac

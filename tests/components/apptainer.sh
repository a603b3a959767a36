#!/bin/sh
# An Apptainer for tests, and an image to start from, on a Debian machine as root:
#
#     tests/components/apptainer.sh up      puts Apptainer and images into $ROLLOUT_APPTAINER_STATE, adds a user for tests
#     tests/components/apptainer.sh down    removes both
#
# Apptainer comes from Debian's newest suite, with the libraries that it needs beside it, so that it runs where the machine's own are
# older. Nothing of it is set-uid. The image is made of Debian's packages, so that no registry is needed.
set -eu

state=${ROLLOUT_APPTAINER_STATE:-/tmp/rollout-test-apptainer}
user=rollout-apptainer
packages=python3,python3-venv,python3-pytest,ca-certificates,git,procps,curl,adduser,make

install() {
    mkdir -p "$state/apt/lists/partial" "$state/apt/cache/archives/partial"
    mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -m 1 '/debian/$')
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    printf "deb [signed-by=$keys] $mirror %s main\n" sid trixie > "$state/apt/list"
    set -- -qq -o "Dir::Etc::SourceList=$state/apt/list" -o Dir::Etc::SourceParts=/dev/null \
        -o "Dir::State::Lists=$state/apt/lists" -o "Dir::Cache=$state/apt/cache" -o APT::Sandbox::User=root
    apt-get "$@" update
    wanted="apptainer/sid busybox-static/trixie libc6/trixie libseccomp2/trixie libsqlite3-0/trixie"
    (cd "$state/apt" && apt-get "$@" download $wanted 2> /dev/null)
    for package in "$state"/apt/*.deb; do
        case $package in
        */apptainer_* | */busybox-static_*) dpkg-deb -x "$package" "$state" ;;
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
    # for machines without systemd, and for a root that does not have every capability
    sed -i -e 's/^systemd cgroups = .*/systemd cgroups = no/' -e 's/^root default capabilities = .*/root default capabilities = file/' \
        "$state/etc/apptainer/apptainer.conf"
    rm -rf "$state/apt"
}

bootstrap() { # Debian in the folder base
    rm -rf "$state/base" "$state/lean"
    # without what no test reads, and without waiting for the disk after each file
    mmdebstrap --quiet --variant=minbase --include="$packages" --dpkgopt=force-unsafe-io \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' trixie "$state/base"
    ln -sf python3 "$state/base/usr/bin/python"
    rm -rf "$state/base/dev" # images have no devices of their own
    mkdir "$state/base/dev"
}

pack() { # NAME: the folder NAME as NAME.sif
    "$state/usr/bin/apptainer" -s build --force --mksquashfs-args "-comp gzip -Xcompression-level 1" "$state/$1.part" "$state/$1"
    mv "$state/$1.part" "$state/$1.sif"
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
    making=
    if [ ! -e "$state/lean.sif" ]; then
        bootstrap &
        making=$!
    fi
    [ -x "$state/usr/bin/singularity" ] || install
    id "$user" > /dev/null 2>&1 || useradd --create-home --home-dir "$state/home" "$user"
    [ ! -e /dev/fuse ] || chmod 666 /dev/fuse # as distributions have it
    if [ "$making" ]; then
        wait "$making"
        pack base
        # for tests that build many images: what python3, git, make and the shell need, and no more
        mv "$state/base" "$state/lean"
        (
            cd "$state/lean/usr"
            rm -rf bin/git-shell bin/openssl bin/perl* bin/scalar bin/sqv lib/*/gconv lib/*/libperl* lib/*/perl share/perl* \
                lib/git-core/git-daemon lib/git-core/git-http* lib/git-core/git-imap* lib/git-core/git-shell lib/git-core/scalar \
                lib/python3*/test lib/python3/dist-packages share/python-wheels share/zoneinfo ../var/cache ../var/lib/dpkg
        )
        pack lean
        rm -rf "$state/lean"
    fi
    if [ ! -e "$state/small.sif" ]; then
        mkdir -p "$state/small/bin" "$state/small/etc" "$state/small/opt" "$state/small/root" "$state/small/tmp" "$state/small/usr/bin"
        chmod 1777 "$state/small/tmp"
        busybox=$(ls "$state/bin/busybox" "$state/usr/bin/busybox" 2> /dev/null | head -n 1)
        cp "$busybox" "$state/small/bin/busybox"
        for applet in $("$busybox" --list); do [ "$applet" = busybox ] || ln -s busybox "$state/small/bin/$applet"; done
        echo root:x:0:0:root:/root:/bin/sh > "$state/small/etc/passwd"
        echo root:x:0: > "$state/small/etc/group"
        echo umask 022 > "$state/small/etc/profile"
        pack small
        rm -rf "$state/small"
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

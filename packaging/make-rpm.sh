#!/bin/sh
# make-rpm.sh [ARCHIVE SPEC OUT]: builds RPM packages from an archive of the sources, in the folder OUT. On systems whose packages are not
# RPMs the packages that building needs are not looked up. Without arguments: only looks whether rpmbuild is installed.
set -eu
command -v rpmbuild >/dev/null || { echo "make rpm needs rpmbuild: the package rpm-build, of Debian rpm" >&2; exit 1; }
[ $# -gt 0 ] || exit 0
archive=$1 spec=$2 out=$3
rm -rf "$out"
mkdir -p "$out/SOURCES"
cp "$archive" "$out/SOURCES"
others=
rpm -q rpm >/dev/null 2>&1 || others=--nodeps
rpmbuild -bb $others --define "_topdir $(cd "$out" && pwd)" --define "use_source_date_epoch_as_buildtime 1" "$spec" >"$out/build.log" 2>&1 || {
    tail -n 40 "$out/build.log" >&2
    exit 1
}
find "$out/RPMS" -name '*.rpm'

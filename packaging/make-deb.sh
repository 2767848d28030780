#!/bin/sh
# make-deb.sh [ARCHIVE VERSION OUT]: builds Debian packages from an archive of the sources, in the folder OUT. Their changelog has the time
# $SOURCE_DATE_EPOCH. Maintainer: $DEBFULLNAME and $DEBEMAIL, or else no person. lintian checks the packages if it is installed;
# its errors and warnings fail. Without arguments: only looks whether all that is needed is installed.
set -eu
for tool in dpkg-buildpackage dh; do
    command -v $tool >/dev/null || { echo "make deb needs $tool: apt-get install dpkg-dev debhelper" >&2; exit 1; }
done
missing=$(dpkg-checkbuilddeps packaging/debian/control.in 2>&1) || {
    missing=$(echo "${missing##*dependencies: }" | sed 's/ ([^)]*)//g; s/debhelper-compat/debhelper/; s/:[a-z]*//g')
    echo "make deb needs packages that are missing: apt-get install $missing" >&2
    exit 1
}
[ $# -gt 0 ] || exit 0
archive=$1 version=$2 out=$3
maintainer="${DEBFULLNAME:-kvc developers} <${DEBEMAIL:-kvc@localhost}>"
rm -rf "$out"
mkdir -p "$out"
tar -xf "$archive" -C "$out"
folder=$out/kvc-$version
cp -r "$folder/packaging/debian" "$folder/debian"
soversion=${version%%.*}
for package in libkvc libkvc-store; do mv "$folder/debian/$package.install" "$folder/debian/$package$soversion.install"; done
for file in changelog control; do
    sed "s/@VERSION@/$version/; s/@SOVERSION@/$soversion/g; s/@MAINTAINER@/$maintainer/; s/@DATE@/$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")/" \
        "$folder/debian/$file.in" >"$folder/debian/$file"
    rm "$folder/debian/$file.in"
done
(cd "$folder" && dpkg-buildpackage -us -uc -b >../build.log 2>&1) || {
    tail -n 40 "$out/build.log" >&2
    exit 1
}
rm -rf "$folder"
if command -v lintian >/dev/null; then
    # who builds answers for the address
    lintian --allow-root --fail-on error,warning --profile debian --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog \
        "$out"/*.changes || exit 1
    echo "lintian: ok"
else echo "lintian is not installed: the packages are not checked" >&2
fi
ls "$out"/*.deb

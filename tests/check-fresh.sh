#!/bin/sh
# check-fresh.sh [RELEASE]: the two commands of README.md on a bare Debian (bookworm by default): in a chroot that debootstrap makes, with
# git and make alone, from a clone of the last commit. Nothing of this machine is to be seen there: no environment, no /usr/local, no
# toolkit. The packages come from the mirror of this machine's apt. Needs root. KVC_FRESH_BASE=FOLDER: a folder that keeps the bare system
# for the next time.
set -eu
release=${1:-bookworm}
skip() {
    echo "SKIPPED: $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}
[ "$(id -u)" = 0 ] || skip "a bare Debian in a chroot is made by root alone"
command -v debootstrap >/dev/null || skip "debootstrap is not installed (apt-get install debootstrap)"
[ -e "/usr/share/debootstrap/scripts/$release" ] || skip "debootstrap knows no release '$release'"
git rev-parse --verify -q HEAD >/dev/null || skip "this is no git checkout"
unshare --mount --pid --fork true 2>/dev/null || skip "this machine allows no namespaces of its own"
mirror=$(apt-get indextargets --format '$(SITE) $(CREATED_BY) $(COMPONENT)' 2>/dev/null |
    awk '$2 == "Packages" && $3 == "main" && $1 ~ /debian\/?$/ { print $1; exit }')
[ -n "$mirror" ] || skip "no mirror of Debian is among the sources of this machine's apt"
[ -z "$(git status --porcelain)" ] || echo "check-fresh: changes that are not committed are not tested" >&2

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 2' HUP INT TERM
base=${KVC_FRESH_BASE:-$scratch}/$release.tar
root=$scratch/root
mkdir -p "$(dirname "$base")" "$root"
if [ ! -e "$base" ]; then
    echo "check-fresh: making a bare $release"
    debootstrap --variant=minbase --include=git,make "$release" "$root" "$mirror" >"$scratch/log" 2>&1 || {
        tail -n 20 "$scratch/log" >&2
        echo "check-fresh: debootstrap failed" >&2
        exit 1
    }
    [ -z "${KVC_FRESH_BASE-}" ] || tar -C "$root" -cf "$base" .
else
    tar -C "$root" -xf "$base"
fi
# the way to the mirror: names of hosts, and apt's proxies
cp /etc/resolv.conf /etc/hosts "$root/etc/"
apt-config dump 2>/dev/null | grep -E '^Acquire::https?::Proxy ' >"$root/etc/apt/apt.conf.d/99mirror" || :
git bundle create -q "$root/root/kvc.bundle" HEAD

# README's commands: the lines of the block after its marker, without their comments
sed -n '/run by check-fresh/,/^```$/p' README.md | sed -n 's/^\(make [a-z]*\)\( *#.*\)\{0,1\}$/\1/p' >"$scratch/commands"
[ "$(wc -l <"$scratch/commands")" -ge 2 ] || { echo "check-fresh: README.md has no block 'run by check-fresh'" >&2; exit 1; }
cat >"$root/root/run" <<'END'
set -eu
mount -t proc proc /proc
mount -t tmpfs tmpfs /dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts /dev/pts
ln -sf pts/ptmx /dev/ptmx
cd /root
git clone -q kvc.bundle kvc
cd kvc
status=0
while read -r command; do
    echo "$ $command"
    begin=$(date +%s)
    $command </dev/null || status=$?
    echo "check-fresh: $command: status $status, $(($(date +%s) - begin)) s on $(nproc) cores"
    [ $status = 0 ] || exit $status
done </root/commands
END
cp "$scratch/commands" "$root/root/commands"
mkdir -p "$root/dev/shm" "$root/dev/pts"
# Mounts end with the namespace. The environment is that of a first login.
unshare --mount --pid --fork env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb \
    chroot "$root" sh /root/run

# foreign.sh: Debian's packages of another architecture, for programs that run under qemu. They are unpacked below build/: none is installed,
# and no package of this machine changes. Sourced by arm.sh and big-endian.sh.
# shellcheck shell=sh

# Lists and archives of packages, and which are installed (none), are apart from those of this machine.
apt_foreign() { # apt_foreign ARCHITECTURE ARGUMENTS...
    architecture=$1
    shift
    apt-get -qq -o APT::Architecture="$architecture" -o APT::Architectures="$architecture" -o Dir::State="$apt" \
        -o Dir::State::status="$apt/status" -o Dir::Cache="$apt" -o APT::Install-Recommends=false -o APT::Sandbox::User="$(id -un)" "$@"
}

# Unpacks packages, and all that they need, to FOLDER/root, unless they are there. Links to absolute places would lead out of the root.
foreign_unpack() { # foreign_unpack FOLDER ARCHITECTURE PACKAGES
    into=$1/root apt=$1/apt
    [ "$(cat "$into/unpacked" 2>/dev/null)" != "$3" ] || return 0
    rm -rf "$into" "$apt"
    mkdir -p "$into" "$apt/lists/partial" "$apt/archives/partial"
    : >"$apt/status"
    # shellcheck disable=SC2086
    apt_foreign "$2" update >/dev/null && apt_foreign "$2" install -y --download-only $3 >/dev/null || return 1
    for package in "$apt"/archives/*.deb; do dpkg-deb -x "$package" "$into"; done
    find "$into" -type l -lname '/*' | while read -r link; do ln -sfn "$into$(readlink "$link")" "$link"; done
    rm -rf "$apt"
    echo "$3" >"$into/unpacked"
}

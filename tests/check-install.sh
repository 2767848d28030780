#!/bin/sh
# check-install.sh MAKE: installs into an empty place, builds and runs the programs of the README and of samples/c against it with
# pkg-config, and one against libkvc_cuda where that was built; packs with the installed profile; strips; uninstalls, and finds nothing left.
set -eu
make=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
$make -s install PREFIX=/usr DESTDIR="$root" >/dev/null
sed -n '/^```c$/,/^```$/{/^```/!p}' README.md >"$root/program.c" # the README's example
grep -qx 'prefix=/usr' "$root/usr/lib/pkgconfig/kvc.pc" || { echo "kvc.pc does not follow PREFIX" >&2; exit 1; }
PKG_CONFIG_LIBDIR="$root/usr/lib/pkgconfig:$(pkg-config --variable pc_path pkg-config)"
export PKG_CONFIG_LIBDIR
flags=$(PKG_CONFIG_SYSROOT_DIR="$root" pkg-config --cflags --libs kvc)
# shellcheck disable=SC2086
${CC:-cc} -std=c99 -Wall -Wextra -Wpedantic -Werror -I"$root/usr/include" -o "$root/program" "$root/program.c" \
    -L"$root/usr/lib" $flags
out=$(LD_LIBRARY_PATH="$root/usr/lib" "$root/program" samples/slot-f16.bin)
[ "$out" = "llama 60" ] || { echo "a program built against the installed library printed '$out'" >&2; exit 1; }
# shellcheck disable=SC2086
${CC:-cc} -std=c99 -Wall -Wextra -Wpedantic -Werror -I"$root/usr/include" -o "$root/program" samples/c/cut_prefix.c -L"$root/usr/lib" $flags
out=$(LD_LIBRARY_PATH="$root/usr/lib" "$root/program" samples/slot-f16.bin 8 "$root/prefix.kvc")
[ "$out" = "60 tensors, 92160 values, 0 differ" ] || { echo "samples/c/cut_prefix.c printed '$out'" >&2; exit 1; }
rm "$root/prefix.kvc"
if [ -e "$root/usr/lib/libkvc_cuda.so" ]; then # without a device it says why
    cat >"$root/program.c" <<'C'
#include <kvc.h>
#include <kvc_cuda.h>
#include <stdio.h>
int main(void) {
    struct kvc_error *e = kvc_error_new();
    const int n = kvc_cuda_devices(e);
    printf("%s %s\n", kvc_cuda_version(), n < 0 ? kvc_error_message(e) : "devices");
    kvc_error_free(e);
    return 0;
}
C
    flags=$(PKG_CONFIG_SYSROOT_DIR="$root" pkg-config --cflags --libs kvc_cuda)
    # shellcheck disable=SC2086
    ${CC:-cc} -std=c99 -Wall -Wextra -Wpedantic -Werror -I"$root/usr/include" -o "$root/program" "$root/program.c" \
        -L"$root/usr/lib" $flags
    out=$(LD_LIBRARY_PATH="$root/usr/lib" "$root/program")
    case $out in
    [0-9]*" devices" | [0-9]*" CUDA cannot be used: "*) ;;
    *) echo "a program built against the installed libkvc_cuda printed '$out'" >&2; exit 1 ;;
    esac
fi
[ "$("$root/usr/bin/kvc-pack" --version | cut -d' ' -f1)" = kvc-pack ]
rm "$root/program" "$root/program.c"
doc=$root/usr/share/doc/kvc data=$root/usr/share/kvc
for document in formats/*/*.md codecs/*.md codecs/stages/*.md; do
    [ "$document" = codecs/README.md ] || cmp "$document" "$doc/$document" || exit 1
done
[ -x "$data/make_profile.py" ] || { echo "make_profile.py is not installed, or no program" >&2; exit 1; }
for profile in samples/*.kvcp; do cmp "$profile" "$data/profiles/${profile#samples/}" || exit 1; done
"$root/usr/bin/kvc-pack" -r small --profile="$data/profiles/smollm2-135m-instruct.kvcp" -o "$root/packed.kvc" \
    samples/transformers-16.safetensors 2>/dev/null
rm "$root/packed.kvc"

nm "$root/usr/lib/libkvc.a" >"$root/symbols"
$make -s install-strip PREFIX=/usr DESTDIR="$root" >/dev/null
for file in bin/kvc-dump bin/kvc-pack bin/kvc-unpack bin/kvc-diff lib/libkvc.so; do
    if readelf -S "$root/usr/$file" | grep -qE '[.](symtab|debug_info)'; then
        echo "install-strip leaves symbols in $file" >&2
        exit 1
    fi
done
nm -D --defined-only "$root/usr/lib/libkvc.so" | grep -q ' T kvc_file_open' || { echo "libkvc.so lost its symbols" >&2; exit 1; }
nm "$root/usr/lib/libkvc.a" | cmp - "$root/symbols" || exit 1 # programs still link with it
"$root/usr/bin/kvc-pack" --version >/dev/null
rm "$root/symbols"
$make -s uninstall PREFIX=/usr DESTDIR="$root" >/dev/null
left=$(find "$root" ! -type d; find "$root" -name kvc)
[ -z "$left" ] || { echo "uninstall leaves: $left" >&2; exit 1; }
echo "install: ok"

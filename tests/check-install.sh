#!/bin/sh
# check-install.sh MAKE: installs into an empty place, builds and runs the programs of the README and of samples/c against it with
# pkg-config, one against libkvc_store, and one against libkvc_cuda where that was built; packs with the installed profile; imports the
# installed Python package; strips; uninstalls, and finds nothing left.
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
flags=$(PKG_CONFIG_SYSROOT_DIR="$root" pkg-config --cflags --libs kvc_store)
# shellcheck disable=SC2086
${CC:-cc} -std=c99 -Wall -Wextra -Wpedantic -Werror -I"$root/usr/include" -o "$root/program" samples/c/find_prefix.c -L"$root/usr/lib" $flags
"$root/usr/bin/kvc-store" -q -s "dir:$root/store" put --chunk=256 samples/prompt.safetensors.kvc
out=$(LD_LIBRARY_PATH="$root/usr/lib" "$root/program" "dir:$root/store" samples/prompt.safetensors.kvc)
[ "$out" = "512 of 512 tokens, 4 tensors" ] || { echo "samples/c/find_prefix.c printed '$out'" >&2; exit 1; }
rm -r "$root/store"
if "$root/usr/bin/kvc-store" -s redis:// ls 2>"$root/log" || ! grep -qF "names no store" "$root/log"; then
    echo "kvc-store takes a store without a name: $(cat "$root/log")" >&2
    exit 1
fi
"$root/usr/bin/kvc-store" -s redis://127.0.0.1:1 ls >"$root/log" 2>&1 || true # without the backend it says where it looked
[ -e "$root/usr/lib/kvc/kvc_store_redis.so" ] || grep -qF /usr/lib/kvc/kvc_store_redis.so "$root/log" || {
    echo "kvc-store does not look for backends in LIBDIR: $(cat "$root/log")" >&2
    exit 1
}
rm "$root/log"
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
for document in README.md CHANGELOG.md samples/CONVERT.md python/LLAMA-SERVER.md formats/*/*.md formats/*/*/*.md codecs/*.md codecs/*/*/*.md; do
    [ "$document" = codecs/README.md ] || [ "$document" = 'formats/*/*/*.md' ] || cmp "$document" "$doc/$document" || exit 1
done
diff -r -x __pycache__ samples "$data/samples" >&2 || { echo "the samples are not installed as they are" >&2; exit 1; }
diff -r -x __pycache__ share/make_profile "$data/make_profile" >&2 || { echo "make_profile is not installed as it is" >&2; exit 1; }
mkdir "$root/python"
printf '#!/bin/sh\necho "$2"\n' >"$root/python/python3"
chmod +x "$root/python/python3"
found=$(PATH=$root/python:$PATH "$root/usr/bin/kvc-profile" make -o "$root/x.kvcp" README.md README.md)
[ "$(cd "$(dirname "$found")" && pwd)" = "$data" ] || { echo "kvc-profile make runs '$found'" >&2; exit 1; }
rm -r "$root/python"
for profile in samples/*.kvcp; do cmp "$profile" "$data/profiles/${profile#samples/}" || exit 1; done
"$root/usr/bin/kvc-pack" -r small --profile="$data/profiles/smollm2-135m-instruct-predict.kvcp" -o "$root/packed.kvc" \
    samples/transformers-16.safetensors 2>/dev/null
for file in bash-completion/completions/kvc-pack zsh/site-functions/_kvc-pack fish/vendor_completions.d/kvc-pack.fish; do
    grep -q recipe "$root/usr/share/$file" || { echo "$file is not installed, or has no options" >&2; exit 1; }
done
cmp share/kvc.magic "$data/kvc.magic"
cmp share/kvc.xml "$root/usr/share/mime/packages/kvc.xml"
# The library searches profiles where they were installed.
unset KVC_PROFILE_PATH
export XDG_DATA_HOME="$root/absent"
$make -s all DATADIR="$data"
./kvc-unpack -c "$root/packed.kvc" >/dev/null || { echo "kvc-unpack does not find the installed profile" >&2; exit 1; }
KVC_PROFILE_PATH=$root/absent ./kvc-unpack -c "$root/packed.kvc" >/dev/null || exit 1
$make -s all DATADIR="$root/absent"
if ./kvc-unpack -c "$root/packed.kvc" >/dev/null 2>&1; then
    echo "kvc-unpack finds a profile that is not installed" >&2
    exit 1
fi
$make -s all
rm "$root/packed.kvc"

# The Python package as distributions install it, with the installed libraries.
$make -s install-python PREFIX=/usr PYTHONDIR=/python DESTDIR="$root" >/dev/null
if "${PYTHON:-python3}" -c 'import numpy' 2>/dev/null; then
    in_python() {
        KVC_LIBRARY=$root/usr/lib/libkvc.so KVC_STORE_LIBRARY=$root/usr/lib/libkvc_store.so PYTHONPATH=$root/python "${PYTHON:-python3}" "$@"
    }
    version=$("$root/usr/bin/kvc-pack" --version | cut -d' ' -f2)
    out=$(in_python "$root/usr/bin/kvc-llama-proxy" --version)
    [ "$out" = "kvc-llama-proxy $version" ] || { echo "kvc-llama-proxy --version printed '$out'" >&2; exit 1; }
    out=$(in_python -c 'import importlib.metadata, kvc; print(importlib.metadata.version("kvc"), len(kvc.open("samples/tiny.kvc").tokens))')
    [ "$out" = "$version 4" ] || { echo "the installed Python package printed '$out'" >&2; exit 1; }
fi
[ -f "$root/usr/share/man/man1/kvc-llama-proxy.1" ] || { echo "kvc-llama-proxy has no page" >&2; exit 1; }
rm -r "$root/python" "$root/usr/bin/kvc-llama-proxy" "$root/usr/share/man/man1/kvc-llama-proxy.1"

nm "$root/usr/lib/libkvc.a" "$root/usr/lib/libkvc_store.a" >"$root/symbols"
$make -s install-strip PREFIX=/usr DESTDIR="$root" >/dev/null
for file in bin/kvc-dump bin/kvc-pack bin/kvc-unpack bin/kvc-diff bin/kvc-store bin/kvc-profile lib/libkvc.so lib/libkvc_store.so; do
    if readelf -S "$root/usr/$file" | grep -qE '[.](symtab|debug_info)'; then
        echo "install-strip leaves symbols in $file" >&2
        exit 1
    fi
done
nm -D --defined-only "$root/usr/lib/libkvc.so" | grep -q ' T kvc_file_open' || { echo "libkvc.so lost its symbols" >&2; exit 1; }
nm "$root/usr/lib/libkvc.a" "$root/usr/lib/libkvc_store.a" | cmp - "$root/symbols" || exit 1 # programs still link with it
"$root/usr/bin/kvc-pack" --version >/dev/null
rm "$root/symbols"
$make -s uninstall PREFIX=/usr DESTDIR="$root" >/dev/null
left=$(find "$root" ! -type d; find "$root" -name kvc)
[ -z "$left" ] || { echo "uninstall leaves: $left" >&2; exit 1; }
echo "install: ok"

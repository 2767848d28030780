#!/bin/sh
# arm.sh: ARM64's kernels (NEON) on another machine, under qemu. Not for rates: those of an emulator say nothing.
#
#   arm.sh make MAKE BUILD               builds the tools and some tests for ARM64 and runs them; BUILD: the tools of this machine
#   arm.sh emulate BUILD ARM PROGRAM...  does the latter, with these programs in the folder ARM
#
# The libraries for ARM64 are Debian's packages, unpacked below build/arm.
set -eu
. tests/foreign.sh
root=$(pwd)/build/arm/root
libraries="libc6-dev libzstd-dev libxxhash-dev libssl-dev libarchive-dev libjansson-dev libsqlite3-dev zlib1g-dev libcmocka-dev
  libopenblas0-serial"
folders=/usr/lib/aarch64-linux-gnu

skip() {
    echo "SKIPPED: NEON is not tested: $*"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}

if [ "$1" = make ]; then
    case $(uname -m) in aarch64 | arm64) skip "this is an ARM64 machine, on which make test tests it" ;; esac
    sh tests/deps.sh check arm || skip "packages are missing"
    command -v apt-get >/dev/null || skip "there is no apt-get to get libraries for ARM64 with"
    foreign_unpack "${root%/root}" arm64 "$libraries" || skip "the libraries for ARM64 cannot be downloaded"
    export PKG_CONFIG_SYSROOT_DIR="$root" PKG_CONFIG_LIBDIR="$root$folders/pkgconfig" PKG_CONFIG_PATH=""
    exec "$2" --no-print-directory -j"$(nproc)" CUDA=0 CC="aarch64-linux-gnu-gcc --sysroot=$root" AR=aarch64-linux-gnu-ar \
        NATIVE="$3" test-emulated
fi

native=$2 arm=$(cd "$3" && pwd) samples=$(pwd)/samples
shift 3
passed=0 failed=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 2' HUP INT TERM

# A program for ARM64 under its own name, on a CPU, below a folder of that name: it may run itself, or be run by a script.
stand_in() { # stand_in CPU PROGRAM
    mkdir -p "$scratch/$1"
    cat >"$scratch/$1/$(basename "$2")" <<END
#!/bin/sh
exec qemu-aarch64 -cpu $1 -L '$root' -E LD_LIBRARY_PATH=$folders/openblas-serial -0 "\$0" '$arm/$2' "\$@"
END
    chmod 755 "$scratch/$1/$(basename "$2")"
}
# max has dot products of bytes (FEAT_DotProd), cortex-a72 has not
for program; do
    stand_in max "$program"
    stand_in cortex-a72 "$program"
done

try() { # try NAME COMMAND...
    name=$1
    shift
    if "$@" >"$scratch/log" 2>&1; then
        passed=$((passed + 1))
        echo "ok   $name"
    else
        failed=$((failed + 1))
        echo "FAIL $name"
        cat "$scratch/log"
    fi
}

# chosen CPU NAME LIST: the table that a CPU gets, of all tables
chosen() { "$scratch/$1/kvc-dump" -V -v | grep -x "kernels: $2 (of $3)"; }
forced() { KVC_KERNEL=$2 "$scratch/$1/kvc-dump" -V -v | grep -x "rANS: $2 encodes, $2 decodes (by KVC_KERNEL)"; }
refused() { ! KVC_KERNEL=$2 "$scratch/$1/kvc-pack" -t "$samples/tiny.safetensors"; }
try "the CPU with dot products has neondot" chosen max neondot "neondot neon ref"
try "the CPU without has neon" chosen cortex-a72 neon "neondot neon ref"
for table in neondot neon ref; do try "KVC_KERNEL=$table is taken" forced max $table; done
try "KVC_KERNEL=neondot is refused without dot products" refused cortex-a72 neondot

for program in "$scratch"/max/test_*; do try "$(basename "$program")" "$program"; done
for program in "$scratch"/cortex-a72/test_kernels*; do try "$(basename "$program") without dot products" "$program"; done
for table in neondot neon ref; do try "golden with $table" env KVC_KERNEL=$table "$scratch/max/golden" tests/golden; done
# minutes each; the golden files tell the tables apart
try "conformance" "${PYTHON:-python3}" tests/conformance/run.py "$scratch/max/reader"
try "command line" env KVC_BIN="$scratch/max" sh tests/cli/run.sh kernels-same-bytes kernel-unknown

# Files of this machine's tools and of ARM64's: the same for recipes that compute in kernels alone, decoded alike for all.
pack() { "$1/kvc-pack" -q -f --profile="$samples/smollm2-135m-instruct-predict.kvcp" -r "$2" "$scratch/prompt" -o "$3"; }
packed_alike() { # packed_alike RECIPE
    pack "$native" "$1" "$scratch/native.kvc" && pack "$scratch/max" "$1" "$scratch/arm.kvc" &&
        cmp "$scratch/native.kvc" "$scratch/arm.kvc"
}
decoded_alike() { # decoded_alike RECIPE TABLE
    pack "$native" "$1" "$scratch/native.kvc" && "$native/kvc-unpack" -q -c "$scratch/native.kvc" >"$scratch/native.values" &&
        KVC_KERNEL=$2 "$scratch/max/kvc-unpack" -q -c "$scratch/native.kvc" >"$scratch/arm.values" &&
        cmp "$scratch/native.values" "$scratch/arm.values"
}
export KVC_PROFILE_PATH="$samples"
"$native/kvc-unpack" -q -c "$samples/prompt.safetensors.kvc" >"$scratch/prompt"
for recipe in zstd split fast cross kivi4; do try "$recipe packs as on $(uname -m)" packed_alike $recipe; done
for recipe in zstd split fast cross kivi4 gear4 near-lossless small; do
    for table in neondot neon; do try "$recipe decodes as on $(uname -m), with $table" decoded_alike $recipe $table; done
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]

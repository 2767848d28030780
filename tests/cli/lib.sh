# shellcheck shell=sh
# lib.sh: what the tests share; run.sh reads it before each cmd. Not for what one test needs.

# expect STATUS COMMAND...: runs it; ends the test when it returns another status.
expect() {
    expect_status=$1
    shift
    expect_got=0
    "$@" || expect_got=$?
    [ "$expect_got" = "$expect_status" ] || fail "exit status $expect_got, expected $expect_status: $*"
}

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

skip() {
    echo "$*" >&2
    exit 77
}

# same A B: equal bytes.
same() {
    cmp "$1" "$2" >&2 || fail "$1 and $2 differ"
}

# absent FILE...: none of them exists.
absent() {
    for absent_file; do
        [ ! -e "$absent_file" ] || fail "$absent_file exists"
    done
}

# no_leftovers [DIR]: no temporary output (.NAME.XXXXXX) is left there.
no_leftovers() {
    for left_file in "${1:-.}"/.*.??????; do
        [ ! -e "$left_file" ] || fail "left behind: $left_file"
    done
}

# sample NAME [COPY]: a writable copy of a file in samples/.
sample() {
    cp "$SAMPLES/$1" "${2:-$1}"
    chmod 644 "${2:-$1}"
}

# patch FILE OFFSET BYTE...: overwrites bytes, given as two hex digits each.
patch() {
    patch_file=$1 patch_offset=$2 patch_text=
    shift 2
    for patch_byte; do
        patch_text=$patch_text\\$(printf %03o "0x$patch_byte")
    done
    printf "$patch_text" | dd of="$patch_file" bs=1 seek="$patch_offset" conv=notrunc 2>/dev/null
}

# flip FILE OFFSET: inverts the lowest bit of a byte.
flip() {
    flip_byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    patch "$1" "$2" "$(printf %02x $((flip_byte ^ 1)))"
}

# size FILE: its bytes.
size() {
    wc -c <"$1" | tr -d ' '
}

# zeros FILE LAYERS TOKENS: a sparse raw cache of zeros, f16, 8 heads of 128; its geometry in $raw.
zeros() {
    raw=--raw=dtype=f16,layers=$2,tokens=$3,heads=8,dim=128
    truncate -s $(($2 * 2 * $3 * 8 * 128 * 2)) "$1"
}

# json FILE EXPRESSION: prints a Python expression over the value x in FILE, which must be JSON; f is the first of its "files".
json() {
    "$PYTHON" -I -S -c 'import json, sys
x = json.load(open(sys.argv[1]), parse_constant=lambda name: sys.exit("not JSON: " + name))
f = (x.get("files") or [None])[0] if isinstance(x, dict) else None
print(eval(sys.argv[2]))' "$1" "$2"
}

# start_slow_pack: a pack of zeros that has begun to write big.kvc and still runs; its process is $slow.
start_slow_pack() {
    zeros big.raw 8 16384
    env --default-signal=INT,HUP kvc-pack -r store -T 1 --from=raw "$raw" big.raw -o big.kvc 2>log &
    slow=$!
    wait_writing $slow || fail "the pack ended too early"
}

# wait_writing PROCESS: until it has written a megabyte; its output need not have a name.
wait_writing() {
    wait_tries=0
    until [ "$(sed -n 's/^wchar: //p' /proc/$1/io 2>/dev/null || echo 0)" -gt 1000000 ] 2>/dev/null; do
        wait_tries=$((wait_tries + 1))
        [ $wait_tries -lt 1000 ] && kill -0 $1 2>/dev/null || return 1
        sleep 0.01
    done
}

# end_slow_pack SIGNAL: its status in $slow_status.
# shellcheck disable=SC2034 # the tests read it
end_slow_pack() {
    kill -"$1" $slow
    slow_status=0
    { wait $slow || slow_status=$?; } 2>/dev/null
}

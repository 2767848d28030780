#!/bin/sh
# trace_test.sh TRACE: what the program TRACE (trace.c) prints for requests, and for traces that are none. A change of the figures
# of requests.jsonl is a change of the store's eviction.
set -u
here=$(dirname "$0")
trace=$1
scratch=$(mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
passed=0 failed=0
# expect NAME STATUS LINES ARGUMENT...: the program's exit status, and what it prints on both streams
expect() {
    name=$1 status=$2 lines=$3
    shift 3
    got=$("$trace" "$@" 2>&1)
    code=$?
    if [ "$code" = "$status" ] && [ "$got" = "$lines" ]; then passed=$((passed + 1)); else
        printf '%s: status %s, expected %s; printed:\n%s\n' "$name" "$code" "$status" "$got"
        failed=$((failed + 1))
    fi
}
refused() { # refused NAME TRACE MESSAGE
    printf %b "$2" >"$scratch/$1"
    expect "$1" 2 "trace: $3" "$scratch/$1"
}

figures="200 requests of 1721 blocks, 585 of them different
capacity    hits (%)  written"
expect "default sizes" 0 "$figures
       1 %       24.5       0.16
       3 %       37.8       0.53
      10 %       56.7       1.22
      30 %       65.0       1.03" "$here/requests.jsonl"
expect "standard input" 0 "$figures
       5 %       45.6       0.82
     100 %       66.0       1.00" - 5,100 <"$here/requests.jsonl"
printf '{"hash_ids":[1,2,3]}\n\n{"other":{"a":[1]},"hash_ids":[1,2,4]}' >"$scratch/two"
expect "no line feed at the end" 0 "2 requests of 6 blocks, 4 of them different
capacity    hits (%)  written
      50 %       33.3       0.50
     100 %       33.3       1.00" "$scratch/two" 50,100
refused no-blocks '{"hash_ids":[]}\n' "$scratch/no-blocks: there are no requests with blocks in it"
refused empty '' "$scratch/empty: there are no requests with blocks in it"
refused array '[1]\n' 'line 1 is no object with "hash_ids"'
refused negative '{"hash_ids":[1,-2]}\n' "line 1 has an id that is no whole number from 0 on"
refused fraction '{"hash_ids":[1]}\n{"hash_ids":[1,2.5]}\n' "line 2 has an id that is no whole number from 0 on"
refused large '{"hash_ids":[99999999999999999999]}\n' 'line 1 is no object with "hash_ids"'
refused cut '{"hash_ids":[1]}\n{"hash' 'line 2 is no object with "hash_ids"'
expect "no file" 2 "trace: $scratch/nothing: No such file or directory" "$scratch/nothing"
for list in 0 -1 x 1x 1001 nan inf; do
    expect "per cents $list" 2 "trace: per cents are numbers up to 1000, as 1,3,10, and not '$list'" "$scratch/two" $list
done
TMPDIR=/nonexistent expect "no temporary folder" 2 "2 requests of 6 blocks, 4 of them different
capacity    hits (%)  written
trace: /nonexistent: no folder can be made there: No such file or directory" "$scratch/two" 10
if "${PYTHON:-python3}" "$here/make_trace.py" | cmp - "$here/requests.jsonl"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]

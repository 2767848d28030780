#!/bin/sh
# check-vars.sh MAKE: the standard variables reach every compiling and linking command.
set -eu
make=$1
status=0
log=$($make -n V=1 all CC="cc -DFROM_CC" CFLAGS="-O1 -DFROM_CFLAGS" CPPFLAGS=-DFROM_CPPFLAGS LDFLAGS=-Wl,-O1,--as-needed LDLIBS=-lm)
compiles=$(echo "$log" | grep -c -- ' -c -o ' || true)
links=$(echo "$log" | grep -- 'cc -DFROM_CC' | grep -cv -e ' -c -o ' -e ' -E -x c ' || true) # nor asking for the machine
want() { # want NAME PATTERN COUNT
    n=$(echo "$log" | grep -c -- "$2" || true)
    [ "$n" -ge "$3" ] || { echo "$1 reaches $n of $3 commands" >&2; status=1; }
}
[ "$compiles" -gt 10 ] && [ "$links" -ge 5 ] || { echo "$compiles compiling and $links linking commands found" >&2; status=1; }
want CC -DFROM_CC $((compiles + links))
want CFLAGS -DFROM_CFLAGS $((compiles + links))
want CPPFLAGS -DFROM_CPPFLAGS "$compiles"
want LDFLAGS -Wl,-O1,--as-needed "$links"
want LDLIBS '-lm$' "$links"
[ $status = 0 ] && echo "variables: ok"
exit $status

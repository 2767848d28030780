#!/bin/sh
# link.sh FILE RATE...: loads a cache from Redis over a link of so many bits a second (8gbit), packed and as it is; see link.py. Needs root, ip, tc,
# redis-server, and numpy for $PYTHON. The link is the loopback of a network namespace, which ends with this script.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
file=$1
shift
name=kvc-link-$$
port=6399
if [ "$(id -u)" != 0 ] || ! ip netns add "$name" 2>/dev/null; then
    echo "SKIPPED: a link of limited rate needs root and network namespaces"
    exit 0
fi
trap 'ip netns pids "$name" | xargs -r kill; sleep 1; ip netns del "$name"' EXIT
ip netns exec "$name" ip link set lo up
ip netns exec "$name" redis-server --port $port --save "" --appendonly no >/dev/null &
for rate in "$@"; do
    ip netns exec "$name" tc qdisc replace dev lo root tbf rate "$rate" burst 1mb latency 50ms
    ip netns exec "$name" "${PYTHON:-python3}" "$here/link.py" "$file" $port "$rate"
done

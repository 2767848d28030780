#!/bin/sh
# run.sh [--quick] BUILD_DIR NAME...: tests connectors with the real engines, each with NAME.py: transformers, transformers_learns, llama,
# llama_learns, lmcache, sglang, vllm, vllm_tier. Engines come from PyPI into environments below build/, once; without a registry a test is skipped with a message. README.md says more.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 2
root=$(dirname "$(dirname "$here")")
quick=
if [ "${1-}" = --quick ]; then
    quick=--quick # shorter prompts, of vLLM a small model; figures are no measurements
    shift
fi
build=$(cd "${1-/nowhere}" 2>/dev/null && pwd)
if [ $# -lt 2 ] || [ ! -x "$build/kvc-store" ]; then
    echo "Usage: run.sh [--quick] BUILD_DIR NAME...    BUILD_DIR holds the libraries and kvc-store" >&2
    exit 2
fi
shift
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
for library in "$build"/libkvc.so.* "$build"/libkvc_store.so.*; do
    case $library in
    */libkvc.so.*) export KVC_LIBRARY="$library" ;;
    *) export KVC_STORE_LIBRARY="$library" ;;
    esac
done
log=$(mktemp) || exit 2
trap 'rm -f "$log"' EXIT
passed=0 failed=0 skipped=0

# install FILE OPTION...: once for each content of FILE, into the environment or, where set, the folder $packages.
install() {
    to=${packages:-$venv}
    stamp=$to/kvc-connectors-$(basename "$1")
    cmp -s "$1" "$stamp" && return 0
    echo "installing $(basename "$1") into $to"
    file=$1
    shift
    "$venv/bin/python" -m pip install -q "$@" -r "$file" && cp "$file" "$stamp"
}

# Makes the environment of a test. transformers, llama, lmcache and sglang share that of the engine tests.
prepare() {
    packages=
    case $1 in
    vllm*) venv=${KVC_VLLM_VENV:-$root/build/connectors-vllm} ;;
    *) venv=${KVC_ENGINE_VENV:-$root/build/engine-venv} ;;
    esac
    [ -x "$venv/bin/python" ] || ${PYTHON:-python3} -m venv "$venv" || return 1
    case $1 in
    vllm*)
        [ -n "${KVC_VLLM_VENV-}" ] || install "$here/requirements-vllm.txt" --no-deps
        ;;
    *)
        install "$here/../engine/requirements.txt" --no-deps && install "$here/../engine/requirements-transformers.txt" || return 1
        case $1 in
        lmcache) own=${KVC_LMCACHE_PACKAGES-} ;;
        sglang) own=${KVC_SGLANG_PACKAGES-} ;;
        *) return 0 ;;
        esac
        packages=${own:-$root/build/connectors-$1}
        [ -n "$own" ] || install "$here/requirements-$1.txt" --no-deps --upgrade --target "$packages"
        ;;
    esac
}

quick_of() {
    case $1 in vllm* | llama | transformers) echo --quick ;; esac
}

for name in "$@"; do
    echo "$name:"
    if ! prepare "$name"; then
        echo "SKIPPED: $name is not tested: its environment $venv cannot be made (no registry, or no python3-venv)"
        skipped=$((skipped + 1))
        continue
    fi
    PYTHONPATH=$root/python${packages:+:$packages} "$venv/bin/python" "$here/$name.py" --tools "$build" ${quick:+$(quick_of "$name")} >"$log" 2>&1
    status=$?
    if [ $status = 0 ]; then
        grep -E '^(ok|figure|SKIPPED): ' "$log"
    else
        tail -n 200 "$log"
        echo "FAILED: $name: status $status"
        failed=$((failed + 1))
    fi
    passed=$((passed + $(grep -c '^ok: ' "$log")))
    skipped=$((skipped + $(grep -c '^SKIPPED: ' "$log")))
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]

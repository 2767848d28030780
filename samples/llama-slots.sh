#!/bin/sh
# llama-slots.sh save|restore PROMPT.json MODEL.gguf: keeps slot 0 of a llama-server in a store of kvc, or fills the slot with the longest prefix that
# the store has. PROMPT.json has the token ids: what /tokenize answers. SERVER is its address, SLOTS its --slot-save-path, KVC_STORE the store.
set -eu
case ${1-}:$# in
save:3 | restore:3) ;;
*)
    echo "Usage: llama-slots.sh save|restore PROMPT.json MODEL.gguf" >&2
    exit 2
    ;;
esac
: "${SERVER:=http://127.0.0.1:8080}" "${SLOTS:=/dev/shm/slots}" "${KVC_STORE:=dir:/var/cache/kvc}"
export KVC_STORE
file=$(mktemp "$SLOTS/slot-XXXXXXXX")
trap 'rm -f "$file"' EXIT
slot() {
    curl -sf "$SERVER/slots/0?action=$1" -d "{\"filename\":\"${file##*/}\"}"
}

case $1 in
save)
    slot save
    kvc-store put --model="$3" "$file"
    ;;
restore) # what the slot has tells which caches of the store fit: of MODEL, and of the server's types. An empty one tells nothing
    if slot save | grep -q '"n_saved": *0[,}]'; then
        curl -sf "$SERVER/completion" -d '{"prompt": [1], "n_predict": 0, "id_slot": 0}' >/dev/null
        slot save
    fi
    # a get that finds nothing ends this with status 1: the server computes the prompt then
    kvc-store get -f --like="$file" --model="$3" --tokens="$2" --to=llama -o "$file"
    slot restore
    ;;
esac

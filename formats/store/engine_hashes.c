/* engine_hashes.c: keys of prefixes as kvc, vLLM and LMCache compute them, for routers and
 * indexers. Not for finding anything in a store. */
#include "formats/store/store.h"

#include "formats/io/bytes.h"
#include "formats/io/hash.h"

#include <stdlib.h>
#include <string.h>

int kvc_prefix_chain(const char *identity, const int32_t *tokens, uint64_t n, uint8_t *keys,
                     struct kvc_error *e) {
    struct kvc_prefix p;
    if (kvc_prefix_begin(&p, identity, e) || kvc_prefix_keys(&p, tokens, n, keys, e)) return -1;
    return 0;
}

/* --- CBOR (RFC 8949), as far as the hashes need it --- */

/* Writes the head of an item: its major type, and a number in the shortest form. Returns the bytes,
 * at most 9. */
static size_t cbor_head(uint8_t *p, unsigned major, uint64_t v) {
    const unsigned type = major << 5;
    if (v < 24) {
        p[0] = (uint8_t)(type | v);
        return 1;
    }
    const unsigned log = v <= 0xff         ? 0
                         : v <= 0xffff     ? 1
                         : v <= 0xffffffff ? 2
                                           : 3,
                   bytes = 1u << log;
    p[0] = (uint8_t)(type | (24 + log));
    for (unsigned i = 0; i < bytes; i++) p[1 + i] = (uint8_t)(v >> (8 * (bytes - 1 - i)));
    return 1 + bytes;
}

static size_t cbor_int(uint8_t *p, int32_t v) {
    return v < 0 ? cbor_head(p, 1, (uint64_t)(-1 - (int64_t)v)) : cbor_head(p, 0, (uint64_t)v);
}

#define CBOR_BYTES 2
#define CBOR_TEXT 3
#define CBOR_ARRAY 4
#define CBOR_NULL 0xf6
#define NONE_SEED "vllm-none-hash" /* vLLM's DEFAULT_NONE_HASH_SEED */

int kvc_hash_vllm_cbor(const uint8_t *root, const int32_t *tokens, uint64_t n, uint64_t block,
                       uint8_t *hashes, struct kvc_error *e) {
    if (!block || block > (UINT64_C(1) << 24))
        return kvc_fail(e, KVC_ERR_USAGE, "a block has 1 to 16777216 tokens");
    uint8_t *text = malloc((size_t)block * 9 + 64), none[KVC_STORE_KEY];
    int status = text ? 0 : kvc_fail_memory(e, "a hash");
    const uint8_t *parent = root ? root : none;
    if (!status && !root) { /* the hash of its seed, a text */
        const size_t head = cbor_head(text, CBOR_TEXT, sizeof NONE_SEED - 1);
        memcpy(text + head, NONE_SEED, sizeof NONE_SEED - 1);
        status = kvc_sha256(text, head + sizeof NONE_SEED - 1, none, e);
    }
    for (uint64_t b = 0; b < n / block && !status; b++) {
        /* (parent hash, tuple of tokens, extra keys or None); tuples are arrays */
        size_t at = cbor_head(text, CBOR_ARRAY, 3);
        at += cbor_head(text + at, CBOR_BYTES, KVC_STORE_KEY);
        memcpy(text + at, parent, KVC_STORE_KEY);
        at += KVC_STORE_KEY;
        at += cbor_head(text + at, CBOR_ARRAY, block);
        for (uint64_t i = 0; i < block; i++) at += cbor_int(text + at, tokens[b * block + i]);
        text[at++] = CBOR_NULL;
        status = kvc_sha256(text, at, hashes + b * KVC_STORE_KEY, e);
        parent = hashes + b * KVC_STORE_KEY;
    }
    free(text);
    return status;
}

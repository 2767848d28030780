/* fuzz_store_object.c: bytes of a chunk as a store may hold them: a good chunk, some of whose bytes
 * the input changes, or the input itself. What is accepted has the tokens and keys that were asked
 * for, and its rows can be read.
 *
 * Input: a byte, whose lowest two bits say how far checks are mended (mend.h); bit 2: hashes of
 * rows are checked; bit 3: the rest is the object. Else the rest are changes of five bytes each:
 * u32 place, and what is combined with it by exclusive or. */
#include "tests/fuzz/fuzz.h"

#include "formats/api/kvc_file.h"
#include "formats/store/store.h"
#include "tests/dense_array.h"
#include "tests/fuzz/mend.h"

enum { TOKENS = 256, DIM = 4, ROW = 2 * DIM };

static struct kvc_store_namespace ns = {.chunk = TOKENS, .lossless = 1};
static struct kvc_store store;
static int32_t tokens[TOKENS];
static uint8_t *keys;
static void *good;
static size_t good_size;

/* Makes the chunk that is asked for. */
static void make(void) {
    static uint8_t rows[2][TOKENS * ROW];
    static const char *const facts[] = {"model.name=m", "model.architecture=llama", NULL};
    struct kvc_memory_array a[2];
    struct kvc_memory m = {.size = sizeof m,
                           .array_size = sizeof a[0],
                           .arrays = a,
                           .n_arrays = 2,
                           .tokens = TOKENS,
                           .token_ids = tokens,
                           .n_token_ids = TOKENS,
                           .facts = facts};
    const struct kvc_write_options how = {.size = sizeof how, .threads = 1};
    const struct kvc_store_namespace_options like = {.size = sizeof like, .chunk = TOKENS};
    struct kvc_error e;
    for (unsigned i = 0; i < TOKENS; i++) tokens[i] = (int32_t)i;
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned k = 0; k < sizeof rows[i]; k++) rows[i][k] = (uint8_t)(k * (7 + i) & 0x3b);
        a[i] = dense_array(i ? "V" : "K", 0, "f16", 2, 1, DIM, rows[i]);
    }
    struct kvc_file *f = kvc_file_open_arrays(&m, &e);
    if (!f || kvc_file_pack_memory(f, &how, &good, &good_size, &e))
        fuzz_die("no chunk can be made", &e);
    struct kvc_store_namespace *made = kvc_store_namespace_like(&store, f, &like, &e);
    if (!made || kvc_namespace_keys(made, tokens, TOKENS, NULL, 0, &keys, &e))
        fuzz_die("no namespace can be made", &e);
    memcpy(ns.hash, made->hash, sizeof ns.hash);
    memcpy(ns.identity, made->identity, sizeof ns.identity);
    ns.store = &store;
    pthread_mutex_init(&ns.lock, NULL);
    kvc_store_namespace_close(made);
    kvc_file_close(f);
}

static void read_rows(const struct kvc_file *f) {
    struct kvc_error e;
    uint64_t digest;
    if (f->cache->n_tokens != TOKENS || memcmp(f->cache->tokens, tokens, sizeof tokens) != 0)
        fuzz_die("a chunk of other tokens was accepted", NULL);
    /* rows have checks of their own */
    if (fuzz_is_small(f->cache) && fuzz_read(f->cache, &digest, &e)) return;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct kvc_error e = {.code = KVC_OK};
    if (!good) make();
    if (!size) return 0;
    const struct kvc_chunk chunk = {.ns = &ns, .tokens = tokens, .keys = keys};
    const int own = data[0] & 8;
    const size_t n = own ? size - 1 : good_size;
    uint8_t *bytes = fuzz_alloc(n);
    memcpy(bytes, own ? data + 1 : good, n);
    for (size_t at = 1; !own && at + 5 <= size; at += 5) {
        uint32_t place;
        memcpy(&place, data + at, 4);
        bytes[place % n] ^= data[at + 4];
    }
    struct file mended = mend(bytes, n, data[0] % 4 < MODES ? data[0] % 4 : RAW);
    struct kvc_file *f = kvc_chunk_open(&chunk, mended.data, &mended.size, data[0] & 4, &e);
    if (f) read_rows(f);
    else if (!*e.message) fuzz_die("refused without a word", NULL);
    if (!f && size == 1 && !own) fuzz_die("the good chunk is refused", &e);
    kvc_file_close(f);
    free(mended.data);
    free(bytes);
    return 0;
}

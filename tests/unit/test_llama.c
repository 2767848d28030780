/* test_llama.c: llama.cpp states built byte by byte to the layout, of all generations. Each must be
 * understood, come back byte for byte through a .kvc, and be refused at every truncation. Real
 * files of each: tests/cli/llama-builds. */
#include "formats/io/bytes.h"
#include "formats/file/restore.h"
#include "formats/container/container.h"
#include "formats/cache/format.h"
#include "formats/cache/keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct bytes {
    uint8_t data[65536];
    size_t n;
};

static void u32(struct bytes *b, uint32_t v) {
    put_u32(b->data + b->n, v);
    b->n += 4;
}

static void u64(struct bytes *b, uint64_t v) {
    put_u64(b->data + b->n, v);
    b->n += 8;
}

static void noise(struct bytes *b, size_t n) {
    for (size_t i = 0; i < n; i++) b->data[b->n + i] = (uint8_t)((b->n + i) * 37 + 11);
    b->n += n;
}

static void head(struct bytes *b, int session, uint32_t version, uint32_t tokens) {
    b->n = 0;
    u32(b, session ? 0x6767736eu : 0x67677371u);
    u32(b, version);
    u32(b, tokens);
    for (uint32_t i = 0; i < tokens; i++) u32(b, 100 + i);
    if (session) {
        u32(b, 5);
        memcpy(b->data + b->n, "llama", 5);
        b->n += 5;
    }
}

/* The cells of one stream: positions from `first`, `ext` extension words, sequence 0. */
static void cells(struct bytes *b, uint32_t n, uint32_t first, unsigned ext, uint32_t ids) {
    u32(b, n);
    for (uint32_t i = 0; i < n; i++) {
        u32(b, first + i);
        u32(b, ids);
        for (unsigned x = 0; x < ext; x++) u32(b, 1000 * (x + 1) + i);
        for (uint32_t s = 0; s < ids; s++) u32(b, s);
    }
}

static void rows(struct bytes *b, uint32_t type, uint64_t row, uint32_t n) {
    u32(b, type);
    u64(b, row);
    noise(b, (size_t)row * n);
}

static void attention(struct bytes *b, int tiles, unsigned ext, uint32_t layers, int has_v,
                      uint32_t n) {
    u32(b, 1);
    cells(b, n, 0, ext, 1);
    u32(b, 0);
    u32(b, layers);
    if (tiles) u64(b, 0);
    for (uint32_t i = 0; i < layers; i++) rows(b, 1, 32, n);
    for (uint32_t i = 0; has_v && i < layers; i++) rows(b, 1, 16, n);
}

static void recurrent(struct bytes *b, uint32_t layers, uint32_t owning) {
    cells(b, 1, 9, 0, 0);
    u32(b, 0);
    u32(b, layers);
    for (uint32_t i = 0; i < owning; i++) rows(b, 0, 64, 1);
    for (uint32_t i = 0; i < owning; i++) rows(b, 0, 128, 1);
}

static int no_v; /* what --latent says */

/* Cut exactly between its two caches, a file is a valid one of a model with only the first: nothing
 * in it tells. */
static size_t whole_without_rest;

static struct kvc_cache *import(struct kvc_input *in, const struct bytes *b, struct kvc_error *e) {
    struct kvc_import_options options = {.format = no_v ? "llama:latent" : NULL};
    memset(e, 0, sizeof *e);
    kvc_input_memory(in, "test", b->data, b->n);
    return kvc_import_file(in, &options, NULL, e);
}

/* Imports, packs, opens the pack, gives the source back and compares; then refuses every
 * truncation. The cache is returned for further looks; close *in after it. */
static struct kvc_cache *accepted(const struct bytes *b, struct kvc_input *in) {
    struct kvc_error e;
    struct kvc_cache *c = import(in, b, &e);
    if (!c) fail_msg("%s", e.message);
    struct kvc_buffer packed = {0}, back = {0};
    struct kvc_sink to = kvc_sink_buffer(&packed), out = kvc_sink_buffer(&back);
    struct kvc_pack_options options = {.threads = 1};
    assert_int_equal(kvc_container_write(c, &options, &to, NULL, &e), 0);
    struct kvc_input again;
    kvc_input_memory(&again, "packed", packed.data, packed.n);
    struct kvc_cache *copy = kvc_container_open(&again, &e);
    if (!copy) fail_msg("%s", e.message);
    assert_int_equal(kvc_source_write(copy, 1, &out, &e), 0);
    assert_int_equal(back.n, b->n);
    assert_memory_equal(back.data, b->data, b->n);
    kvc_cache_free(copy);
    kvc_input_close(&again);
    free(packed.data);
    free(back.data);
    struct bytes *cut = malloc(sizeof *cut);
    memcpy(cut, b, sizeof *cut);
    for (cut->n = 0; cut->n < b->n; cut->n++) {
        if (cut->n && cut->n == whole_without_rest) continue;
        struct kvc_input part;
        struct kvc_cache *none = import(&part, cut, &e);
        if (none) fail_msg("accepted when cut to %zu of %zu bytes", cut->n, b->n);
        assert_true(*e.message);
        kvc_input_close(&part);
    }
    free(cut);
    return c;
}

static void done(struct kvc_cache *c, struct kvc_input *in) {
    kvc_cache_free(c);
    kvc_input_close(in);
}

static struct bytes buffer;

static void dense_versions(void **state) {
    (void)state;
    const struct {
        int session;
        uint32_t version;
    } cases[] = {{0, 2}, {0, 3}, {0, 4}, {1, 9}, {1, 10}, {1, 11}};
    for (size_t i = 0; i < 6; i++) {
        struct kvc_input in;
        int tiles = cases[i].version == 4 || cases[i].version == 11;
        head(&buffer, cases[i].session, cases[i].version, 6);
        attention(&buffer, tiles, 0, 2, 1, 6);
        struct kvc_cache *c = accepted(&buffer, &in);
        assert_int_equal(c->n_parts, 1);
        assert_int_equal(c->n_tensors, 4);
        assert_int_equal(c->n_tokens, 6);
        assert_int_equal(c->tensor[0].shape.dim, 16);
        assert_int_equal(c->tensor[1].shape.dim, 8); /* layer by layer */
        assert_int_equal(kvc_meta_u64(&c->meta, KVC_KEY_SOURCE_VERSION, 0), cases[i].version);
        assert_null(c->part[0].cells.words); /* nothing an engine would miss */
        if (cases[i].session)
            assert_string_equal(kvc_meta_text(&c->meta, KVC_KEY_ROPE_PAIRING, ""), "interleaved");
        else assert_null(kvc_meta_find(&c->meta, KVC_KEY_ROPE_PAIRING));
        done(c, &in);
    }
}

static void positions_of_m_rope(void **state) {
    (void)state;
    const struct {
        uint32_t version;
        unsigned ext;
    } cases[] = {{2, 2}, {3, 3}};
    for (size_t i = 0; i < 2; i++) {
        struct kvc_input in;
        head(&buffer, 0, cases[i].version, 4);
        attention(&buffer, 0, cases[i].ext, 1, 1, 4);
        struct kvc_cache *c = accepted(&buffer, &in);
        assert_int_equal(kvc_meta_u64(&c->meta, KVC_KEY_CELLS_COORDINATES, 0), cases[i].ext);
        const struct kvc_cells *x = &c->part[0].cells;
        assert_int_equal(x->word_at[4], 4 * (cases[i].ext + 1));
        assert_int_equal(x->words[x->word_at[2]], 1002);
        done(c, &in);
    }
}

static void states(void **state) {
    (void)state;
    struct kvc_input in;
    head(&buffer, 0, 3, 4);
    recurrent(&buffer, 3, 3);
    struct kvc_cache *c = accepted(&buffer, &in);
    assert_int_equal(c->part[0].kind, KVC_PART_STATE);
    assert_int_equal(c->n_tensors, 6);
    assert_int_equal(c->tensor[0].role, KVC_ROLE_R);
    assert_int_equal(c->tensor[5].role, KVC_ROLE_S);
    assert_int_equal(c->tensor[5].shape.dim, 32);
    assert_int_equal(c->part[0].cells.pos[0], 9);
    done(c, &in);
    head(&buffer, 0, 3, 4); /* a hybrid: attention, then states of one of two layers */
    attention(&buffer, 0, 0, 1, 1, 4);
    whole_without_rest = buffer.n;
    recurrent(&buffer, 2, 1);
    c = accepted(&buffer, &in);
    whole_without_rest = 0;
    assert_int_equal(c->n_parts, 2);
    assert_int_equal(c->n_tensors, 4);
    done(c, &in);
}

static void latent(void **state) {
    (void)state;
    struct kvc_input in;
    head(&buffer, 0, 4, 3);
    attention(&buffer, 1, 0, 2, 0, 3);
    struct kvc_error e;
    assert_null(import(&in, &buffer, &e)); /* as if truncated after K */
    kvc_input_close(&in);
    no_v = 1;
    struct kvc_cache *c = accepted(&buffer, &in);
    no_v = 0;
    assert_int_equal(c->n_tensors, 2);
    assert_int_equal(c->tensor[0].role, KVC_ROLE_LATENT);
    assert_int_equal(c->layer[0].kind, KVC_LAYER_LATENT);
    done(c, &in);
}

/* Cells that belong to two sequences, V transposed, cells out of order. */
static void sessions(void **state) {
    (void)state;
    struct kvc_input in;
    head(&buffer, 1, 11, 2);
    u32(&buffer, 2); /* two streams, the second empty */
    u32(&buffer, 3);
    const uint32_t pos[3] = {2, 0, 1};
    for (int i = 0; i < 3; i++) {
        u32(&buffer, pos[i]);
        u32(&buffer, 2);
        u32(&buffer, 0);
        u32(&buffer, 1);
    }
    u32(&buffer, 1); /* V transposed */
    u32(&buffer, 1);
    u64(&buffer, 0);
    rows(&buffer, 1, 8, 3);
    u32(&buffer, 1);
    u32(&buffer, 2);
    u32(&buffer, 4);
    for (int channel = 0; channel < 4; channel++)
        for (int cell = 0; cell < 3; cell++) {
            put_u16(buffer.data + buffer.n, (uint16_t)(16 * channel + cell));
            buffer.n += 2;
        }
    u32(&buffer, 0);
    struct kvc_cache *c = accepted(&buffer, &in);
    struct kvc_error e;
    uint8_t v[3 * 8];
    assert_int_equal(c->n_parts, 1); /* not of the empty stream */
    assert_int_equal(kvc_meta_u64(&c->meta, KVC_KEY_LLAMA_STREAMS, 0), 2);
    assert_int_equal(c->part[0].cells.word_at[3], 6);
    assert_int_equal(c->read(c, 1, 0, 3, v, &e), 0);
    for (int row = 0; row < 3; row++) /* sorted row 0 is cell 1, row 1 is cell 2, row 2 is cell 0 */
        for (int channel = 0; channel < 4; channel++)
            assert_int_equal(get_u16(v + 8 * row + 2 * channel), 16 * channel + (row + 1) % 3);
    done(c, &in);
}

/* Attention without a count of streams, whose cells have `ids` sequences. */
static void without_streams(struct bytes *b, uint32_t ids, uint32_t n) {
    cells(b, n, 0, 0, ids);
    u32(b, 0);
    u32(b, 2);
    for (uint32_t i = 0; i < 2; i++) rows(b, 1, 32, n);
    for (uint32_t i = 0; i < 2; i++) rows(b, 1, 16, n);
}

static void outputs(struct bytes *b, uint32_t ids, uint64_t logits, uint64_t embeddings) {
    u32(b, ids);
    for (uint32_t i = 0; i < ids; i++) u32(b, i);
    u64(b, logits);
    noise(b, 4 * (size_t)logits);
    u64(b, embeddings);
    noise(b, 4 * (size_t)embeddings);
}

static struct kvc_cache *accepted_with(size_t cut_at, struct kvc_input *in) {
    whole_without_rest = cut_at;
    struct kvc_cache *c = accepted(&buffer, in);
    whole_without_rest = 0;
    assert_int_equal(c->n_tensors, 4);
    return c;
}

/* Builds before July 2025: no count of streams, cells of a sequence without ids or with one; a
 * second cache, or states, may follow. */
static void before_streams(void **state) {
    (void)state;
    struct kvc_input in;
    for (uint32_t ids = 0; ids < 2; ids++) {
        head(&buffer, 0, 2, 4);
        without_streams(&buffer, ids, 4);
        struct kvc_cache *c = accepted_with(0, &in);
        assert_null(c->part[0].cells.words);
        assert_int_equal(kvc_meta_u64(&c->meta, KVC_KEY_LLAMA_STREAMS, 0), 1);
        done(c, &in);
    }
    head(&buffer, 0, 2, 4);
    without_streams(&buffer, 0, 4);
    whole_without_rest = buffer.n;
    without_streams(&buffer, 0, 3);
    struct kvc_cache *c = accepted(&buffer, &in);
    whole_without_rest = 0;
    assert_int_equal(c->n_parts, 2);
    assert_int_equal(c->part[1].kind, KVC_PART_WINDOW);
    done(c, &in);
    /* the state of a recurrent model has the form of attention with one cell */
    head(&buffer, 0, 2, 4);
    recurrent(&buffer, 2, 2);
    c = accepted_with(0, &in);
    assert_int_equal(c->part[0].kind, KVC_PART_STATE);
    done(c, &in);
    head(&buffer, 0, 2, 0);
    u32(&buffer, 0); /* no cells */
    c = import(&in, &buffer, &(struct kvc_error){0});
    assert_non_null(c);
    assert_int_equal(c->part[0].cells.n, 0);
    done(c, &in);
}

/* Sessions with outputs, with a count of streams and without; also without any output. */
static void sessions_with_outputs(void **state) {
    (void)state;
    struct kvc_input in;
    for (int i = 0; i < 4; i++) {
        head(&buffer, 1, 9, 3);
        outputs(&buffer, i & 1 ? 2 : 0, i & 1 ? 14 : 0, i & 1 ? 6 : 0);
        if (i & 2) without_streams(&buffer, 1, 3);
        else attention(&buffer, 0, 0, 2, 1, 3);
        /* with a word 0 and no more, it has no cells */
        struct kvc_cache *c = accepted_with(i & 1 ? 0 : 37, &in);
        assert_int_equal(kvc_meta_u64(&c->meta, KVC_KEY_SOURCE_VERSION, 0), 9);
        done(c, &in);
    }
}

/* What llama_state_get_data() returns, of every generation: no head, no tokens. */
static void states_without_head(void **state) {
    (void)state;
    struct kvc_input in;
    for (int i = 0; i < 5; i++) {
        head(&buffer, 1, 9, 0);
        memmove(buffer.data, buffer.data + 12, 9); /* after magic, version and number of tokens */
        buffer.n = 9;
        if (i == 2 || i == 3) outputs(&buffer, 1, 7, 0);
        if (i == 3) without_streams(&buffer, 1, 3);
        else attention(&buffer, i == 0, i == 4 ? 3 : 0, 2, 1, 3);
        /* one stream without cells */
        struct kvc_cache *c = accepted_with(i == 2 || i == 3 ? 17 : 0, &in);
        assert_int_equal(c->n_tokens, 0);
        assert_string_equal(kvc_meta_text(&c->meta, KVC_KEY_MODEL_ARCH, ""), "llama");
        assert_string_equal(kvc_meta_text(&c->meta, KVC_KEY_SOURCE_FORMAT, ""), "llama.cpp state");
        assert_null(kvc_meta_find(&c->meta, KVC_KEY_SOURCE_VERSION));
        done(c, &in);
    }
}

/* Attention in stream `full` of `streams`, whose cells are of the sequence of that number. */
static void one_of_streams(struct bytes *b, uint32_t streams, uint32_t full, uint32_t n) {
    u32(b, streams);
    for (uint32_t s = 0; s < streams; s++) {
        u32(b, s == full ? n : 0);
        if (s != full) continue;
        for (uint32_t i = 0; i < n; i++) {
            u32(b, i);
            u32(b, 1);
            u32(b, s);
        }
        u32(b, 0);
        u32(b, 2);
        u64(b, 0);
        for (uint32_t i = 0; i < 2; i++) rows(b, 1, 32, n);
        for (uint32_t i = 0; i < 2; i++) rows(b, 1, 16, n);
    }
}

/* A slot of a server with several is one sequence, with a second cache, too. */
static void empty_streams(void **state) {
    (void)state;
    struct kvc_input in;
    for (uint32_t full = 0; full < 3; full++) {
        head(&buffer, 0, 4, 4);
        one_of_streams(&buffer, 3, full, 4);
        whole_without_rest = buffer.n;
        one_of_streams(&buffer, 3, full, 2);
        struct kvc_cache *c = accepted(&buffer, &in);
        whole_without_rest = 0;
        assert_int_equal(c->n_parts, 2);
        for (int p = 0; p < 2; p++) {
            assert_int_equal(c->part[p].kind, p ? KVC_PART_WINDOW : KVC_PART_LIVE);
            assert_int_equal(c->part[p].stream, 0);
            assert_int_equal(c->part[p].cells.n, p ? 2 : 4);
            assert_null(c->part[p].cells.words);
        }
        assert_int_equal(kvc_meta_u64(&c->meta, KVC_KEY_LLAMA_STREAMS, 0), 3);
        assert_int_equal(kvc_meta_u64(&c->meta, KVC_KEY_LLAMA_STREAM, 0), full);
        done(c, &in);
    }
}

/* Models whose layers have a state of one role alone: the other has rows of no bytes. */
static void states_of_one_role(void **state) {
    (void)state;
    struct kvc_input in;
    for (int no_r = 0; no_r < 2; no_r++) {
        head(&buffer, 0, 4, 4);
        attention(&buffer, 1, 0, 1, 1, 4);
        whole_without_rest = buffer.n;
        cells(&buffer, 1, 3, 0, 0);
        u32(&buffer, 0);
        u32(&buffer, 3);
        for (uint32_t i = 0; i < 4; i++) rows(&buffer, 0, (i < 2) == no_r ? 0 : 64, 1);
        struct kvc_cache *c = accepted_with(whole_without_rest, &in);
        assert_int_equal(c->tensor[2].role, no_r ? KVC_ROLE_S : KVC_ROLE_R);
        done(c, &in);
    }
}

/* A session of an architecture that may keep latents needs no option; other files say which option.
 */
static void latent_by_architecture(void **state) {
    (void)state;
    struct kvc_input in;
    struct kvc_error e;
    for (int known = 0; known < 2; known++) {
        const char *arch = known ? "deepseek2" : "newmodel2";
        head(&buffer, 1, 11, 3);
        buffer.n -= 9;
        u32(&buffer, 9);
        memcpy(buffer.data + buffer.n, arch, 9);
        buffer.n += 9;
        attention(&buffer, 1, 0, 2, 0, 3);
        struct kvc_cache *c = known ? accepted(&buffer, &in) : import(&in, &buffer, &e);
        if (known) assert_int_equal(c->layer[0].kind, KVC_LAYER_LATENT);
        else assert_non_null(strstr(e.message, "--latent"));
        if (!known) assert_null(c);
        done(c, &in);
    }
}

/* Says how far the best reading came, and names types of forks. */
static void how_far(void **state) {
    (void)state;
    struct kvc_input in;
    struct kvc_error e;
    head(&buffer, 0, 2, 4);
    attention(&buffer, 0, 0, 3, 1, 4);
    buffer.n -= 5;
    assert_null(import(&in, &buffer, &e));
    assert_non_null(
        strstr(e.message, "read as GGSQ 2 with streams: 5 tensors fit, then: cut short"));
    kvc_input_close(&in);
    const struct {
        uint32_t type;
        const char *words;
    } types[] = {{133, "type 133 (q6_0 of ik_llama.cpp), which kvc does not know"},
                 {39, "type 39 (mxfp4), "},
                 {77, "type 77, which kvc does not know"}};
    for (int i = 0; i < 3; i++) {
        head(&buffer, 0, 4, 1);
        u32(&buffer, 1);
        cells(&buffer, 1, 0, 0, 1);
        u32(&buffer, 0);
        u32(&buffer, 1);
        u64(&buffer, 0);
        rows(&buffer, types[i].type, 34, 1);
        assert_null(import(&in, &buffer, &e));
        assert_non_null(strstr(e.message, types[i].words));
        kvc_input_close(&in);
    }
}

static int export(const struct kvc_cache *c, const char *options, struct kvc_buffer *out,
                  struct kvc_error *e) {
    struct kvc_sink sink = kvc_sink_buffer(out);
    *out = (struct kvc_buffer){0};
    return kvc_export(&kvc_format_llama, c, &(struct kvc_export_options){.own = options}, &sink, e);
}

/* The cells of one of several streams become those of another, or of one alone. */
static void export_streams(void **state) {
    (void)state;
    struct kvc_input in;
    struct kvc_error e;
    struct kvc_buffer out;
    head(&buffer, 0, 4, 4);
    one_of_streams(&buffer, 3, 2, 4);
    struct kvc_cache *c = import(&in, &buffer, &e);
    assert_non_null(c);
    assert_int_equal(export(c, "streams=2,stream=2", &out, &e), -1);
    assert_int_equal(e.code, KVC_ERR_USAGE);
    free(out.data);
    for (uint32_t streams = 1; streams < 4; streams++) {
        char options[48];
        snprintf(options, sizeof options, "streams=%u,stream=%u", streams, streams - 1);
        assert_int_equal(export(c, options, &out, &e), 0);
        struct kvc_input again;
        kvc_input_memory(&again, "again", out.data, out.n);
        struct kvc_cache *copy = kvc_import_file(&again, NULL, NULL, &e);
        if (!copy) fail_msg("%s", e.message);
        assert_int_equal(kvc_meta_u64(&copy->meta, KVC_KEY_LLAMA_STREAMS, 0), streams);
        assert_int_equal(kvc_meta_u64(&copy->meta, KVC_KEY_LLAMA_STREAM, 0), streams - 1);
        assert_int_equal(copy->part[0].cells.n, 4);
        assert_int_equal(out.n, buffer.n - 4 * (3 - streams));
        done(copy, &again);
        free(out.data);
    }
    done(c, &in);
}

/* Version 4 records the rotation of quantised rows; an option says it where the source does not. */
static void export_tiles(void **state) {
    (void)state;
    struct kvc_input in;
    struct kvc_error e;
    struct kvc_buffer out;
    head(&buffer, 0, 3, 1);
    u32(&buffer, 1);
    cells(&buffer, 1, 0, 0, 1);
    u32(&buffer, 0);
    u32(&buffer, 1);
    rows(&buffer, 8, 68, 1); /* q8_0 */
    rows(&buffer, 1, 16, 1);
    struct kvc_cache *c = import(&in, &buffer, &e);
    assert_non_null(c);
    static const char *const refused[] = {"version=4", "hadamard-k=3", "hadamard-k=64x",
                                          "hadamard-k=64,hadamard-v=64", "hadamard-k=64,version=3"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        assert_int_equal(export(c, refused[i], &out, &e), -1);
        assert_non_null(strstr(e.message, "adamard"));
        free(out.data);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(export(c, i ? "hadamard-k=64" : "hadamard-k=none", &out, &e), 0);
        assert_int_equal(out.n, buffer.n + 8);
        assert_int_equal(get_u32(out.data + buffer.n - 24 - 12 - 68 - 4), i ? 64 : 0);
        free(out.data);
    }
    done(c, &in);
}

static void server_tokens(void **state) {
    (void)state;
    struct kvc_input in;
    head(&buffer, 0, 4, 0);
    put_u32(buffer.data + 8, 7);
    const uint32_t words[7] = {UINT32_MAX, 1, 3, 11, 12, 13, 0};
    for (int i = 0; i < 7; i++) u32(&buffer, words[i]);
    attention(&buffer, 1, 0, 1, 1, 3);
    struct kvc_cache *c = accepted(&buffer, &in);
    assert_int_equal(c->n_tokens, 3);
    assert_int_equal(c->tokens[2], 13);
    assert_string_equal(kvc_meta_text(&c->meta, KVC_KEY_LLAMA_TOKEN_FORM, ""), "server");
    done(c, &in);
}

/* What a slot of a dense model exports is the slot. */
static void export_is_the_source(void **state) {
    (void)state;
    struct kvc_input in;
    struct kvc_error e;
    for (uint32_t version = 2; version <= 4; version++) {
        head(&buffer, 0, version, 5);
        attention(&buffer, version == 4, 0, 2, 1, 5);
        struct kvc_cache *c = import(&in, &buffer, &e);
        assert_non_null(c);
        struct kvc_buffer out = {0};
        struct kvc_sink sink = kvc_sink_buffer(&out);
        char text[32];
        snprintf(text, sizeof text, "version=%u", (unsigned)version);
        const char *const set[] = {text, NULL};
        const struct kvc_export_options options = {.set = set};
        assert_int_equal(kvc_export(&kvc_format_llama, c, &options, &sink, &e), 0);
        assert_int_equal(out.n, buffer.n);
        assert_memory_equal(out.data, buffer.data, out.n);
        free(out.data);
        done(c, &in);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_versions),
        cmocka_unit_test(positions_of_m_rope),
        cmocka_unit_test(states),
        cmocka_unit_test(latent),
        cmocka_unit_test(sessions),
        cmocka_unit_test(before_streams),
        cmocka_unit_test(sessions_with_outputs),
        cmocka_unit_test(states_without_head),
        cmocka_unit_test(empty_streams),
        cmocka_unit_test(states_of_one_role),
        cmocka_unit_test(latent_by_architecture),
        cmocka_unit_test(how_far),
        cmocka_unit_test(export_streams),
        cmocka_unit_test(export_tiles),
        cmocka_unit_test(server_tokens),
        cmocka_unit_test(export_is_the_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

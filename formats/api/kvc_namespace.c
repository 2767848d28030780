/* kvc_namespace.c: implements the part of kvc.h on namespaces, and the text of their facts, lines
 * "TAG WORD VALUE". Spec: formats/cache/KEYS.md, "Namespace"; formats/store/STORE.md, "Namespaces".
 * Not for the hash itself (formats/cache/prefix_space.h). */
#include "formats/api/kvc.h"
#include "formats/api/kvc_file.h"
#include "formats/api/sized.h"
#include "formats/cache/keys.h"
#include "formats/cache/prefix_space.h"
#include "formats/cache/values.h"
#include "formats/container/container.h"
#include "formats/file/rate.h"
#include "formats/io/bytes.h"
#include "formats/io/sink.h"
#include "formats/model/predictor.h"
#include "formats/model/profile.h"
#include "codecs/recipe.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(KVC_RECIPE_BYTES == KVC_MAX_RECIPE_TEXT,
               "a recipe's text fits into struct kvc_namespace_facts");

#define FIRST_LINE "kvc namespace 1\n"
#define IDENTITY 1
#define FIDELITY 16
#define CHUNK 18
#define TENANT 19
#define SCALES 20

/* --- writing --- */

struct text {
    struct kvc_buffer buffer;
    int failed;
};

static void text_add(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void text_add(struct text *t, const char *format, ...) {
    char line[512];
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(line, sizeof line, format, list);
    va_end(list);
    struct kvc_sink sink = kvc_sink_buffer(&t->buffer);
    t->failed |= n < 0 ||
                 kvc_sink_write(&sink, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1,
                                NULL) != 0;
}

static void add_item(void *state, uint8_t tag, const char *word, int text, const void *bytes,
                     size_t n) {
    struct text *t = state;
    const uint8_t *p = bytes;
    text_add(t, "%u %s ", tag, word);
    for (size_t i = 0; i < n; i++)
        if (text && p[i] > ' ' && p[i] < 127 && p[i] != '%') text_add(t, "%c", p[i]);
        else text_add(t, text ? "%%%02x" : "%02x", p[i]);
    text_add(t, "\n");
}

/* Says in words what people want to know of the layers. */
static void add_comments(struct text *t, const struct kvc_cache *c, const struct kvc_meta *meta) {
    const char *name = meta->facts.model;
    uint32_t layers = 0;
    if (name) {
        text_add(t, "# model ");
        for (const char *p = name; *p && p - name < 200; p++)
            text_add(t, "%c", *p >= ' ' && *p < 127 ? *p : '?');
        text_add(t, "\n");
    }
    for (uint32_t i = 0; i < c->n_layers; i++)
        layers += c->part[c->layer[i].part].kind <= KVC_PART_STATE;
    text_add(t, "# layers %" PRIu32, layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (c->part[c->layer[i].part].kind > KVC_PART_STATE) continue;
        for (int r = 0; r < 2; r++) {
            if (c->layer[i].tensor[r] == KVC_NONE) continue;
            const struct kvc_tensor *x = &c->tensor[c->layer[i].tensor[r]];
            text_add(t, " %s %s %" PRIu64 "x%" PRIu64, kvc_role_name(x->role),
                     kvc_dtype_info(x->shape.dtype)->name, x->shape.heads, x->shape.dim);
        }
        break;
    }
    text_add(t, "\n");
}

/* Writes the text of the namespace of c with these metadata. */
static char *write_text(const struct kvc_cache *c, const struct kvc_meta *meta,
                        const struct kvc_space *more, struct kvc_error *e) {
    uint8_t ns[KVC_KEY_BYTES];
    struct text t = {.failed = 0};
    text_add(&t, FIRST_LINE);
    add_comments(&t, c, meta);
    const int status = kvc_prefix_space_items(c, meta, more, ns, add_item, &t, e);
    struct kvc_sink sink = kvc_sink_buffer(&t.buffer);
    t.failed |= kvc_sink_write(&sink, "", 1, NULL) != 0;
    if (!status && !t.failed && t.buffer.n <= KVC_NAMESPACE_TEXT) return (char *)t.buffer.data;
    free(t.buffer.data);
    if (!status && t.failed) kvc_fail_memory(e, "the facts of a namespace");
    else if (!status)
        kvc_fail(e, KVC_ERR_UNSUPPORTED, "the facts of the namespace take more than %d bytes",
                 KVC_NAMESPACE_TEXT);
    return NULL;
}

/* --- reading --- */

static int is_text(unsigned tag) {
    return tag == 1 || tag == 3 || tag == 6 || tag == 7 || tag == 8 || tag == FIDELITY ||
           tag == 23 || tag == 24;
}

/* Decodes the value of a line into `bytes`, which has room for its characters. Returns how many
 * there are, or -1. */
static ptrdiff_t decode_value(const char *p, const char *end, int text, uint8_t *bytes) {
    uint8_t *to = bytes;
    while (p < end) {
        if (text && *p != '%') {
            *to++ = (uint8_t)*p++;
            continue;
        }
        p += text;
        if (end - p < 2 || kvc_hex_digit(p[0]) < 0 || kvc_hex_digit(p[1]) < 0) return -1;
        *to++ = (uint8_t)(kvc_hex_digit(p[0]) << 4 | kvc_hex_digit(p[1]));
        p += 2;
    }
    return to - bytes;
}

static int keep_text(char *to, size_t room, const uint8_t *bytes, size_t n) {
    if (n >= room || memchr(bytes, 0, n)) return -1;
    memcpy(to, bytes, n);
    to[n] = '\0';
    return 0;
}

static int keep_hash(uint8_t *to, int *has, const uint8_t *bytes, size_t n) {
    *has = n == KVC_KEY_BYTES;
    if (n && !*has) return -1;
    memcpy(to, bytes, n);
    return 0;
}

/* Keeps what readers need. */
static int keep_fact(struct kvc_namespace_facts *f, unsigned tag, const uint8_t *bytes, size_t n) {
    if (tag == IDENTITY) return keep_text(f->identity, sizeof f->identity, bytes, n);
    if (tag == FIDELITY) return keep_text(f->fidelity, sizeof f->fidelity, bytes, n);
    if (tag == TENANT) return keep_hash(f->tenant, &f->has_tenant, bytes, n);
    if (tag != CHUNK) return 0;
    if (n != 8) return -1;
    f->chunk = get_u64(bytes);
    return f->chunk && f->chunk % KVC_PREFIX_TOKENS == 0 && f->chunk <= (UINT64_C(1) << 32) ? 0
                                                                                            : -1;
}

/* Finds the parts of the line at p, which ends at `end`. Returns its tag, 0 of a comment, or -1. */
static int split_line(const char *p, const char *end, const char **value) {
    int tag = 0;
    if (*p == '#') return 0;
    for (; p < end && *p >= '0' && *p <= '9' && tag < 100; p++) tag = 10 * tag + (*p - '0');
    const char *word = p < end && *p == ' ' ? memchr(p + 1, ' ', (size_t)(end - p - 1)) : NULL;
    if (!tag || !word) return -1;
    *value = word + 1;
    return tag;
}

static int read_text(const char *text, size_t size, struct kvc_namespace_facts *facts,
                     struct kvc_error *e) {
    const size_t first = sizeof FIRST_LINE - 1;
    const int fits = size >= first && size <= KVC_NAMESPACE_TEXT;
    uint8_t *bytes = fits ? malloc(size + 1) : NULL;
    struct kvc_sha256 hash;
    int last = 0, bad = !bytes || memcmp(text, FIRST_LINE, first) != 0;
    if (fits && !bytes) return kvc_fail_memory(e, "the facts of a namespace");
    *facts = (struct kvc_namespace_facts){0};
    kvc_prefix_space_begin(&hash);
    if (size && !text[size - 1]) size--;
    for (const char *p = bad ? text : text + first, *end; !bad && p < text + size; p = end + 1) {
        const char *value = NULL;
        end = memchr(p, '\n', (size_t)(text + size - p));
        const int tag = end ? split_line(p, end, &value) : -1;
        if (!tag) continue;
        const ptrdiff_t n = tag > last ? decode_value(value, end, is_text((unsigned)tag), bytes)
                                       : -1;
        bad = n < 0 || keep_fact(facts, (unsigned)tag, bytes, (size_t)n);
        if (bad) break;
        kvc_prefix_space_put(&hash, (uint8_t)tag, bytes, (size_t)n);
        last = tag;
    }
    free(bytes);
    if (bad || !facts->chunk || !facts->identity[0]) {
        kvc_sha256_drop(&hash);
        return kvc_fail(e, KVC_ERR_DAMAGED, "the facts of a namespace are damaged");
    }
    facts->lossless = strcmp(facts->fidelity, "lossless") == 0;
    return kvc_sha256_final(&hash, facts->ns, e);
}

int kvc_namespace_read(const char *text, size_t size, struct kvc_namespace_facts *facts,
                       struct kvc_error *e) {
    if (KVC_NULL(e, text, facts)) return -1;
    struct kvc_namespace_facts own;
    if (read_text(text, size, &own, e)) return -1;
    return kvc_sized_give(facts, &own, sizeof own, "kvc_namespace_facts", e);
}

/* --- comparing --- */

/* Returns the line of a tag, or NULL. */
static const char *line_of(const char *text, int tag) {
    const char *value;
    for (const char *p = text, *end; *p; p = end + 1) {
        end = strchr(p, '\n');
        if (!end) return NULL;
        if (split_line(p, end, &value) == tag) return p;
    }
    return NULL;
}

int kvc_namespace_differ(const char *here, const char *there, size_t *at, char *text, size_t size) {
    for (const char *p = here + *at, *end; *p; p = end + 1) {
        const char *mine, *its = NULL;
        end = strchr(p, '\n');
        if (!end) return 0;
        *at = (size_t)(end + 1 - here);
        const int tag = split_line(p, end, &mine);
        const char *other = tag > 0 ? line_of(there, tag) : NULL;
        if (tag <= 0) continue;
        const char *other_end = other ? strchr(other, '\n') : NULL;
        if (other && split_line(other, other_end, &its) == tag && its &&
            other_end - its == end - mine && memcmp(its, mine, (size_t)(end - mine)) == 0)
            continue;
        const char *word = (const char *)memchr(p, ' ', (size_t)(end - p)) + 1;
        const int n_word = (int)(mine - 1 - word), n_mine = (int)(end - mine),
                  n_its = other ? (int)(other_end - its) : 0;
        uint8_t x[8], y[8];
        if (tag == 5) snprintf(text, size, "layers, heads, channels or dtypes");
        else if (tag == SCALES) snprintf(text, size, "the scales of values of 8 bits");
        else if (tag == CHUNK && n_mine == 16 && n_its == 16 &&
                 decode_value(mine, end, 0, x) == 8 && decode_value(its, other_end, 0, y) == 8)
            snprintf(text, size, "chunk (%" PRIu64 " tokens here, %" PRIu64 " there)", get_u64(x),
                     get_u64(y));
        else
            snprintf(text, size, "%.*s (%.*s here, %.*s there)", n_word, word, n_mine ? n_mine : 7,
                     n_mine ? mine : "unknown", n_its ? n_its : 7, n_its ? its : "unknown");
        return 1;
    }
    return 0;
}

/* --- of a file --- */

/* Returns the bytes of a token's rows in the live part. */
static uint64_t token_bytes(const struct kvc_cache *c) {
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (kvc_tensor_part(c, t)->kind == KVC_PART_LIVE)
            bytes += kvc_row_bytes(&c->tensor[t].shape);
    return bytes;
}

/* bytes: below that, requests cost more than what they move */
#define GOOD_OBJECT (UINT64_C(2) << 20)
#define MAX_RUNS 4 /* 1024 tokens */

/* The smallest chunk whose object takes 2 MiB or more, as packing usually makes it smaller.
 * Everybody computes the same. */
static uint64_t choose_chunk(const struct kvc_cache *c, int lossless) {
    const uint64_t run = token_bytes(c) * KVC_PREFIX_TOKENS,
                   packed = lossless ? run / 3 * 2 : run / 8;
    uint64_t runs = 1;
    while (runs < MAX_RUNS && runs * packed < GOOD_OBJECT) runs++;
    return runs * KVC_PREFIX_TOKENS;
}

#define NO_STEP 1. /* stands for every step, where they are not compared */

int kvc_recipe_has_fidelity(const char *recipe, const char *fidelity) {
    struct kvc_recipe a, b;
    char x[KVC_MAX_RECIPE_TEXT], y[KVC_MAX_RECIPE_TEXT];
    double kld;
    if (kvc_recipe_parse(recipe, &a, NULL) || kvc_recipe_parse(fidelity, &b, NULL)) return 0;
    for (unsigned i = 0; i < a.n && i < b.n; i++) {
        const struct kvc_stage *stage = a.item[i].stage;
        if (stage != b.item[i].stage || !stage->step || stage->step(&a.item[i].args, &kld) > 0)
            continue;
        stage->set_step(&a.item[i].args, NO_STEP);
        stage->set_step(&b.item[i].args, NO_STEP);
    }
    return !kvc_recipe_print(&a, x, sizeof x) && !kvc_recipe_print(&b, y, sizeof y) &&
           strcmp(x, y) == 0;
}

/* Sets what decides about the fidelity: the recipe, with its step settled as packing settles it,
 * and the profile. */
static int take_recipe(struct kvc_namespace_facts *facts, const struct kvc_file *f,
                       const struct kvc_namespace_options *o, struct kvc_meta *meta,
                       struct kvc_error *e) {
    static const struct kvc_rate rate = {.kld = 0};
    const struct kvc_profile *p = o->shared_profile;
    struct kvc_recipe recipe, settled;
    struct kvc_rate_report report;
    facts->lossless = 1;
    facts->recipe[0] = '\0';
    if (!o->recipe) return 0;
    if (kvc_recipe_parse(o->recipe, &recipe, e)) return -1;
    const struct kvc_pack_options pack = {.recipe = &recipe, .profile = o->shared_profile};
    if (kvc_rate_settle(f->cache, &pack, &rate, &settled, &report, e)) return -1;
    if (kvc_recipe_print(&settled, facts->recipe, sizeof facts->recipe))
        return kvc_fail(e, KVC_ERR_USAGE, "the recipe is too long");
    facts->lossless = !kvc_recipe_is_lossy(&settled);
    if (facts->lossless) return 0;
    kvc_meta_remove(meta, KVC_KEY_PROFILE);
    if (kvc_meta_set_text(meta, KVC_KEY_RECIPE, facts->recipe, e)) return -1;
    if (!p || !(kvc_recipe_profile_need(&settled, kvc_profile_predicts(p)) & KVC_PROFILE_DECODES))
        return 0;
    return kvc_meta_set_bytes(meta, KVC_KEY_PROFILE, kvc_profile_sha256(p), KVC_SHA256_BYTES, e);
}

/* Gives a copy of the metadata what packing gives them, and writes their text. */
static char *describe(const struct kvc_file *f, const struct kvc_namespace_options *o,
                      struct kvc_meta *meta, struct kvc_namespace_facts *facts,
                      struct kvc_error *e) {
    if (kvc_meta_copy(meta, &f->cache->meta, e) || kvc_values_pass(meta, e)) return NULL;
    kvc_meta_remove(meta, KVC_KEY_PREFIX_IDENTITY);
    if (take_recipe(facts, f, o, meta, e)) return NULL;
    const struct kvc_space space = {.lossless = facts->lossless,
                                    .chunk = o->chunk ? o->chunk
                                                      : choose_chunk(f->cache, facts->lossless),
                                    .tenant = o->tenant};
    return write_text(f->cache, meta, &space, e);
}

char *kvc_namespace_of(const struct kvc_file *f, const struct kvc_namespace_options *options,
                       struct kvc_namespace_facts *facts, struct kvc_error *e) {
    if (KVC_NULL(e, f, facts)) return NULL;
    struct kvc_namespace_options o;
    struct kvc_namespace_facts settled = {0}, own = {0};
    struct kvc_meta meta = {0};
    if (kvc_sized_take(&o, sizeof o, options, "kvc_namespace_options", e)) return NULL;
    if (o.chunk % KVC_PREFIX_TOKENS || o.chunk > (UINT64_C(1) << 32)) {
        kvc_fail(e, KVC_ERR_USAGE, "a chunk has a multiple of %d tokens", KVC_PREFIX_TOKENS);
        return NULL;
    }
    /* without options nothing is to be kept under it: caches of one model are told from others */
    char *text = options && kvc_prefix_space_check_rope(&f->cache->meta, e)
                     ? NULL
                     : describe(f, &o, &meta, &settled, e);
    kvc_meta_free(&meta);
    int status = text ? read_text(text, strlen(text), &own, e) : -1;
    own.lossless = settled.lossless;
    memcpy(own.recipe, settled.recipe, sizeof own.recipe);
    if (!status) status = kvc_sized_give(facts, &own, sizeof own, "kvc_namespace_facts", e);
    if (!status) return text;
    free(text);
    return NULL;
}

int kvc_file_namespace(const struct kvc_file *f, uint64_t chunk, const uint8_t *tenant,
                       uint8_t ns[KVC_KEY_BYTES], struct kvc_error *e) {
    if (KVC_NULL(e, f, ns)) return -1;
    const struct kvc_space space = {.lossless = kvc_container_lossless(f->cache),
                                    .chunk = chunk,
                                    .tenant = tenant};
    if (kvc_cache_is_container(f->cache))
        return kvc_prefix_space(f->cache, &f->cache->meta, &space, ns, e);
    return kvc_fail(e, KVC_ERR_USAGE, "%s: the file is not packed", f->name);
}

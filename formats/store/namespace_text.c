/* namespace_text.c: writes and reads the facts of a namespace as lines "TAG WORD VALUE". Spec:
 * STORE.md, "Namespaces". */
#include "formats/store/namespace_text.h"

#include "formats/cache/facts.h"
#include "formats/cache/keys.h"
#include "formats/io/bytes.h"
#include "formats/io/sink.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

char *kvc_namespace_text_write(const struct kvc_cache *c, const struct kvc_meta *meta,
                               const struct kvc_space *more, uint8_t *ns, struct kvc_error *e) {
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

int kvc_namespace_text_read(const char *text, size_t size, struct kvc_namespace_facts *facts,
                            struct kvc_error *e) {
    const size_t first = sizeof FIRST_LINE - 1;
    uint8_t *bytes = size <= KVC_NAMESPACE_TEXT ? malloc(size + 1) : NULL;
    struct kvc_sha256 hash;
    int last = 0, bad = !bytes || size < first || memcmp(text, FIRST_LINE, first) != 0;
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
    return kvc_sha256_final(&hash, facts->ns, e);
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

int kvc_namespace_text_differ(const char *a, const char *b, size_t *at, char *text, size_t size) {
    for (const char *p = a + *at, *end; *p; p = end + 1) {
        const char *mine, *its;
        end = strchr(p, '\n');
        if (!end) return 0;
        *at = (size_t)(end + 1 - a);
        const int tag = split_line(p, end, &mine);
        const char *other = tag > 0 ? line_of(b, tag) : NULL;
        if (tag <= 0) continue;
        const char *other_end = other ? strchr(other, '\n') : NULL;
        if (other && split_line(other, other_end, &its) == tag && its &&
            other_end - its == end - mine && memcmp(its, mine, (size_t)(end - mine)) == 0)
            continue;
        const char *word = (const char *)memchr(p, ' ', (size_t)(end - p)) + 1;
        const int n_word = (int)(mine - 1 - word), n_mine = (int)(end - mine),
                  n_its = other ? (int)(other_end - its) : 0;
        uint8_t here[8], there[8];
        if (tag == 5) snprintf(text, size, "layers, heads, channels or dtypes");
        else if (tag == SCALES) snprintf(text, size, "the scales of values of 8 bits");
        else if (tag == CHUNK && n_mine == 16 && n_its == 16 &&
                 decode_value(mine, end, 0, here) == 8 &&
                 decode_value(its, other_end, 0, there) == 8)
            snprintf(text, size, "chunk (%" PRIu64 " tokens here, %" PRIu64 " there)",
                     get_u64(here), get_u64(there));
        else
            snprintf(text, size, "%.*s (%.*s here, %.*s there)", n_word, word, n_mine ? n_mine : 7,
                     n_mine ? mine : "unknown", n_its ? n_its : 7, n_its ? its : "unknown");
        return 1;
    }
    return 0;
}

/* kvc-diff.c: compares two cache files: what they hold, and their values per layer and head. Not for
 * measuring (formats/compare.c). */
#include "cli/cli.h"
#include "cli/text.h"
#include "formats/compare.h"
#include "formats/keys.h"
#include "formats/view.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "Usage: kvc-diff [OPTION]... A B\n"
    "Compare two cache files of any supported kinds; print what differs, nothing when they are the same.\n"
    "Values are compared bit by bit unless --abs or --rel is given. One of A and B may be \"-\".\n"
    "\n"
    "What counts:\n"
    "      --abs=X             values are equal when |a-b| <= X + R * |b|, for finite a and b;\n"
    "      --rel=R             either may be given (the other is then 0)\n"
    "      --tokens=A:B        only positions A to B - 1\n"
    "      --layers=LIST       only these layers, like 0-3,7\n"
    "      --all               provenance, other metadata and private bytes, too\n"
    "What is printed:\n"
    "      --report            each value that differs, with its position\n"
    "  -n, --count=COUNT       report at most COUNT values (implies --report)\n"
    "  -q, --quiet             nothing: the exit status tells\n"
    "  -v, --verbose           equal tensors and notes, too\n"
    "      --json              one JSON object\n"
    "      --tsv               tab-separated rows\n" CLI_INPUT_HELP
    "                          for kvc-diff, --pairing=P,Q gives that of A and that of B\n"
    "\n"
    "  -h, --help              this text\n"
    "  -V, --version           the version\n"
    "\n"
    "Exit status: 0 the same, 1 different, 2 trouble.\n";

enum { OPT_ABS = CLI_OPT_FREE, OPT_REL, OPT_TOKENS, OPT_LAYERS, OPT_ALL, OPT_REPORT, OPT_JSON, OPT_TSV };
enum output { TEXT, JSON, TSV };

#define FIT_ROWS 256 /* rows of one layer on which RoPE pairings are tried */

/* Parts of A and B that stand for the same cells; KVC_NONE where one has none. */
struct part_pair {
    uint32_t part[2];
    struct kvc_matching rows; /* empty when one is KVC_NONE */
};

struct tensor_pair {
    uint32_t pair;  /* which part_pair */
    uint32_t layer; /* model layer */
    enum kvc_role role;
    uint32_t tensor[2]; /* KVC_NONE where one cache has none */
    uint64_t heads;     /* 0: the shapes do not let values be compared */
};

struct diff {
    struct kvc_compare_options compare;
    enum output output;
    int quiet, verbose, all, report, has_tokens;
    uint64_t count; /* values to report at most */
    int64_t first, last;
    uint8_t *keep;
    uint32_t n_keep;
    struct cli_input input;
    enum kvc_pairing pairing[2];

    struct cli_file file[2];
    struct kvc_cache *cache[2];   /* compared: the file's, or the last view of it */
    struct kvc_cache *view[2][4]; /* each over the one before */
    unsigned n_views[2];
    struct part_pair *part;
    size_t n_parts;
    struct tensor_pair *tensor;
    size_t n_tensors;

    struct cli_json json;
    const struct tensor_pair *now; /* the tensors being compared */
    int opened, headed;            /* its JSON object is open; the table has its header */
    uint64_t facts, reported;
    uint64_t tensors, tensors_differ, values;
    struct kvc_difference total; /* over tensors that differ */
};

static const char *const side_name[] = {"A", "B"};

/* --- what is known of a pair of caches --- */

/* One difference that is not of values: WHAT of WHERE ("" when of the whole cache) is a in A and b in B; NULL
 * where it is absent. */
static void fact(struct diff *d, const char *where, const char *what, const char *a, const char *b,
                 const char *note) {
    d->facts++;
    if (d->quiet) return;
    if (d->output == JSON) {
        cli_json_open(&d->json, NULL, '{');
        cli_json_text(&d->json, "where", where);
        cli_json_text(&d->json, "what", what);
        cli_json_text(&d->json, "a", a);
        cli_json_text(&d->json, "b", b);
        cli_json_text(&d->json, "note", note);
        cli_json_close(&d->json);
        return;
    }
    if (d->output == TSV) {
        const char *const column[] = {where, what, a, b, note};
        printf("fact");
        for (size_t i = 0; i < sizeof column / sizeof column[0]; i++) {
            putchar('\t');
            cli_print_safe(stdout, column[i] ? column[i] : "");
        }
        putchar('\n');
        return;
    }
    printf("%s%s%s: ", where, *where ? " " : "", what);
    for (int s = 0; s < 2; s++) {
        const char *value = s ? b : a;
        if (!value) continue;
        cli_print_safe(stdout, value);
        printf("%s%sin %s%s", *value ? " " : "", a && b ? "" : "only ", side_name[s], !s && b ? ", " : "");
    }
    if (note) printf(" (%s)", note);
    putchar('\n');
}

static void fact_u64(struct diff *d, const char *where, const char *what, uint64_t a, uint64_t b) {
    char text[2][24];
    snprintf(text[0], sizeof text[0], "%" PRIu64, a);
    snprintf(text[1], sizeof text[1], "%" PRIu64, b);
    fact(d, where, what, text[0], text[1], NULL);
}

static int wants_layer(const struct diff *d, uint32_t layer) {
    return !d->keep || (layer < d->n_keep && d->keep[layer]);
}

/* The token ids a cache has for the selected positions: those of positions *first to *end - 1. */
static const int32_t *selected_tokens(const struct diff *d, int side, uint64_t *first, uint64_t *end) {
    const struct kvc_cache *c = d->cache[side];
    uint64_t base = kvc_meta_u64(&c->meta, KVC_KEY_TOKENS_FIRST, 0);
    uint64_t from = d->first < 0 ? 0 : (uint64_t)d->first, to = d->last < 0 ? 0 : (uint64_t)d->last + 1;
    if (base > INT64_MAX) base = INT64_MAX; /* no position is that high */
    *first = from > base ? from : base;
    *end = base + c->n_tokens < to ? base + c->n_tokens : to;
    if (*end < *first) *end = *first;
    return c->tokens ? c->tokens + (*first - base < c->n_tokens ? *first - base : c->n_tokens) : NULL;
}

static void compare_tokens(struct diff *d) {
    uint64_t first[2], end[2], differ = 0, at = 0;
    const int32_t *id[2];
    for (int s = 0; s < 2; s++) id[s] = selected_tokens(d, s, &first[s], &end[s]);
    if (!id[0] || !id[1]) {
        if (d->all && (id[0] || id[1])) fact(d, "", "tokens", id[0] ? "" : NULL, id[1] ? "" : NULL, NULL);
        return;
    }
    uint64_t from = first[0] > first[1] ? first[0] : first[1], to = end[0] < end[1] ? end[0] : end[1];
    for (uint64_t i = from; i < to; i++)
        if (id[0][i - first[0]] != id[1][i - first[1]] && !differ++) at = i;
    if (differ) {
        char where[40], note[64], text[2][16];
        snprintf(where, sizeof where, "token %" PRIu64, at);
        snprintf(note, sizeof note, "first of %" PRIu64 " that differ", differ);
        for (int s = 0; s < 2; s++) snprintf(text[s], sizeof text[s], "%" PRId32, id[s][at - first[s]]);
        fact(d, where, "id", text[0], text[1], note);
    }
    if (first[0] != first[1]) fact_u64(d, "", "first token", first[0], first[1]);
    if (end[0] - first[0] != end[1] - first[1])
        fact_u64(d, "", "number of tokens", end[0] - first[0], end[1] - first[1]);
}

/* Facts that change what values mean; a difference when both sides know them. */
static int counts_always(const struct diff *d, const char *key) {
    static const char *const keys[] = {KVC_KEY_ROPE_K,   KVC_KEY_ROPE_TYPE,   KVC_KEY_ROPE_THETA,
                                       KVC_KEY_ROPE_DIM, KVC_KEY_ROPE_FACTOR, KVC_KEY_WINDOW};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (!strcmp(keys[i], key)) return 1;
    /* How values are stored, as the dtype: no difference within a tolerance. */
    return d->compare.exact && (!strcmp(key, KVC_KEY_HADAMARD_K) || !strcmp(key, KVC_KEY_HADAMARD_V));
}

/* Pairings that differ are aligned before values are compared, unless one side's K has no RoPE at all. */
static int pairing_counts(const struct diff *d) {
    return kvc_cache_pairing(d->cache[0]) == KVC_PAIRING_NONE ||
           kvc_cache_pairing(d->cache[1]) == KVC_PAIRING_NONE;
}

static void compare_entry(struct diff *d, const struct kvc_meta_entry *a, const struct kvc_meta_entry *b) {
    const char *key = a ? a->key : b->key;
    char text[2][600] = {"", ""};
    if (a) kvc_meta_print(a, text[0], sizeof text[0]);
    if (b) kvc_meta_print(b, text[1], sizeof text[1]);
    if (a && b) {
        int same = a->type == b->type
                       ? a->size == b->size && (!a->size || !memcmp(a->value, b->value, a->size))
                       : !strcmp(text[0], text[1]);
        int counts = strcmp(key, KVC_KEY_ROPE_PAIRING) ? d->all || counts_always(d, key) : pairing_counts(d);
        if (same || !counts) return;
    } else if (!d->all) {
        return;
    }
    fact(d, "", key, a ? text[0] : NULL, b ? text[1] : NULL, NULL);
}

static void compare_metadata(struct diff *d) {
    const struct kvc_meta *a = &d->cache[0]->meta, *b = &d->cache[1]->meta;
    for (size_t i = 0, j = 0; i < a->n || j < b->n;) {
        int order = i == a->n ? 1 : j == b->n ? -1 : strcmp(a->entry[i].key, b->entry[j].key);
        compare_entry(d, order <= 0 ? &a->entry[i] : NULL, order >= 0 ? &b->entry[j] : NULL);
        i += order <= 0;
        j += order >= 0;
    }
}

/* The engine's private bytes, for --all. */
static int compare_private(struct diff *d, struct kvc_error *e) {
    const struct kvc_cache *a = d->cache[0], *b = d->cache[1];
    if (!a->n_extents || !b->n_extents) {
        if (a->n_extents) fact(d, "", "private bytes", "", NULL, NULL);
        if (b->n_extents) fact(d, "", "private bytes", NULL, "", NULL);
        return 0;
    }
    if (a->literal_size != b->literal_size) {
        fact_u64(d, "", "private bytes", a->literal_size, b->literal_size);
        return 0;
    }
    uint64_t differ = 0, at = 0;
    uint8_t x[4096], y[4096];
    for (uint64_t done = 0, n; done < a->literal_size; done += n) {
        n = a->literal_size - done < sizeof x ? a->literal_size - done : sizeof x;
        if (a->read_literal(a, done, n, x, e)) return kvc_error_prefix(e, d->file[0].input.name);
        if (b->read_literal(b, done, n, y, e)) return kvc_error_prefix(e, d->file[1].input.name);
        for (uint64_t i = 0; i < n; i++)
            if (x[i] != y[i] && !differ++) at = done + i;
    }
    if (differ) {
        char where[48], note[64], byte[2][8];
        snprintf(where, sizeof where, "private byte %" PRIu64, at);
        snprintf(note, sizeof note, "first of %" PRIu64 " that differ", differ);
        for (int s = 0; s < 2; s++) {
            uint8_t v = 0;
            if (d->cache[s]->read_literal(d->cache[s], at, 1, &v, e))
                return kvc_error_prefix(e, d->file[s].input.name);
            snprintf(byte[s], sizeof byte[s], "0x%02x", v);
        }
        fact(d, where, "value", byte[0], byte[1], note);
    }
    return 0;
}

/* --- pairing parts and tensors --- */

struct item {
    const struct kvc_part *part;
    uint32_t number;    /* of the part or tensor */
    uint32_t pair;      /* tensors: the part's pair */
    uint32_t layer;     /* tensors: model layer */
    enum kvc_role role; /* tensors; companion parts: what they hold */
};

#define ORDER(x, y)                                                                                          \
    do {                                                                                                     \
        if ((x) != (y)) return (x) < (y) ? -1 : 1;                                                           \
    } while (0)

/* Equal for parts of two caches that stand for the same cells. */
static int part_order(const void *x, const void *y) {
    const struct item *a = x, *b = y;
    ORDER(a->part->kind, b->part->kind);
    ORDER(a->part->stream, b->part->stream);
    ORDER(a->part->checkpoint, b->part->checkpoint);
    ORDER(a->role, b->role);
    return 0;
}

static int tensor_order(const void *x, const void *y) {
    const struct item *a = x, *b = y;
    ORDER(a->pair, b->pair);
    ORDER(a->layer, b->layer);
    ORDER(a->role, b->role);
    return 0;
}

/* For sorting: what is equal otherwise keeps its order. */
static int by_part(const void *x, const void *y) {
    int order = part_order(x, y);
    if (!order) ORDER(((const struct item *)x)->number, ((const struct item *)y)->number);
    return order;
}

static int by_tensor(const void *x, const void *y) {
    int order = tensor_order(x, y);
    if (!order) ORDER(((const struct item *)x)->number, ((const struct item *)y)->number);
    return order;
}

static int is_companion(enum kvc_role role) {
    return role == KVC_ROLE_QUERIES || role == KVC_ROLE_HIDDEN;
}

static void *array_of(size_t n, size_t size, struct kvc_error *e) {
    void *p = calloc(n ? n : 1, size);
    if (!p) kvc_fail_memory(e, "the list of tensors");
    return p;
}

/* The parts of a cache that the selection reaches, sorted. */
static struct item *part_items(const struct diff *d, const struct kvc_cache *c, size_t *n,
                               struct kvc_error *e) {
    struct item *item = array_of(c->n_parts, sizeof *item, e);
    uint8_t *wanted = array_of(c->n_parts, 1, e);
    *n = 0;
    if (!item || !wanted) {
        free(item);
        free(wanted);
        return NULL;
    }
    for (uint32_t i = 0; i < c->n_parts; i++) item[i] = (struct item){.part = &c->part[i], .number = i};
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const struct kvc_layer *layer = &c->layer[c->tensor[t].layer];
        if (c->part[layer->part].kind == KVC_PART_COMPANION) item[layer->part].role = c->tensor[t].role;
        if (wants_layer(d, layer->index)) wanted[layer->part] = 1;
    }
    for (uint32_t i = 0; i < c->n_parts; i++)
        if (wanted[i] || !d->keep) item[(*n)++] = item[i];
    free(wanted);
    qsort(item, *n, sizeof *item, by_part);
    return item;
}

/* The tensors of a cache that the selection reaches, sorted; pair_of maps part numbers. */
static struct item *tensor_items(const struct diff *d, const struct kvc_cache *c, const uint32_t *pair_of,
                                 size_t *n, struct kvc_error *e) {
    struct item *item = array_of(c->n_tensors, sizeof *item, e);
    *n = 0;
    for (uint32_t t = 0; item && t < c->n_tensors; t++) {
        const struct kvc_layer *layer = &c->layer[c->tensor[t].layer];
        if (wants_layer(d, layer->index))
            item[(*n)++] = (struct item){
                .number = t, .pair = pair_of[layer->part], .layer = layer->index, .role = c->tensor[t].role};
    }
    if (item) qsort(item, *n, sizeof *item, by_tensor);
    return item;
}

static int pair_parts(struct diff *d, uint32_t *pair_of[2], struct kvc_error *e) {
    size_t n[2] = {0, 0};
    struct item *item[2] = {part_items(d, d->cache[0], &n[0], e), part_items(d, d->cache[1], &n[1], e)};
    d->part = array_of(n[0] + n[1], sizeof *d->part, e);
    int rc = item[0] && item[1] && d->part ? 0 : -1;
    for (size_t i = 0, j = 0; !rc && (i < n[0] || j < n[1]);) {
        int order = i == n[0] ? 1 : j == n[1] ? -1 : part_order(&item[0][i], &item[1][j]);
        struct part_pair *pair = &d->part[d->n_parts];
        pair->part[0] = order <= 0 ? item[0][i++].number : KVC_NONE;
        pair->part[1] = order >= 0 ? item[1][j++].number : KVC_NONE;
        for (int s = 0; s < 2; s++)
            if (pair->part[s] != KVC_NONE) pair_of[s][pair->part[s]] = (uint32_t)d->n_parts;
        d->n_parts++;
        if (!order)
            rc = kvc_match_rows(&d->cache[0]->part[pair->part[0]].cells,
                                &d->cache[1]->part[pair->part[1]].cells, d->first, d->last, &pair->rows, e);
    }
    free(item[0]);
    free(item[1]);
    return rc;
}

static int pair_tensors(struct diff *d, uint32_t *pair_of[2], struct kvc_error *e) {
    size_t n[2] = {0, 0};
    struct item *item[2] = {tensor_items(d, d->cache[0], pair_of[0], &n[0], e),
                            tensor_items(d, d->cache[1], pair_of[1], &n[1], e)};
    d->tensor = array_of(n[0] + n[1], sizeof *d->tensor, e);
    int rc = item[0] && item[1] && d->tensor ? 0 : -1;
    for (size_t i = 0, j = 0; !rc && (i < n[0] || j < n[1]);) {
        int order = i == n[0] ? 1 : j == n[1] ? -1 : tensor_order(&item[0][i], &item[1][j]);
        const struct item *any = order <= 0 ? &item[0][i] : &item[1][j];
        struct tensor_pair *pair = &d->tensor[d->n_tensors++];
        *pair = (struct tensor_pair){.pair = any->pair, .layer = any->layer, .role = any->role};
        pair->tensor[0] = order <= 0 ? item[0][i++].number : KVC_NONE;
        pair->tensor[1] = order >= 0 ? item[1][j++].number : KVC_NONE;
    }
    free(item[0]);
    free(item[1]);
    return rc;
}

static int pair_all(struct diff *d, struct kvc_error *e) {
    uint32_t *pair_of[2] = {array_of(d->cache[0]->n_parts, sizeof(uint32_t), e),
                            array_of(d->cache[1]->n_parts, sizeof(uint32_t), e)};
    int rc = pair_of[0] && pair_of[1] && !pair_parts(d, pair_of, e) && !pair_tensors(d, pair_of, e) ? 0 : -1;
    free(pair_of[0]);
    free(pair_of[1]);
    return rc;
}

/* A selection that reaches nothing would make any two files the same. */
static int check_selection(const struct diff *d, struct kvc_error *e) {
    if (d->keep && !d->n_tensors)
        return kvc_fail(e, KVC_ERR_USAGE, "--layers: neither file has any of these layers");
    uint64_t reached = 0;
    for (size_t i = 0; i < d->n_parts; i++)
        for (int s = 0; s < 2; s++) {
            const struct part_pair *pair = &d->part[i];
            const struct kvc_cells *cells = pair->part[s] == KVC_NONE
                                                ? NULL
                                                : &d->cache[s]->part[pair->part[s]].cells;
            for (uint64_t k = 0; d->has_tokens && cells && k < cells->n && !reached; k++)
                reached = cells->pos[k] >= d->first && cells->pos[k] <= d->last;
        }
    if (d->has_tokens && !reached)
        return kvc_fail(e, KVC_ERR_USAGE, "--tokens: neither file has any of these positions");
    return 0;
}

/* --- what parts and tensors differ in, values apart --- */

static void part_label(const struct kvc_part *part, char *text, size_t size) {
    size_t n = (size_t)snprintf(text, size, "%s", kvc_part_kind_name(part->kind));
    if (part->kind == KVC_PART_CHECKPOINT) n += (size_t)snprintf(text + n, size - n, " %u", part->checkpoint);
    if (part->stream) snprintf(text + n, size - n, " stream %u", part->stream);
}

static const struct kvc_part *part_of(const struct diff *d, const struct part_pair *pair) {
    int s = pair->part[0] == KVC_NONE;
    return &d->cache[s]->part[pair->part[s]];
}

/* Positions that only one side has, as "0-3,7,...". */
static void positions_fact(struct diff *d, const char *where, const struct kvc_matching *rows, int side) {
    enum { MOST = 8 };
    char text[MOST * 48 + 8] = "", note[48];
    size_t used = 0;
    uint64_t n = 0;
    for (uint64_t i = 0; i < rows->n_only[side]; i++) {
        const struct kvc_span *s = &rows->only[side][i];
        n += (uint64_t)s->last - (uint64_t)s->first + 1;
        if (i < MOST) {
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%" PRId64, i ? "," : "", s->first);
            if (s->first != s->last)
                used += (size_t)snprintf(text + used, sizeof text - used, "-%" PRId64, s->last);
        } else if (i == MOST) {
            snprintf(text + used, sizeof text - used, ",...");
        }
    }
    if (!n) return;
    snprintf(note, sizeof note, "%" PRIu64 " position%s", n, n == 1 ? "" : "s");
    fact(d, where, "positions", side ? NULL : text, side ? text : NULL, note);
}

/* The engine's words of matched cells (sequence ids and the like), for --all. */
static void compare_words(struct diff *d, const char *where, const struct part_pair *pair) {
    const struct kvc_cells *a = &d->cache[0]->part[pair->part[0]].cells,
                           *b = &d->cache[1]->part[pair->part[1]].cells;
    uint64_t differ = 0;
    for (uint64_t r = 0; r < pair->rows.n_runs; r++)
        for (uint64_t i = 0; i < pair->rows.run[r].n; i++) {
            uint32_t x = kvc_cell_at(a, pair->rows.run[r].a + i), y = kvc_cell_at(b, pair->rows.run[r].b + i);
            uint64_t nx = a->words ? a->word_at[x + 1] - a->word_at[x] : 0;
            uint64_t ny = b->words ? b->word_at[y + 1] - b->word_at[y] : 0;
            differ += nx != ny || (nx && memcmp(a->words + a->word_at[x], b->words + b->word_at[y],
                                                (size_t)nx * sizeof *a->words));
        }
    char note[48];
    snprintf(note, sizeof note, "%" PRIu64 " cell%s", differ, differ == 1 ? "" : "s");
    if (differ) fact(d, where, "private words", "some", "others", note);
}

enum tensor_fact { PRESENCE, SHAPE, DTYPE, WINDOW, TENSOR_FACTS };

struct fact_text {
    const char *what;
    char side[2][48];
    int has[2];
};

static int heads_known(const struct kvc_cache *c) {
    return kvc_meta_bool(&c->meta, KVC_KEY_HEADS_KNOWN, 1);
}

/* Whether a pair of tensors differs in one fact, and how. */
static int tensor_differs(const struct diff *d, const struct tensor_pair *pair, enum tensor_fact which,
                          struct fact_text *text) {
    memset(text, 0, sizeof *text);
    for (int s = 0; s < 2; s++) text->has[s] = pair->tensor[s] != KVC_NONE;
    if (which == PRESENCE) {
        text->what = "tensor";
        return text->has[0] != text->has[1] && (d->all || !is_companion(pair->role));
    }
    if (!text->has[0] || !text->has[1]) return 0;
    uint32_t window[2];
    const struct kvc_shape *shape[2];
    for (int s = 0; s < 2; s++) {
        const struct kvc_tensor *t = &d->cache[s]->tensor[pair->tensor[s]];
        shape[s] = &t->shape;
        window[s] = d->cache[s]->layer[t->layer].window;
        char *side = text->side[s];
        if (which == SHAPE && !heads_known(d->cache[s]))
            snprintf(side, sizeof text->side[s], "%" PRIu64, shape[s]->heads * shape[s]->dim);
        else if (which == SHAPE)
            snprintf(side, sizeof text->side[s], "%" PRIu64 " x %" PRIu64, shape[s]->heads, shape[s]->dim);
        else if (which == DTYPE)
            snprintf(side, sizeof text->side[s], "%s", kvc_dtype_info(shape[s]->dtype)->name);
        else snprintf(side, sizeof text->side[s], "%" PRIu32, window[s]);
    }
    text->what = which == SHAPE ? "heads x channels" : which == DTYPE ? "dtype" : "window";
    if (which == SHAPE) return !pair->heads;
    if (which == DTYPE) return d->compare.exact && shape[0]->dtype != shape[1]->dtype;
    return window[0] && window[1] && window[0] != window[1];
}

/* The number of heads to report a pair by: an engine that does not record it gives one head of all channels,
 * and then the other side's number serves. 0 when rows are not comparable. */
static uint64_t heads_of(const struct diff *d, const struct tensor_pair *pair) {
    if (pair->tensor[0] == KVC_NONE || pair->tensor[1] == KVC_NONE) return 0;
    const struct kvc_shape *a = &d->cache[0]->tensor[pair->tensor[0]].shape,
                           *b = &d->cache[1]->tensor[pair->tensor[1]].shape;
    if (a->heads * a->dim != b->heads * b->dim) return 0;
    if (a->heads == b->heads) return a->heads;
    if (!heads_known(d->cache[0]) && a->heads == 1) return b->heads;
    if (!heads_known(d->cache[1]) && b->heads == 1) return a->heads;
    return 0;
}

/* "checkpoint 1 layers 0-29 K" */
static void layers_label(const struct diff *d, const struct tensor_pair *first,
                         const struct tensor_pair *last, char *text, size_t size) {
    const struct kvc_part *part = part_of(d, &d->part[first->pair]);
    char where[64] = "", layers[32];
    if (part->kind != KVC_PART_LIVE || part->stream) part_label(part, where, sizeof where);
    snprintf(layers, sizeof layers, last->layer == first->layer ? "%" PRIu32 : "%" PRIu32 "-%" PRIu32,
             first->layer, last->layer);
    snprintf(text, size, "%s%slayer%s %s %s", where, *where ? " " : "",
             last->layer == first->layer ? "" : "s", layers, kvc_role_name(first->role));
}

/* One fact of one role in the tensor pairs [begin, end) of a part; consecutive layers make one line. */
static void tensor_facts(struct diff *d, size_t begin, size_t end, enum kvc_role role,
                         enum tensor_fact which) {
    const struct tensor_pair *first = NULL, *last = NULL;
    struct fact_text open = {0}, text;
    for (size_t i = begin; i <= end; i++) {
        const struct tensor_pair *pair = i < end ? &d->tensor[i] : NULL;
        if (pair && pair->role != role) continue;
        int differs = pair && tensor_differs(d, pair, which, &text);
        if (differs && first && pair->layer == last->layer + 1 && !memcmp(&open, &text, sizeof text)) {
            last = pair;
            continue;
        }
        if (first) {
            char where[128];
            layers_label(d, first, last, where, sizeof where);
            fact(d, where, open.what, open.has[0] ? open.side[0] : NULL, open.has[1] ? open.side[1] : NULL,
                 NULL);
        }
        first = last = differs ? pair : NULL;
        if (differs) open = text;
    }
}

static void compare_geometry(struct diff *d) {
    for (size_t i = 0; i < d->n_tensors; i++) d->tensor[i].heads = heads_of(d, &d->tensor[i]);
    for (size_t p = 0, begin = 0, end; p < d->n_parts; p++, begin = end) {
        const struct part_pair *pair = &d->part[p];
        char where[64];
        for (end = begin; end < d->n_tensors && d->tensor[end].pair == p;) end++;
        part_label(part_of(d, pair), where, sizeof where);
        if (pair->part[0] == KVC_NONE || pair->part[1] == KVC_NONE) {
            if (d->all || part_of(d, pair)->kind != KVC_PART_COMPANION)
                fact(d, where, "part", pair->part[0] == KVC_NONE ? NULL : "",
                     pair->part[1] == KVC_NONE ? NULL : "", NULL);
            continue;
        }
        for (int s = 0; s < 2; s++) positions_fact(d, where, &pair->rows, s);
        if (d->all) compare_words(d, where, pair);
        for (unsigned role = 0; kvc_role_name(role); role++)
            for (unsigned which = 0; which < TENSOR_FACTS; which++)
                tensor_facts(d, begin, end, (enum kvc_role)role, (enum tensor_fact)which);
    }
}

/* --- bringing both caches to the same meaning of channels --- */

__attribute__((format(printf, 2, 3))) static void note(const struct diff *d, const char *format, ...) {
    char text[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    if (!d->quiet) cli_warn("%s", text);
}

/* Takes a new view of one side into use; NULL: making it failed. Views keep the numbers of tensors. */
static int use_view(struct diff *d, int side, struct kvc_cache *view, struct kvc_error *e) {
    if (!view) return kvc_error_prefix(e, d->file[side].input.name);
    d->view[side][d->n_views[side]++] = view;
    d->cache[side] = view;
    return 0;
}

/* Goes back to the first n views of a side. */
static void drop_views(struct diff *d, int side, unsigned n) {
    while (d->n_views[side] > n) kvc_cache_free(d->view[side][--d->n_views[side]]);
    d->cache[side] = n ? d->view[side][n - 1] : d->file[side].cache;
}

static int use_floats(struct diff *d, struct kvc_error *e) {
    for (int s = 0; s < 2; s++)
        if (use_view(d, s, kvc_view_float(d->cache[s], e), e)) return -1;
    return 0;
}

/* Permuting channels takes K whose channels stand for themselves: no blocks that share a scale, no rotation.
 */
static int can_permute(const struct kvc_cache *c) {
    if (kvc_meta_u64(&c->meta, KVC_KEY_HADAMARD_K, 0)) return 0;
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (c->tensor[t].role == KVC_ROLE_K && kvc_dtype_info(c->tensor[t].shape.dtype)->block > 1) return 0;
    return 1;
}

/* The side to permute: A, unless its heads are not known. -1 when neither side's are. */
static int side_to_permute(const struct diff *d) {
    return heads_known(d->cache[0]) ? 0 : heads_known(d->cache[1]) ? 1 : -1;
}

/* The relative error of a pair of tensors on its first rows. */
static int fit(struct diff *d, const struct kvc_cache *a, const struct kvc_cache *b,
               const struct tensor_pair *pair, double *error, struct kvc_error *e) {
    const struct kvc_compare_options loose = {.name = {d->file[0].input.name, d->file[1].input.name}};
    struct kvc_run run = d->part[pair->pair].rows.run[0];
    if (run.n > FIT_ROWS) run.n = FIT_ROWS;
    struct kvc_matching rows = {.run = &run, .n_runs = 1, .rows = run.n};
    struct kvc_difference all = {0}, *head = array_of(pair->heads, sizeof *head, e);
    if (!head) return -1;
    int rc = kvc_compare_tensor(a, pair->tensor[0], b, pair->tensor[1], &rows, pair->heads, &loose, head, e);
    for (uint64_t h = 0; h < pair->heads; h++) kvc_difference_add(&all, &head[h]);
    free(head);
    *error = all.frobenius;
    return rc;
}

/* K of `side` as it is in the pairing of the other side, supposing the pairings given; NULL with *e filled.
 */
static struct kvc_cache *permuted(struct diff *d, int side, const enum kvc_pairing supposed[2],
                                  struct kvc_error *e) {
    struct kvc_cache *c = d->cache[side];
    if (kvc_cache_pairing(c) == supposed[side]) return kvc_view_pairing(c, supposed[!side], e);
    if (kvc_meta_set_text(&c->meta, KVC_KEY_ROPE_PAIRING, kvc_pairing_name(supposed[side]), e)) return NULL;
    struct kvc_cache *view = kvc_view_pairing(c, supposed[!side], e);
    kvc_meta_remove(&c->meta, KVC_KEY_ROPE_PAIRING);
    return view;
}

/* The first tensors of a role whose values both sides have: what guesses are measured on. */
static const struct tensor_pair *first_common(const struct diff *d, enum kvc_role role) {
    for (size_t i = 0; i < d->n_tensors; i++)
        if (d->tensor[i].role == role && d->tensor[i].heads && d->part[d->tensor[i].pair].rows.rows)
            return &d->tensor[i];
    return NULL;
}

static const enum kvc_pairing pairing_guesses[2][2] = {{KVC_PAIRING_HALVES, KVC_PAIRING_INTERLEAVED},
                                                       {KVC_PAIRING_INTERLEAVED, KVC_PAIRING_HALVES}};

/* Tries the pairings that `known` leaves open and by which the two sides differ. Where one has an error on
 * tensors k below *best, sets *best and *found. Leaves the views as they were. */
static int try_pairings(struct diff *d, const struct tensor_pair *k, const enum kvc_pairing known[2],
                        double *best, const enum kvc_pairing **found, struct kvc_error *e) {
    int side = side_to_permute(d), rc = 0;
    if (side < 0) return 0;
    unsigned views[2] = {d->n_views[0], d->n_views[1]};
    if (!can_permute(d->cache[side])) rc = use_floats(d, e);
    for (int i = 0; !rc && i < 2; i++) {
        const enum kvc_pairing *guess = pairing_guesses[i];
        if ((known[0] && known[0] != guess[0]) || (known[1] && known[1] != guess[1])) continue;
        struct kvc_cache *view = permuted(d, side, guess, e);
        double error;
        if (!view) continue; /* these caches have no pairs to permute */
        rc = fit(d, side ? d->cache[0] : view, side ? view : d->cache[1], k, &error, e);
        kvc_cache_free(view);
        if (rc || !(error < *best)) continue;
        *best = error;
        *found = guess;
    }
    for (int s = 0; s < 2; s++) drop_views(d, s, views[s]);
    return rc;
}

/* Where only the other side says by which Hadamard tile K or V is rotated, and `side` holds it in a block
 * type, which llama.cpp rotates without always recording it: tries what llama.cpp does (a power of two from
 * 64 on), or no rotation, on the first tensors in common. Takes it into the metadata when the error falls
 * below a tenth. */
static int guess_tile(struct diff *d, int side, enum kvc_role role, const char *key, struct kvc_error *e) {
    const struct tensor_pair *pair = first_common(d, role);
    struct kvc_meta *meta = &d->cache[side]->meta;
    const enum kvc_pairing known[2] = {kvc_cache_pairing(d->cache[0]), kvc_cache_pairing(d->cache[1])};
    const enum kvc_pairing *any;
    uint64_t other = kvc_meta_u64(&d->cache[!side]->meta, key, 0), found = other;
    double same, best;
    if (!pair) return 0;
    const struct kvc_shape *shape = &d->cache[side]->tensor[pair->tensor[side]].shape;
    if (kvc_dtype_info(shape->dtype)->block == 1) return 0;
    if (fit(d, d->cache[0], d->cache[1], pair, &same, e)) return -1;
    best = same / 10;
    for (uint64_t tile = other ? 0 : 64; same > 0 && tile <= 512; tile = tile ? 2 * tile : 1024) {
        if (tile && shape->heads * shape->dim % tile) break;
        double before = best;
        int rc = kvc_meta_set_u64(meta, key, tile, e) || use_floats(d, e);
        double error = 0;
        if (!rc) rc = fit(d, d->cache[0], d->cache[1], pair, &error, e);
        if (!rc && error < best) best = error;
        if (!rc && role == KVC_ROLE_K) rc = try_pairings(d, pair, known, &best, &any, e);
        for (int s = 0; s < 2; s++) drop_views(d, s, 0);
        kvc_meta_remove(meta, key);
        if (rc) return -1;
        if (best < before) found = tile;
    }
    if (found == other) return 0;
    const char *name = kvc_role_name(role);
    note(d,
         "%s does not say whether its %s is Hadamard-rotated: by tiles of %" PRIu64 " (0: not) the relative "
         "error of the first %s is %.3g, else %.3g: compared rotated back",
         side_name[side], name, found, name, best, same);
    return kvc_meta_set_u64(meta, key, found, e);
}

/* Where K or V is rotated by different Hadamard tiles on the two sides: values as float32, rotated back. */
static int align_rotation(struct diff *d, struct kvc_error *e) {
    static const struct {
        const char *key;
        enum kvc_role role;
    } rotated[] = {{KVC_KEY_HADAMARD_K, KVC_ROLE_K}, {KVC_KEY_HADAMARD_V, KVC_ROLE_V}};
    int differ = 0;
    for (int i = 0; i < 2; i++) {
        const char *key = rotated[i].key, *name = kvc_role_name(rotated[i].role);
        int known[2];
        uint64_t tile[2];
        for (int s = 0; s < 2; s++) known[s] = kvc_meta_find(&d->cache[s]->meta, key) != NULL;
        if (!known[0] && !known[1]) continue;
        if (!(known[0] && known[1]) && guess_tile(d, known[0], rotated[i].role, key, e)) return -1;
        for (int s = 0; s < 2; s++) tile[s] = kvc_meta_u64(&d->cache[s]->meta, key, UINT64_MAX);
        if (tile[0] == tile[1] || tile[0] == UINT64_MAX || tile[1] == UINT64_MAX) continue;
        if (known[0] && known[1])
            note(d, "Hadamard tiles of %s: %" PRIu64 " in A, %" PRIu64 " in B (0: none): rotated back", name,
                 tile[0], tile[1]);
        differ = 1;
    }
    return differ ? use_floats(d, e) : 0;
}

/* Where a side does not say how its K is paired, the other pairing is taken when the error falls below a
 * tenth. */
static int guess_pairing(struct diff *d, const enum kvc_pairing known[2], struct kvc_error *e) {
    const struct tensor_pair *k = first_common(d, KVC_ROLE_K);
    const enum kvc_pairing *found = NULL;
    double same, best;
    if (fit(d, d->cache[0], d->cache[1], k, &same, e)) return -1;
    best = same / 10;
    if (same > 0 && try_pairings(d, k, known, &best, &found, e)) return -1;
    if (!found) return 0;
    int side = side_to_permute(d);
    const char *who = known[0] ? "B does not say" : known[1] ? "A does not say" : "A and B do not say";
    note(d,
         "%s how RoPE pairs the channels of K: as %s in A and %s in B the relative error of the first K is "
         "%.3g, alike %.3g: aligned %s to %s (--pairing=P,Q settles it)",
         who, kvc_pairing_name(found[0]), kvc_pairing_name(found[1]), best, same, side_name[side],
         side_name[!side]);
    if (!can_permute(d->cache[side]) && use_floats(d, e)) return -1;
    return use_view(d, side, permuted(d, side, found, e), e);
}

static int align_pairing(struct diff *d, struct kvc_error *e) {
    const enum kvc_pairing pairing[2] = {kvc_cache_pairing(d->cache[0]), kvc_cache_pairing(d->cache[1])};
    if (pairing_counts(d) || !first_common(d, KVC_ROLE_K)) return 0;
    if (!pairing[0] || !pairing[1]) return guess_pairing(d, pairing, e);
    if (pairing[0] == pairing[1]) return 0;
    int side = side_to_permute(d);
    if (side < 0)
        return kvc_fail(
            e, KVC_ERR_USAGE,
            "RoPE pairs of K are %s in A, %s in B, and neither file says how many KV heads it has: "
            "give --kv-heads or --model",
            kvc_pairing_name(pairing[0]), kvc_pairing_name(pairing[1]));
    if (!can_permute(d->cache[side]) && use_floats(d, e)) return -1;
    note(d, "RoPE pairs of K: %s in A, %s in B: aligned %s to %s", kvc_pairing_name(pairing[0]),
         kvc_pairing_name(pairing[1]), side_name[side], side_name[!side]);
    return use_view(d, side, permuted(d, side, pairing, e), e);
}

/* --- values --- */

/* What says which tensor a row of --tsv is about. */
static void tsv_tensor(const struct diff *d, const char *type) {
    const struct kvc_part *part = part_of(d, &d->part[d->now->pair]);
    printf("%s\t%s\t%" PRIu32 "\t%" PRIu32 "\t%" PRIu32 "\t%s\t", type, kvc_part_kind_name(part->kind),
           part->stream, part->checkpoint, d->now->layer, kvc_role_name(d->now->role));
}

static void json_tensor(struct diff *d) {
    const struct kvc_part *part = part_of(d, &d->part[d->now->pair]);
    cli_json_open(&d->json, NULL, '{');
    cli_json_text(&d->json, "part", kvc_part_kind_name(part->kind));
    cli_json_u64(&d->json, "stream", part->stream);
    cli_json_u64(&d->json, "checkpoint", part->checkpoint);
    cli_json_u64(&d->json, "layer", d->now->layer);
    cli_json_text(&d->json, "role", kvc_role_name(d->now->role));
    if (d->report) cli_json_open(&d->json, "values", '[');
    d->opened = 1;
}

static int report_value(void *state, int64_t position, uint64_t head, uint64_t channel, double a, double b) {
    struct diff *d = state;
    char text[2][32], label[128];
    if (d->reported == d->count) return 1;
    d->reported++;
    if (d->output == JSON) {
        if (!d->opened) json_tensor(d);
        cli_json_open(&d->json, NULL, '{');
        cli_json_i64(&d->json, "position", position);
        cli_json_u64(&d->json, "head", head);
        cli_json_u64(&d->json, "channel", channel);
        cli_json_f64(&d->json, "a", a);
        cli_json_f64(&d->json, "b", b);
        cli_json_close(&d->json);
        return 0;
    }
    cli_float_text((float)a, text[0]);
    cli_float_text((float)b, text[1]);
    if (d->output == TSV) {
        tsv_tensor(d, "value");
        printf("%" PRId64 "\t%" PRIu64 "\t%" PRIu64 "\t%s\t%s\n", position, head, channel, text[0], text[1]);
    } else {
        layers_label(d, d->now, d->now, label, sizeof label);
        printf("%s position %" PRId64 " head %" PRIu64 " channel %" PRIu64 ": %s in A, %s in B\n", label,
               position, head, channel, text[0], text[1]);
    }
    return 0;
}

static void json_measures(struct diff *d, const struct kvc_difference *x) {
    cli_json_f64(&d->json, "max_abs", x->max_abs);
    cli_json_f64(&d->json, "rms", x->rms);
    cli_json_f64(&d->json, "frobenius", x->frobenius);
    cli_json_f64(&d->json, "cosine", x->cosine);
}

static void tsv_measures(const struct kvc_difference *x) {
    const double v[] = {x->max_abs, x->rms, x->frobenius, x->cosine};
    char text[32];
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        cli_double_text(v[i], text);
        printf("\t%s", text);
    }
}

static void print_head(struct diff *d, uint64_t head, const struct kvc_difference *x) {
    char text[2][32], label[128];
    if (d->output == JSON) {
        cli_json_open(&d->json, NULL, '{');
        cli_json_u64(&d->json, "head", head);
        cli_json_u64(&d->json, "differ", x->differ);
        cli_json_u64(&d->json, "values", x->values);
        cli_json_u64(&d->json, "nonfinite", x->nonfinite);
        json_measures(d, x);
        cli_json_close(&d->json);
        return;
    }
    if (d->output == TSV) {
        tsv_tensor(d, "head");
        printf("%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64, head, x->differ, x->values, x->nonfinite);
        tsv_measures(x);
        cli_float_text((float)x->at_a, text[0]);
        cli_float_text((float)x->at_b, text[1]);
        if (x->differ)
            printf("\t%" PRId64 "\t%" PRIu64 "\t%s\t%s\n", x->at_position, x->at_channel, text[0], text[1]);
        else printf("\t\t\t\t\n");
        return;
    }
    if (!d->headed)
        printf("%-20s %5s %10s %10s %12s %12s %12s %12s\n", "tensor", "head", "differ", "values", "max-abs",
               "rms", "frobenius", "cosine");
    d->headed = 1;
    layers_label(d, d->now, d->now, label, sizeof label);
    printf("%-20s %5" PRIu64 " %10" PRIu64 " %10" PRIu64 " %12.6g %12.6g %12.6g %12.9f\n", label, head,
           x->differ, x->values, x->max_abs, x->rms, x->frobenius, x->cosine);
}

static void print_tensor(struct diff *d, const struct kvc_difference *head, int unequal) {
    if (d->quiet || (!unequal && !d->verbose)) return;
    if (d->output == JSON) {
        if (!d->opened) json_tensor(d);
        if (d->report) cli_json_close(&d->json);
        cli_json_open(&d->json, "heads", '[');
    }
    for (uint64_t h = 0; h < d->now->heads; h++)
        if (head[h].differ || d->verbose) print_head(d, h, &head[h]);
    if (d->output == JSON) {
        cli_json_close(&d->json);
        cli_json_close(&d->json);
    }
}

static int compare_pair(struct diff *d, const struct tensor_pair *pair, struct kvc_error *e) {
    const struct kvc_matching *rows = &d->part[pair->pair].rows;
    if (!pair->heads || !rows->rows) return 0;
    struct kvc_difference all = {0}, *head = array_of(pair->heads, sizeof *head, e);
    if (!head) return -1;
    d->now = pair;
    d->opened = 0;
    int rc = kvc_compare_tensor(d->cache[0], pair->tensor[0], d->cache[1], pair->tensor[1], rows, pair->heads,
                                &d->compare, head, e);
    if (!rc) {
        for (uint64_t h = 0; h < pair->heads; h++) kvc_difference_add(&all, &head[h]);
        d->tensors++;
        d->values += all.values;
        if (all.differ) {
            d->tensors_differ++;
            kvc_difference_add(&d->total, &all);
        }
        print_tensor(d, head, all.differ != 0);
    }
    free(head);
    return rc;
}

static int differs(const struct diff *d) {
    return d->facts || d->tensors_differ;
}

static int compare_values(struct diff *d, struct kvc_error *e) {
    for (size_t i = 0; i < d->n_tensors && !(d->quiet && differs(d)); i++)
        if (compare_pair(d, &d->tensor[i], e)) return -1;
    return 0;
}

/* --- the whole comparison --- */

static void summary(struct diff *d) {
    const struct kvc_difference *x = &d->total;
    if (d->output == JSON) {
        cli_json_open(&d->json, "summary", '{');
        cli_json_bool(&d->json, "same", !differs(d));
        cli_json_u64(&d->json, "facts", d->facts);
        cli_json_u64(&d->json, "tensors_differ", d->tensors_differ);
        cli_json_u64(&d->json, "tensors", d->tensors);
        cli_json_u64(&d->json, "differ", x->differ);
        cli_json_u64(&d->json, "values", d->values);
        cli_json_u64(&d->json, "nonfinite", x->nonfinite);
        if (d->tensors_differ) json_measures(d, x);
        cli_json_close(&d->json);
        return;
    }
    if (!differs(d) && !d->verbose) return;
    if (d->output == TSV) {
        printf("summary\t%s\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64,
               differs(d) ? "differ" : "same", d->facts, d->tensors_differ, d->tensors, x->differ, d->values,
               x->nonfinite);
        if (d->tensors_differ) tsv_measures(x);
        else printf("\t\t\t\t");
        putchar('\n');
        return;
    }
    for (int s = 0; s < 2; s++) {
        cli_print_safe(stdout, d->file[s].input.name);
        putchar(' ');
    }
    printf("%s: ", differs(d) ? "differ" : "are the same");
    printf("%" PRIu64 " of %" PRIu64 " values in %" PRIu64 " of %" PRIu64 " tensors", x->differ, d->values,
           d->tensors_differ, d->tensors);
    if (d->facts) printf(", %" PRIu64 " other fact%s", d->facts, d->facts == 1 ? "" : "s");
    if (d->tensors_differ)
        printf("; max-abs %.6g, rms %.6g, frobenius %.6g, cosine %.9f", x->max_abs, x->rms, x->frobenius,
               x->cosine);
    putchar('\n');
}

static int compare_files(struct diff *d, struct kvc_error *e) {
    if (pair_all(d, e) || check_selection(d, e)) return -1;
    if (d->output == JSON && !d->quiet) {
        cli_json_start(&d->json, stdout);
        cli_json_open(&d->json, NULL, '{');
        cli_json_text(&d->json, "a", d->file[0].input.name);
        cli_json_text(&d->json, "b", d->file[1].input.name);
        cli_json_open(&d->json, "facts", '[');
    }
    compare_tokens(d);
    compare_metadata(d);
    if (d->all && compare_private(d, e)) return -1;
    compare_geometry(d);
    if (d->quiet && differs(d)) return 0;
    if (d->output == JSON && !d->quiet) {
        cli_json_close(&d->json);
        cli_json_open(&d->json, "tensors", '[');
    }
    if (align_rotation(d, e) || align_pairing(d, e) || compare_values(d, e)) return -1;
    if (d->quiet) return 0;
    if (d->output == JSON) cli_json_close(&d->json);
    summary(d);
    if (d->output == JSON) {
        cli_json_close(&d->json);
        cli_json_end(&d->json);
    }
    return 0;
}

static int run(struct diff *d, char **path) {
    struct kvc_error e;
    for (int s = 0; s < 2; s++) {
        if (d->pairing[s]) d->input.import.pairing = d->pairing[s];
        if (cli_open(&d->file[s], path[s], &d->input, &e)) {
            cli_error(&e);
            return EXIT_TROUBLE;
        }
        d->cache[s] = d->file[s].cache;
        d->compare.name[s] = d->file[s].input.name;
    }
    if (compare_files(d, &e)) {
        cli_error(&e);
        return EXIT_TROUBLE;
    }
    return differs(d) ? EXIT_DIFFER : EXIT_SAME;
}

static void release(struct diff *d) {
    for (int s = 0; s < 2; s++) {
        drop_views(d, s, 0);
        cli_close(&d->file[s]);
    }
    for (size_t i = 0; i < d->n_parts; i++) kvc_matching_free(&d->part[i].rows);
    free(d->part);
    free(d->tensor);
    free(d->keep);
}

/* --- options --- */

static int tolerance_option(struct diff *d, const char *name, const char *arg, double *to) {
    if (cli_parse_f64(arg, to) || !isfinite(*to) || *to < 0) {
        cli_usage("--%s: '%s' is not a number of 0 or more", name, arg);
        return -1;
    }
    d->compare.exact = 0;
    return 0;
}

static int tokens_option(struct diff *d, const char *arg) {
    uint64_t first, end;
    if (cli_parse_range(arg, &first, &end) || first >= end || first > INT64_MAX) {
        cli_usage("--tokens: '%s' is not a range of positions like 0:256", arg);
        return -1;
    }
    d->has_tokens = 1;
    d->first = (int64_t)first;
    d->last = end > INT64_MAX ? INT64_MAX : (int64_t)(end - 1);
    return 0;
}

/* "P" for both files or "P,Q". */
static int pairing_option(struct diff *d, const char *arg) {
    char first[32];
    const char *comma = strchr(arg, ',');
    int n = snprintf(first, sizeof first, "%.*s", comma ? (int)(comma - arg) : (int)strlen(arg), arg);
    if (n < 0 || (size_t)n >= sizeof first || !kvc_pairing_parse(first, &d->pairing[0]) ||
        !kvc_pairing_parse(comma ? comma + 1 : first, &d->pairing[1])) {
        cli_usage("--pairing: '%s' is not halves, interleaved or none, nor two of them with a comma between",
                  arg);
        return -1;
    }
    return 0;
}

static int option(struct diff *d, int opt, const char *arg) {
    switch (opt) {
    case OPT_ABS: return tolerance_option(d, "abs", arg, &d->compare.abs);
    case OPT_REL: return tolerance_option(d, "rel", arg, &d->compare.rel);
    case OPT_TOKENS: return tokens_option(d, arg);
    case OPT_LAYERS:
        if (!cli_parse_list(arg, &d->keep, &d->n_keep)) return 0;
        cli_usage("--layers: '%s' is not a list like 0-3,7", arg);
        return -1;
    case 'n':
        d->report = 1;
        if (!cli_parse_u64(arg, &d->count)) return 0;
        cli_usage("--count: '%s' is not a number", arg);
        return -1;
    case CLI_OPT_PAIRING: return pairing_option(d, arg);
    case OPT_ALL: d->all = 1; return 0;
    case OPT_REPORT: d->report = 1; return 0;
    case OPT_JSON: d->output = JSON; return 0;
    case OPT_TSV: d->output = TSV; return 0;
    case 'q': d->quiet = 1; return 0;
    case 'v': d->verbose = 1; return 0;
    default:
        if (cli_input_option(&d->input, opt, arg) == 1) return 0;
        if (opt == '?' || opt == ':') cli_try_help();
        return -1;
    }
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"abs", required_argument, NULL, OPT_ABS},
                                            {"rel", required_argument, NULL, OPT_REL},
                                            {"tokens", required_argument, NULL, OPT_TOKENS},
                                            {"layers", required_argument, NULL, OPT_LAYERS},
                                            {"all", no_argument, NULL, OPT_ALL},
                                            {"report", no_argument, NULL, OPT_REPORT},
                                            {"count", required_argument, NULL, 'n'},
                                            {"quiet", no_argument, NULL, 'q'},
                                            {"verbose", no_argument, NULL, 'v'},
                                            {"json", no_argument, NULL, OPT_JSON},
                                            {"tsv", no_argument, NULL, OPT_TSV},
                                            {"help", no_argument, NULL, 'h'},
                                            {"version", no_argument, NULL, 'V'},
                                            CLI_INPUT_OPTIONS,
                                            {NULL, 0, NULL, 0}};
    static struct diff d = {.compare.exact = 1, .count = UINT64_MAX, .first = INT64_MIN, .last = INT64_MAX};
    int opt, version = 0;
    cli_start(argv, "kvc-diff");
    while ((opt = getopt_long(argc, argv, "n:qvhV", options, NULL)) != -1) {
        if (opt == 'h') {
            fputs(help, stdout);
            return cli_finish(EXIT_SAME);
        }
        if (opt == 'V') version = 1;
        else if (option(&d, opt, optarg)) return EXIT_TROUBLE;
    }
    if (version) return cli_version(d.verbose);
    if (argc - optind != 2) return cli_usage("two files are needed, %d given", argc - optind);
    if (!strcmp(argv[optind], "-") && !strcmp(argv[optind + 1], "-"))
        return cli_usage("only one of the two files can be standard input");
    if (d.report && !d.quiet) {
        d.compare.report = report_value;
        d.compare.state = &d;
    }
    int status = run(&d, argv + optind);
    release(&d);
    return cli_finish(status);
}

/* survey.c: reads all of a container that may be damaged, and lists the damage and the whole rows.
 * Not for opening it (salvage.c). */
#include "formats/container/salvage.h"

#include "codecs/memory.h"
#include "formats/io/parallel.h"
#include "formats/container/records.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANGES = 12 }; /* maximum number of ranges of whole layers and tokens that are named */

/* --- the list of damage --- */

struct kvc_damage *kvc_survey_add(struct kvc_survey *s, const char *kind, const char *place,
                                  const char *reason, struct kvc_error *e) {
    struct kvc_damage *grown = kvc_room_for_one(s->damage, s->n, sizeof *grown), *d = NULL;
    if (grown) {
        s->damage = grown;
        d = &s->damage[s->n++];
        *d = (struct kvc_damage){.record = KVC_NOWHERE,
                                 .kind = kind,
                                 .offset = KVC_NOWHERE,
                                 .place = strdup(place),
                                 .reason = strdup(reason)};
    }
    if (d && d->place && d->reason) return d;
    kvc_fail_memory(e, "a list of damage");
    return NULL;
}

void kvc_survey_free(struct kvc_survey *s) {
    if (!s) return;
    for (uint64_t i = 0; i < s->n; i++) {
        free(s->damage[i].place);
        free(s->damage[i].reason);
    }
    free(s->damage);
    free(s->noted);
    free(s->whole);
    free(s->whole_layers);
    free(s->whole_tokens);
    free(s);
}

/* Fills in the tensor, and the positions and label of its blocks [block, end). */
static void survey_describe(struct kvc_damage *d, const struct kvc_cache *c, uint32_t tensor,
                            uint64_t block, uint64_t end) {
    const struct kvc_layer *layer = kvc_tensor_layer(c, tensor);
    const struct kvc_cells *cells = &c->part[layer->part].cells;
    d->has_tensor = 1;
    d->part = c->part[layer->part].kind;
    d->layer = layer->index;
    d->role = c->tensor[tensor].role;
    if (block == end) return;
    d->has_tokens = 1;
    d->first = kvc_cells_position(cells, cells->block[block]);
    d->end = kvc_cells_position(cells, cells->block[end] - 1) + 1;
}

int kvc_survey_lost(const struct kvc_cache *c, uint32_t tensor) {
    return kvc_records_of(c)->lost[kvc_tensor_layer(c, tensor)->part];
}

/* Returns 1 if a BLOCK or SIDE record is the one noted for its tensor and number. */
static int is_placed(const struct kvc_cache *c, uint64_t i) {
    const struct kvc_records *k = kvc_records_of(c);
    const struct kvc_record *r = &k->record[i];
    if (k->survey->unusable.code != KVC_OK || !k->block_record || r->subject >= c->n_tensors)
        return 0;
    const uint64_t *first = r->type == KVC_RECORD_BLOCK ? k->first_block : k->first_side;
    const uint64_t *place = r->type == KVC_RECORD_BLOCK ? k->block_record : k->side_record;
    return r->number < first[r->subject + 1] - first[r->subject] &&
           place[first[r->subject] + r->number] == i;
}

/* Copies a message without "record 12 (LABEL): " and " (at byte N)", for which entries have fields.
 */
static void bare_reason(const struct kvc_error *why, const struct kvc_record *r, uint64_t i,
                        char *text, size_t size) {
    char part[64];
    const char *from = why->message, *colon;
    snprintf(part, sizeof part, "record %" PRIu64 " (", i);
    if (strncmp(from, part, strlen(part)) == 0 && (colon = strstr(from, "): "))) from = colon + 3;
    snprintf(text, size, "%s", from);
    snprintf(part, sizeof part, " (at byte %" PRIu64 ")", r->offset);
    const size_t n = strlen(text), tail = strlen(part);
    if (n > tail && strcmp(text + n - tail, part) == 0) text[n - tail] = '\0';
}

int kvc_survey_record(struct kvc_survey *s, const struct kvc_cache *c, uint64_t i,
                      const struct kvc_error *why, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    const struct kvc_record *r = &k->record[i];
    const char *kind = kvc_record_name(r->type);
    const int placed = (r->type == KVC_RECORD_BLOCK || r->type == KVC_RECORD_SIDE) &&
                       is_placed(c, i);
    const uint64_t first = r->type == KVC_RECORD_SIDE ? (uint64_t)r->number * KVC_SEGMENT_BLOCKS
                                                      : r->number;
    uint64_t end = first + 1;
    char place[128] = "", reason[sizeof why->message];
    if (s->noted[i]) return 0;
    s->noted[i] = 1;
    s->damaged++;
    if (placed && r->type == KVC_RECORD_SIDE) {
        const uint64_t blocks = kvc_tensor_cells(c, r->subject)->n_blocks;
        end = first + KVC_SEGMENT_BLOCKS < blocks ? first + KVC_SEGMENT_BLOCKS : blocks;
    }
    const int is_rows = r->type == KVC_RECORD_BLOCK || r->type == KVC_RECORD_SIDE;
    const int of_tensor = placed ||
                          (is_rows && k->lost && !r->doubtful && r->subject < c->n_tensors);
    if (placed) kvc_blocks_label(c, r->subject, first, end, place, sizeof place);
    else if (of_tensor) kvc_tensor_label(c, r->subject, place, sizeof place);
    bare_reason(why, r, i, reason, sizeof reason);
    struct kvc_damage *d = kvc_survey_add(s, kind ? kind : "unknown", place, reason, e);
    if (!d) return -1;
    d->record = i;
    d->offset = r->offset;
    d->size = r->size;
    if (of_tensor) survey_describe(d, c, r->subject, placed ? first : 0, placed ? end : 0);
    return 0;
}

/* --- reading everything --- */

struct reading {
    struct kvc_cache *c;
    struct kvc_survey *s;
};

/* Checks record i. Its result is an error; NULL: nothing is wrong. */
static int read_record(void *state, uint64_t i, void **result, struct kvc_error *e) {
    const struct reading *x = state;
    const struct kvc_records *k = kvc_records_of(x->c);
    const struct kvc_record *r = &k->record[i];
    struct kvc_error why = {.code = KVC_OK};
    struct kvc_section *list;
    unsigned n;
    *result = NULL;
    if (x->s->noted[i]) return 0;
    if ((r->type == KVC_RECORD_BLOCK || r->type == KVC_RECORD_SIDE) && !is_placed(x->c, i)) {
        /* its rows are unknown, but its bytes can be checked */
        if (!kvc_records_sections(k, i, &list, &n, &why)) {
            kvc_records_release(k, i, list);
            if (x->s->unusable.code != KVC_OK ||
                (r->subject < x->c->n_tensors && kvc_survey_lost(x->c, r->subject)))
                return 0;
            kvc_fail(&why, KVC_ERR_DAMAGED, "is not the record due here");
        }
    } else if (!kvc_blocks_check(x->c, i, &why)) {
        return 0;
    }
    if (why.code == KVC_ERR_MEMORY) {
        *e = why;
        return -1;
    }
    if (!(*result = malloc(sizeof why))) return kvc_fail_memory(e, "a list of damage");
    memcpy(*result, &why, sizeof why);
    return 0;
}

static int take_record(void *state, uint64_t i, void *result, struct kvc_error *e) {
    struct reading *x = state;
    struct kvc_records *k = kvc_records_of(x->c);
    const struct kvc_record *r = &k->record[i];
    struct kvc_error *why = result;
    int status = 0;
    if (why && r->type == KVC_RECORD_SOURCE) x->s->no_source = 1;
    /* a missing profile or missing weights are no damage, unless the profile's name is lost */
    if (why && why->code != KVC_ERR_DAMAGED && why->code != KVC_ERR_UNKNOWN_FORMAT &&
        !x->s->no_meta) {
        if (x->s->trouble.code == KVC_OK) x->s->trouble = *why;
    } else if (why) {
        status = kvc_survey_record(x->s, x->c, i, why, e);
    } else if (r->type == KVC_RECORD_BLOCK && !x->s->noted[i] && is_placed(x->c, i)) {
        x->s->whole[k->first_block[r->subject] + r->number] = 1;
    }
    free(why);
    return status;
}

/* Lists blocks without a record: one entry for each run. */
static int list_missing(struct kvc_survey *s, const struct kvc_cache *c, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    for (uint64_t i = 0; i < k->n_records; i++) { /* without cells, nothing of a part can be read */
        const struct kvc_record *r = &k->record[i];
        if (r->type != KVC_RECORD_BLOCK || s->noted[i] || r->subject >= c->n_tensors) continue;
        if (kvc_survey_lost(c, r->subject)) s->damaged++;
    }
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const uint64_t *record = k->block_record + k->first_block[t],
                       blocks = k->first_block[t + 1] - k->first_block[t];
        const int lost = kvc_survey_lost(c, t);
        static const char no_positions[] =
            "nothing says any more at which positions its rows stand";
        for (uint64_t b = 0, end; b < blocks; b = end + 1) {
            char place[128];
            for (end = b; end < blocks && record[end] == KVC_NOWHERE;) end++;
            if (end == b) continue;
            if (lost) kvc_tensor_label(c, t, place, sizeof place);
            else kvc_blocks_label(c, t, b, end, place, sizeof place);
            struct kvc_damage *d = kvc_survey_add(s, "BLOCK", place,
                                                  lost ? no_positions : "is missing", e);
            if (!d) return -1;
            survey_describe(d, c, t, b, lost ? b : end);
            if (lost) continue;
            s->damaged += end - b;
            s->records += end - b;
        }
    }
    return 0;
}

static int by_place(const void *a, const void *b) {
    const struct kvc_damage *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->part != y->part) return x->part < y->part ? -1 : 1;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    if (x->role != y->role) return x->role < y->role ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* --- what is whole --- */

struct range {
    int64_t first, end; /* positions */
};

static int by_first(const void *a, const void *b) {
    const struct range *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Returns 1 for tensors that a range of tokens must have whole: not for companions and snapshots.
 */
static int counts(const struct kvc_cache *c, uint32_t tensor) {
    const enum kvc_part_kind kind = kvc_tensor_part(c, tensor)->kind;
    return kind == KVC_PART_LIVE || kind == KVC_PART_WINDOW || kind == KVC_PART_STATE;
}

/* Returns the positions of a block; all positions if its own are lost. */
static struct range range_of(const struct kvc_cache *c, uint32_t tensor, uint64_t block) {
    const struct kvc_cells *cells = kvc_tensor_cells(c, tensor);
    if (kvc_survey_lost(c, tensor)) return (struct range){INT64_MIN, INT64_MAX};
    return (struct range){kvc_cells_position(cells, cells->block[block]),
                          kvc_cells_position(cells, cells->block[block + 1] - 1) + 1};
}

int kvc_survey_all_whole(const struct kvc_survey *s, const struct kvc_cache *c) {
    const struct kvc_records *k = kvc_records_of(c);
    if (!s->whole || !k->first_block) return 0; /* without a table, nothing is known of the rows */
    for (uint64_t b = 0; b < k->first_block[c->n_tensors]; b++)
        if (!s->whole[b]) return 0;
    return 1;
}

/* Prints what separates a range from the one before it. Returns 0 if there are too many ranges, or
 * this one is empty. */
static int begin_range(FILE *out, int64_t first, int64_t end, unsigned *n) {
    if (first >= end || ++*n > RANGES + 1) return 0;
    fputs(*n > 1 ? "," : "", out);
    if (*n <= RANGES) return 1;
    fputs("...", out);
    return 0;
}

/* Tokens are printed as "A:B", without B, and layers as "A-B", with B, as options take them. */
static void print_token_range(FILE *out, int64_t first, int64_t end, unsigned *n) {
    if (begin_range(out, first, end, n)) fprintf(out, "%" PRId64 ":%" PRId64, first, end);
}

static void print_layer_range(FILE *out, uint32_t first, uint32_t last, unsigned *n) {
    if (!begin_range(out, first, (int64_t)last + 1, n)) return;
    fprintf(out, "%" PRIu32, first);
    if (last > first) fprintf(out, "-%" PRIu32, last);
}

/* Writes the positions that no layer lacks: "0:512,768:2000". */
static void print_tokens(FILE *out, const struct kvc_survey *s, const struct kvc_cache *c,
                         struct range *bad) {
    const struct kvc_records *k = kvc_records_of(c);
    int64_t first = INT64_MAX, end = INT64_MIN, at;
    uint64_t n = 0;
    unsigned printed = 0;
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const struct kvc_cells *cells = kvc_tensor_cells(c, t);
        if (!counts(c, t) || !cells->n || kvc_survey_lost(c, t)) continue;
        const struct range all = {kvc_cells_position(cells, 0),
                                  kvc_cells_position(cells, cells->n - 1) + 1};
        if (all.first < first) first = all.first;
        if (all.end > end) end = all.end;
    }
    for (uint32_t t = 0; t < c->n_tensors; t++)
        for (uint64_t b = k->first_block[t]; counts(c, t) && b < k->first_block[t + 1]; b++)
            if (!s->whole[b]) bad[n++] = range_of(c, t, b - k->first_block[t]);
    if (n) qsort(bad, (size_t)n, sizeof *bad, by_first);
    at = first;
    for (uint64_t i = 0; i < n; i++) {
        print_token_range(out, at, bad[i].first < end ? bad[i].first : end, &printed);
        if (bad[i].end > at) at = bad[i].end;
    }
    print_token_range(out, at, end, &printed);
}

/* Writes the layers of the model of which every K, V, latent and state is whole: "0-6,8". */
static int print_layers(FILE *out, const struct kvc_survey *s, const struct kvc_cache *c,
                        struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    unsigned printed = 0;
    struct layer {
        uint32_t index;
        int whole;
    } *list = kvc_alloc_zeros((uint64_t)c->n_tensors + 1, sizeof *list);
    uint32_t n = 0;
    if (!list) return kvc_fail_memory(e, "layers");
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const uint32_t index = kvc_tensor_layer(c, t)->index;
        uint32_t i = n;
        if (!counts(c, t)) continue;
        while (i && list[i - 1].index >= index) i--;
        if (i == n || list[i].index != index) { /* they come nearly sorted */
            memmove(list + i + 1, list + i, (n - i) * sizeof *list);
            list[i] = (struct layer){index, 1};
            n++;
        }
        for (uint64_t b = k->first_block[t]; b < k->first_block[t + 1]; b++)
            list[i].whole &= s->whole[b];
    }
    for (uint32_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && list[i].whole && list[end].whole &&
                          list[end].index == list[end - 1].index + 1;)
            end++;
        if (list[i].whole) print_layer_range(out, list[i].index, list[end - 1].index, &printed);
    }
    free(list);
    return 0;
}

static int say_whole(struct kvc_survey *s, const struct kvc_cache *c, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    size_t size;
    struct range *bad = kvc_alloc(k->first_block[c->n_tensors] + 1, sizeof *bad);
    FILE *tokens = open_memstream(&s->whole_tokens, &size),
         *layers = tokens ? open_memstream(&s->whole_layers, &size) : NULL;
    int status = bad && layers ? 0 : kvc_fail_memory(e, "a survey");
    if (!status) print_tokens(tokens, s, c, bad);
    if (!status) status = print_layers(layers, s, c, e);
    if (tokens && fclose(tokens)) status = kvc_fail_memory(e, "a survey");
    if (layers && fclose(layers)) status = kvc_fail_memory(e, "a survey");
    free(bad);
    return status;
}

const struct kvc_survey *kvc_salvage_survey(struct kvc_cache *c, unsigned threads,
                                            struct kvc_error *e) {
    struct kvc_records *k = kvc_records_of(c);
    struct kvc_survey *s = k->survey;
    struct reading x = {c, s};
    struct kvc_job job = {.n = k->n_records,
                          .work = read_record,
                          .commit = take_record,
                          .discard = free,
                          .state = &x};
    const int usable = s->unusable.code == KVC_OK;
    if (!(s->whole = calloc(1, usable ? (size_t)k->first_block[c->n_tensors] + 1 : 1))) {
        kvc_fail_memory(e, "a survey");
        return NULL;
    }
    if (kvc_parallel(&job, kvc_cache_threads(c, threads), e) ||
        (usable && (list_missing(s, c, e) || say_whole(s, c, e))))
        return NULL;
    if (s->trouble.code != KVC_OK) { /* unknown */
        free(s->whole_layers);
        free(s->whole_tokens);
        s->whole_layers = s->whole_tokens = NULL;
    }
    if (s->n > 1) qsort(s->damage, (size_t)s->n, sizeof *s->damage, by_place);
    return s;
}

int kvc_survey_narrow(const struct kvc_survey *s, const struct kvc_cache *c,
                      struct kvc_selection *selection, struct kvc_error *e) {
    const struct kvc_records *k = kvc_records_of(c);
    const uint64_t asked = selection->end ? selection->end : INT64_MAX,
                   limit = asked < INT64_MAX ? asked : INT64_MAX;
    const int64_t first = selection->first
                              ? (int64_t)(selection->first < INT64_MAX ? selection->first
                                                                       : INT64_MAX)
                              : INT64_MIN;
    int64_t end = (int64_t)limit, begin = INT64_MAX; /* begin: of the first row asked for */
    /* what is no part of the range is compared with the range that the first turn found */
    for (int others = 0; others < 2; others++)
        for (uint32_t t = 0; t < c->n_tensors; t++) {
            const uint32_t index = kvc_tensor_layer(c, t)->index;
            if (selection->layers && (index >= selection->n_layers || !selection->layers[index]))
                continue;
            if (counts(c, t) == others) continue;
            const int companion = kvc_tensor_is_companion(c, t);
            for (uint64_t b = k->first_block[t]; b < k->first_block[t + 1]; b++) {
                const struct range r = range_of(c, t, b - k->first_block[t]);
                if (!others && r.first < begin) begin = r.first;
                if (s->whole[b]) continue;
                if (others && !companion) selection->no_snapshots = 1; /* whatever its positions */
                if (r.end <= first || r.first >= end) continue;
                if (!others) end = r.first > first ? r.first : first;
                else if (companion) selection->no_companions = 1;
            }
        }
    if (end <= 0 || end <= first || (end <= begin && end < (int64_t)limit)) {
        const int some = s->whole_layers && *s->whole_layers && !strstr(s->whole_layers, "...");
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "no token from %" PRIu64
                        " on is whole in all layers asked for: nothing can be given "
                        "back%s%s",
                        selection->first, some ? "; whole are layers " : "",
                        some ? s->whole_layers : "");
    }
    selection->end = (uint64_t)end;
    return 0;
}

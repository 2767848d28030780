/* losses.c: finds the content of a cache that a format does not hold, by the row of the format. */
#include "formats/file/losses.h"

#include "formats/cache/keys.h"
#include "formats/cache/scales.h"
#include "formats/engines/arrays_write.h"

#include <stdio.h>
#include <string.h>

/* Facts that formats without room for metadata lose: keys, or the beginnings of keys, the first
 * match decides. */
static const struct {
    const char *key;
    unsigned bit;
    const char *words;
} facts[] = {
    {KVC_KEY_MODEL_NAME, KVC_LACKS_NAME, "the model's name"},
    {KVC_KEY_MODEL_ADAPTERS, KVC_LACKS_FACTS, "the model's adapters"},
    {KVC_KEY_FINGERPRINT, KVC_LACKS_FACTS, "the fingerprint of the weights"},
    {"model.", KVC_LACKS_FACTS, "the model's architecture and sizes"},
    {KVC_KEY_TOKENIZER, KVC_LACKS_FACTS, "the tokenizer's hash"},
    {KVC_KEY_ROPE_PAIRING, 0, NULL}, /* and rope.pairing-assumed: lost_pairing() */
    {"rope.", KVC_LACKS_FACTS, "RoPE facts"},
    {KVC_KEY_HIDDEN_STATES, KVC_LACKS_FACTS, "the place of the hidden states"},
    {KVC_KEY_WINDOW, KVC_LACKS_FACTS, "the size of the sliding window"},
    {"shard.", KVC_LACKS_FACTS, "the shard's number"},
};
enum { FACTS = sizeof facts / sizeof facts[0] };

/* Facts that a file of the model, or a reader of the source's format, gives again. */
#define GIVEN_AGAIN (KVC_LACKS_NAME | KVC_LACKS_FACTS | KVC_LACKS_WINDOWS | KVC_LACKS_LAYERS)

static void losses_append(char *text, size_t size, const char *before, const char *words) {
    const size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s", before, words);
}

static void losses_say(struct kvc_losses *l, const struct kvc_format *to, const char *words) {
    if (!*l->lost) snprintf(l->lost, sizeof l->lost, "%s does not hold ", to->name);
    else losses_append(l->lost, sizeof l->lost, ", ", "");
    losses_append(l->lost, sizeof l->lost, "", words);
}

static void say_facts(struct kvc_losses *l, const struct kvc_format *to,
                      const struct kvc_meta *meta, unsigned lacks) {
    int found[FACTS] = {0};
    for (size_t i = 0; i < meta->n; i++) {
        const char *key = meta->entry[i].key;
        size_t f = 0;
        while (f < FACTS && strncmp(key, facts[f].key, strlen(facts[f].key)) != 0) f++;
        /* K after RoPE is assumed where nothing is recorded */
        if (f < FACTS && (strcmp(key, KVC_KEY_ROPE_K) != 0 || meta->facts.rope.before))
            found[f] = 1;
    }
    for (size_t f = 0; f < FACTS; f++)
        if (found[f] && lacks & facts[f].bit) losses_say(l, to, facts[f].words);
}

/* Returns 1 if positions are not 0, 1, 2, ... */
static int has_positions(const struct kvc_cache *c) {
    const struct kvc_cells *cells = c->n_parts ? &c->part[0].cells : NULL;
    return cells && cells->n &&
           (kvc_cells_position(cells, 0) ||
            kvc_cells_position(cells, cells->n - 1) != (int64_t)cells->n - 1);
}

/* Returns 1 if the layers of a part have known numbers that are not 0, 1, 2, ... */
static int has_layer_numbers(const struct kvc_cache *c, const struct kvc_facts *known) {
    uint32_t next = 0;
    for (uint32_t i = 0; i < c->n_layers && !known->layers_unknown; i++) {
        if (i && c->layer[i].part != c->layer[i - 1].part) next = 0;
        if (kvc_part_is_attended(&c->part[c->layer[i].part]) && c->layer[i].index != next++)
            return 1;
    }
    return 0;
}

/* Returns 1 if K and V of all layers do not have one type and shape. */
static int has_shapes(const struct kvc_cache *c) {
    const struct kvc_shape *first = NULL;
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const struct kvc_shape *shape = &c->tensor[t].shape;
        if (!kvc_part_is_attended(kvc_tensor_part(c, t))) continue;
        if (!first) first = shape;
        if (shape->dtype != first->dtype || shape->heads != first->heads ||
            shape->dim != first->dim)
            return 1;
    }
    return 0;
}

/* Returns 1 if layers with sliding windows hold all tokens, so that their number of tokens does not
 * tell them from others. */
static int has_hidden_windows(const struct kvc_cache *c) {
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->part[c->layer[i].part].kind == KVC_PART_LIVE &&
            (c->layer[i].kind == KVC_LAYER_WINDOW || c->layer[i].window))
            return 1;
    return 0;
}

/* Returns 1 if K is written in another pairing than the one that readers of the format assume. */
static int lost_pairing(const struct kvc_facts *known, const struct kvc_export_options *o) {
    enum kvc_pairing written = o->pairing;
    /* rows that may be rotated stay as they are */
    if (!written && !known->tile_known[0]) written = known->rope.pairing;
    else if (!written && known->architecture)
        written = kvc_pairing_of_transformers(known->architecture);
    return known->rope.pairing && known->rope.pairing != KVC_PAIRING_NONE &&
           written == KVC_PAIRING_INTERLEAVED;
}

static unsigned count_parts(const struct kvc_cache *c, enum kvc_part_kind kind) {
    unsigned n = 0;
    for (uint32_t i = 0; i < c->n_parts; i++) n += c->part[i].kind == kind;
    return n;
}

/* Returns 1 if a tensor has known scales that are not 1. */
static int matters(const struct kvc_cache *c, uint32_t t) {
    return !kvc_scales_plain(c, t) && !kvc_scales_need(c, t, NULL);
}

/* Returns 1 if values of 8 bits are written as they are stored, and their scales matter. */
static int has_scales(const struct kvc_cache *c, const struct kvc_format *to) {
    uint32_t stream = 0;
    const int floats = to->keeps && !kvc_arrays_stream(c, &stream, NULL) &&
                       kvc_arrays_needs_float(c, stream);
    for (uint32_t t = 0; t < c->n_tensors && !floats; t++) {
        const struct kvc_tensor *x = &c->tensor[t];
        if (!kvc_tensor_is_scaled(x) || (to->keeps && !to->keeps(x->shape.dtype))) continue;
        if (matters(c, t)) return 1;
    }
    return 0;
}

/* --- types --- */

/* Lists the dtypes that a format with `keeps` writes as float32. */
static void say_casts(struct kvc_losses *l, const struct kvc_format *to, const struct kvc_cache *c,
                      const struct kvc_facts *known) {
    uint32_t stream;
    int said[256] = {0}, scaled = 0;
    if (!to->keeps || kvc_arrays_stream(c, &stream, NULL)) return;
    const int floats = kvc_arrays_needs_float(c, stream);
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const struct kvc_part *part = kvc_tensor_part(c, t);
        const struct kvc_dtype_info *info = kvc_dtype_info(c->tensor[t].shape.dtype);
        const int is_written = kvc_part_is_attended(part) || (part->kind == KVC_PART_COMPANION &&
                                                              !(to->lacks & KVC_LACKS_COMPANIONS));
        if (!is_written || info->dtype == KVC_F32 || (!floats && to->keeps(info->dtype)) ||
            said[info->dtype]++)
            continue;
        scaled |= matters(c, t);
        if (*l->casts) losses_append(l->casts, sizeof l->casts, ", ", info->name);
        else snprintf(l->casts, sizeof l->casts, "%s: values of %s", to->name, info->name);
    }
    if (*l->casts) losses_append(l->casts, sizeof l->casts, "", " are written as f32");
    if (scaled) losses_append(l->casts, sizeof l->casts, ", ", "times their scales");
    if (*l->casts && (known->tile[0] || known->tile[1]))
        losses_append(l->casts, sizeof l->casts, ", ", "without Hadamard rotation");
}

/* --- all --- */

void kvc_losses_find(struct kvc_losses *l, const struct kvc_format *to, const struct kvc_cache *c,
                     const struct kvc_export_options *o, int has_model) {
    const struct kvc_facts *known = &c->meta.facts;
    const unsigned snapshots = count_parts(c, KVC_PART_SNAPSHOT);
    unsigned lacks = to->lacks;
    char text[48];
    if (has_model || to == kvc_format_of_source(c)) lacks &= ~(unsigned)GIVEN_AGAIN;
    *l = (struct kvc_losses){.lost = ""};
    const char *others = kvc_meta_text(&c->meta, KVC_KEY_OTHER_ARRAYS, NULL);
    char arrays[576];
    snprintf(arrays, sizeof arrays, "arrays whose meaning is unknown (%s)", others ? others : "");
    if (others) losses_say(l, to, arrays);
    if (lacks & KVC_LACKS_TOKENS && c->n_tokens) losses_say(l, to, "token ids");
    if (lacks & KVC_LACKS_POSITIONS && has_positions(c))
        losses_say(l, to, "positions (not 0, 1, 2 and so on)");
    if (lacks & KVC_LACKS_COORDINATES && known->coordinates)
        losses_say(l, to, "the M-RoPE coordinates of tokens");
    if (lacks & KVC_LACKS_COMPANIONS && count_parts(c, KVC_PART_COMPANION))
        losses_say(l, to, "queries and hidden states");
    snprintf(text, sizeof text, "snapshots (%u)", snapshots);
    if (lacks & KVC_LACKS_SNAPSHOTS && snapshots) losses_say(l, to, text);
    if (lacks & KVC_LACKS_LAYERS && has_layer_numbers(c, known))
        losses_say(l, to, "the numbers of the layers");
    if (lacks & KVC_LACKS_WINDOWS && has_hidden_windows(c))
        losses_say(l, to, "which layers have sliding windows");
    if (lacks & KVC_LACKS_SHAPES && has_shapes(c))
        losses_say(l, to, "types or shapes that differ between tensors");
    if (lacks & KVC_LACKS_PAIRING && lost_pairing(known, o))
        losses_say(l, to, "the pairing of K (interleaved)");
    if (lacks & KVC_LACKS_ROTATION && (known->tile[0] || known->tile[1]))
        losses_say(l, to, "the Hadamard rotation of its values");
    if (lacks & KVC_LACKS_SCALES && to != kvc_format_of_source(c) && has_scales(c, to))
        losses_say(l, to, "the scales of its values");
    say_facts(l, to, &c->meta, lacks);
    say_casts(l, to, c, known);
}

int kvc_losses_refuse(const struct kvc_losses *l, struct kvc_error *e) {
    return *l->lost ? kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_LOSSY, "%s", l->lost) : 0;
}

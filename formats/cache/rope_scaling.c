/* rope_scaling.c: reads RoPE facts of transformers' JSON objects. Source: transformers,
 * modeling_rope_utils.py. */
#include "formats/cache/rope_scaling.h"

#include "formats/io/json_text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *rope_scaling_text_of(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static uint64_t count_of(const json_t *v) {
    const json_int_t n = json_integer_value(v);
    return n > 0 ? (uint64_t)n : 0;
}

static void read_sections(struct kvc_rope_scaling *s, const json_t *list) {
    const size_t n = json_array_size(list);
    if (n > KVC_ROPE_SECTIONS) return;
    for (size_t i = 0; i < n; i++) {
        const json_int_t v = json_integer_value(json_array_get(list, i));
        if (v < 0 || v > UINT16_MAX) return;
        s->section[i] = (uint64_t)v;
    }
    s->n_sections = (uint32_t)n;
}

/* Keeps what a type needs beyond its factor: YaRN's betas, the frequencies of llama3, the lists of
 * longrope. */
static void keep_more(struct kvc_rope_scaling *s, const json_t *object) {
    static const char *const known[] = {"rope_type",     "type",
                                        "factor",        "original_max_position_embeddings",
                                        "mrope_section", "mrope_interleaved",
                                        "rope_theta",    "partial_rotary_factor"};
    json_t *rest = json_is_object(object) ? json_copy((json_t *)(uintptr_t)object) : NULL;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) json_object_del(rest, known[i]);
    char *text = json_object_size(rest) ? kvc_json_dump(rest, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    if (text && strlen(text) < sizeof s->more) strcpy(s->more, text);
    free(text);
    json_decref(rest);
}

void kvc_rope_scaling_read(struct kvc_rope_scaling *s, const json_t *object) {
    *s = (struct kvc_rope_scaling){.type = rope_scaling_text_of(object, "rope_type")};
    if (!s->type) s->type = rope_scaling_text_of(object, "type");
    /* the name of its first year */
    if (s->type && strcmp(s->type, "su") == 0) s->type = "longrope";
    const double factor = json_number_value(json_object_get(object, "factor"));
    if (factor > 0 && isfinite(factor)) s->factor = factor;
    s->original = count_of(json_object_get(object, "original_max_position_embeddings"));
    read_sections(s, json_object_get(object, "mrope_section"));
    keep_more(s, object);
    const int plain = !s->type || strcmp(s->type, "default") == 0 || strcmp(s->type, "mrope") == 0;
    if (!s->n_sections || !plain) return;
    s->type = json_is_true(json_object_get(object, "mrope_interleaved")) ? "imrope" : "mrope";
}

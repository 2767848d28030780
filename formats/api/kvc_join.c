/* kvc_join.c: implements kvc_file_join() and kvc_file_shard() of kvc.h. The work is done in
 * formats/cache/join.c and join_heads.c. */
#include "formats/api/kvc.h"
#include "formats/api/kvc_file.h"
#include "formats/api/sized.h"
#include "formats/cache/prefix.h"
#include "formats/cache/join.h"
#include "codecs/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names joined files "a.bin and 2 more", and adds their sizes. */
static int join_describe(struct kvc_file *f, const struct kvc_file *const *files, size_t n,
                         const char *name, struct kvc_error *e) {
    const int length = name    ? asprintf(&f->joined_name, "%s", name)
                       : n > 1 ? asprintf(&f->joined_name, "%s and %zu more", files[0]->name, n - 1)
                               : asprintf(&f->joined_name, "%s", files[0]->name);
    f->joined = kvc_alloc(n, sizeof *f->joined);
    if (length < 0) f->joined_name = NULL;
    if (length < 0 || !f->joined) return kvc_fail_memory(e, "files");
    memcpy(f->joined, files, n * sizeof *files);
    f->n_joined = n;
    f->name = f->joined_name;
    f->opened.format = kvc_file_whole(files[0])->opened.format;
    f->rebuild = kvc_file_whole(files[0])->rebuild;
    for (size_t i = 0; i < n; i++) {
        const struct kvc_file *whole = kvc_file_whole(files[i]);
        f->bytes += whole->bytes ? whole->bytes : kvc_opened_size(&whole->opened);
    }
    return 0;
}

static void note(const struct kvc_join_options *o, const struct kvc_file *f, enum kvc_note number,
                 const char *text) {
    if (o->note) o->note(o->note_state, number, f->name, text);
}

static void note_report(const struct kvc_join_options *o, const struct kvc_file *f,
                        const struct kvc_join_report *r) {
    char text[512];
    if (r->by_order)
        note(o, f, KVC_NOTE_BY_ORDER,
             "the files do not record positions: they are taken in the given order");
    if (r->no_ids && !o->n_token_ids) {
        snprintf(text, sizeof text, "without token ids: %s has none", r->no_ids);
        note(o, f, KVC_NOTE_NO_TOKENS, text);
    }
    if (r->left_out) note(o, f, KVC_NOTE_NO_QUERIES, "without queries and hidden states");
}

/* Compares the cache of all ranks with the model, and adds the model's facts. */
static int apply_model(const struct kvc_join_options *o, struct kvc_cache *c, struct kvc_error *e) {
    const struct kvc_model *m = o->shared_model;
    char why[512];
    if (!m) return 0;
    if (c->meta.facts.heads_unknown && m->kv_heads && m->kv_heads <= UINT16_MAX &&
        kvc_cache_set_heads(c, (uint32_t)m->kv_heads, e))
        return -1;
    if (kvc_model_match(&c->meta, m, why, sizeof why, e)) return -1;
    return kvc_model_apply(m, c, why, sizeof why, e);
}

static int join(struct kvc_file *f, const struct kvc_join_options *o, struct kvc_error *e) {
    const int heads = o->how && strcmp(o->how, "heads") == 0;
    const char *model = o->shared_model ? o->shared_model->path
                                        : kvc_file_whole(f->joined[0])->model;
    if (model && *model && !(f->model = strdup(model))) return kvc_fail_memory(e, "a name");
    struct kvc_join_report report;
    struct kvc_join_operand *from = kvc_alloc(f->n_joined, sizeof *from);
    if (!from) return kvc_fail_memory(e, "files");
    for (size_t i = 0; i < f->n_joined; i++)
        from[i] = (struct kvc_join_operand){.cache = f->joined[i]->cache,
                                            .name = f->joined[i]->name,
                                            .is_kept = !i && o->keeps_first};
    struct kvc_cache *c = heads ? kvc_view_join_heads(from, f->n_joined, &report, e)
                                : kvc_view_join(from, f->n_joined, &report, e);
    free(from);
    f->cache = f->opened.cache = c;
    if (!c) return -1;
    if ((heads && apply_model(o, c, e)) || kvc_meta_give(&c->meta, o->facts, e))
        return kvc_error_prefix(e, f->name);
    note_report(o, f, &report);
    return o->n_token_ids && kvc_cache_give_tokens(c, o->token_ids, o->n_token_ids, e)
               ? kvc_error_prefix(e, f->name)
               : 0;
}

struct kvc_file *kvc_file_join_by(const struct kvc_file *const *files, size_t n,
                                  const struct kvc_join_options *options, struct kvc_error *e) {
    if (n && KVC_NULL(e, files)) return NULL;
    struct kvc_join_options o;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_join_options", e)) return NULL;
    if (o.how && strcmp(o.how, "heads") != 0 && strcmp(o.how, "tokens") != 0) {
        kvc_fail(e, KVC_ERR_USAGE, "files are joined by tokens or heads, not by '%s'", o.how);
        return NULL;
    }
    if (!n) {
        kvc_fail(e, KVC_ERR_USAGE, "there are no files to join");
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        if (KVC_NULL(e, files[i])) return NULL;
    struct kvc_file *f = calloc(1, sizeof *f);
    if (f && !join_describe(f, files, n, o.name, e) && !join(f, &o, e)) return f;
    if (!f) kvc_fail_memory(e, "a file");
    kvc_file_close(f);
    return NULL;
}

struct kvc_file *kvc_file_join(const struct kvc_file *const *files, size_t n, const char *how,
                               struct kvc_error *e) {
    if (n && KVC_NULL(e, files)) return NULL;
    return kvc_file_join_by(files, n,
                            &(struct kvc_join_options){.size = sizeof(struct kvc_join_options),
                                                       .how = how},
                            e);
}

struct kvc_file *kvc_file_shard(const struct kvc_file *f, uint32_t rank, uint32_t ranks,
                                struct kvc_error *e) {
    if (KVC_NULL(e, f)) return NULL;
    struct kvc_file *shard = kvc_file_view(f, e);
    int left_out;
    if (!shard) return NULL;
    shard->rest = f->rest;
    if ((shard->cache = shard->opened.cache = kvc_view_shard(f->cache, rank, ranks, &left_out, e)))
        return shard;
    kvc_error_prefix(e, f->name);
    kvc_file_close(shard);
    return NULL;
}

/* kvc_write.c: implements the part of kvc.h on packing, unpacking and learning of profiles. The
 * work is done in formats/file. */
#include "formats/api/kvc.h"
#include "formats/api/kvc_file.h"
#include "formats/api/pack_by.h"
#include "formats/api/sized.h"
#include "formats/container/container.h"
#include "formats/file/given.h"
#include "formats/file/losses.h"
#include "formats/file/pack.h"
#include "formats/file/restore.h"
#include "formats/model/profile_learn.h"

#include <stdlib.h>
#include <string.h>

/* The caller's callbacks and their state. */
struct callback {
    kvc_write_fn *write;
    kvc_progress_fn *progress; /* NULL: none */
    void *state, *progress_state;
    /* bytes of output; total 0: unknown. Unused in packing, which counts tensor bytes */
    uint64_t total, done;
    int counts, cancelled;
};

static int cancel(struct callback *c, struct kvc_error *e) {
    c->cancelled = 1;
    return kvc_fail(e, KVC_ERR_IO, "cancelled by the caller");
}

static int call_back(void *state, const void *data, size_t n, struct kvc_error *e) {
    struct callback *c = state;
    if (c->cancelled) return cancel(c, e);
    if (c->write && c->write(c->state, data, n))
        return kvc_fail(e, KVC_ERR_IO, "the output was refused");
    c->done += n;
    return c->counts && c->progress && c->progress(c->progress_state, c->done, c->total)
               ? cancel(c, e)
               : 0;
}

static void pack_progress(void *state, uint64_t done, uint64_t total) {
    struct callback *c = state;
    /* the next write fails */
    if (!c->cancelled && c->progress(c->progress_state, done, total)) c->cancelled = 1;
}

/* --- packing --- */

static int write_pack(const struct kvc_file *f, const struct kvc_write_options *o,
                      struct callback *callback, struct kvc_packing *how, struct kvc_error *e) {
    struct kvc_sink sink = {.write = call_back, .state = callback};
    struct kvc_recipe recipe;
    struct kvc_packed done;
    if (o->recipe) {
        if (kvc_recipe_parse(o->recipe, &recipe, e)) return -1;
        how->options.recipe = &recipe;
    }
    if (o->shared_profile) how->options.profile = kvc_profile_hold(o->shared_profile);
    else if (o->profile && !(how->options.profile = kvc_given_profile(o->profile, e))) return -1;
    const int status = kvc_pack_cache(f->cache, how, &sink, &done, e);
    kvc_packed_free(&done);
    kvc_profile_free(how->options.profile);
    return status ? kvc_error_prefix(e, f->name) : 0;
}

int kvc_file_pack(const struct kvc_file *f, const struct kvc_write_options *options,
                  kvc_write_fn *write, void *state, struct kvc_error *e) {
    return kvc_file_pack_by(f, options, NULL, write, state, e);
}

int kvc_file_pack_by(const struct kvc_file *f, const struct kvc_write_options *options,
                     const struct kvc_block_coder *coder, kvc_write_fn *write, void *state,
                     struct kvc_error *e) {
    struct kvc_write_options o;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_write_options", e)) return -1;
    struct callback callback = {.write = write,
                                .state = state,
                                .progress = o.progress,
                                .progress_state = o.progress_state};
    struct kvc_packing how = {.options = {.threads = o.threads,
                                          .align = o.align,
                                          .no_verify = o.no_verify,
                                          .coder = coder,
                                          .embed_profile = o.embed_profile,
                                          .no_tokens = o.no_tokens,
                                          .weights = kvc_file_whole(f)->weights,
                                          .queries = o.queries ? o.queries->cache : NULL,
                                          .progress = o.progress ? pack_progress : NULL,
                                          .progress_state = &callback},
                              .rate = {.kld = o.target_kld,
                                       .ratio = o.target_ratio,
                                       .output_error = o.max_output_error,
                                       .logit_error = o.max_logit_error},
                              .force_profile = o.force_profile,
                              .dequantize = o.dequantize,
                              .no_companions = o.no_companions};
    return write_pack(f, &o, &callback, &how, e);
}

static int write_buffer(void *state, const void *data, size_t n) {
    struct kvc_sink *sink = state;
    return kvc_sink_write(sink, data, n, NULL);
}

int kvc_file_pack_memory(const struct kvc_file *f, const struct kvc_write_options *options,
                         void **data, size_t *size, struct kvc_error *e) {
    struct kvc_buffer buffer = {0};
    struct kvc_sink sink = kvc_sink_output(&buffer);
    const int status = kvc_file_pack(f, options, write_buffer, &sink, e);
    if (status) free(buffer.data);
    *data = status ? NULL : buffer.data;
    *size = status ? 0 : buffer.n;
    return status;
}

int kvc_file_pack_fd(const struct kvc_file *f, const struct kvc_write_options *options, int fd,
                     struct kvc_error *e) {
    struct kvc_sink sink = kvc_sink_fd(&fd);
    return kvc_file_pack(f, options, write_buffer, &sink, e);
}

/* --- unpacking --- */

/* Writes members, or where `members` is NULL one file. */
static int write_export(const struct kvc_file *f, const char *format,
                        const struct kvc_write_options *o, struct kvc_sink *out,
                        const struct kvc_member_sink *members, struct kvc_error *e) {
    const struct kvc_format *to = kvc_format_find(format);
    const char *colon = strchr(format, ':');
    struct kvc_export_options options = {.own = colon ? colon + 1 : NULL, .set = o->set};
    struct kvc_losses losses;
    if (!to || !kvc_format_is_written(to))
        return kvc_fail(e, KVC_ERR_USAGE, "no format '%s' can be written", format);
    if (members && !to->export_members)
        return kvc_fail(e, KVC_ERR_USAGE, "format %s is one file, which goes into no folder",
                        to->name);
    if (kvc_file_pairing(o->pairing, &options.pairing, e)) return -1;
    if (options.pairing && f->cache->meta.facts.rope.pairing == KVC_PAIRING_UNKNOWN)
        return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_PAIRING,
                             "the RoPE pairing of K is unknown, so K cannot be paired in %s",
                             o->pairing);
    kvc_losses_find(&losses, to, f->cache, &options, kvc_file_whole(f)->opened.has_model);
    if (!o->lossy_metadata && kvc_losses_refuse(&losses, e)) return -1;
    if (members ? kvc_export_members(to, f->cache, &options, members, e)
                : kvc_export(to, f->cache, &options, out, e))
        return -1;
    /* A whole read notices damage anywhere in a .kvc. */
    return kvc_cache_is_container(f->cache) ? kvc_container_check_rest(f->cache, e) : 0;
}

static uint64_t source_bytes(const struct kvc_cache *c) {
    uint64_t n = c->n_members ? 0 : kvc_source_size(c, 0);
    for (uint32_t i = 0; i < c->n_members; i++) n += kvc_source_size(c, i);
    return n;
}

/* Returns the caller's callbacks for unpacking. */
static struct callback callbacks(const struct kvc_file *f, const char *format,
                                 const struct kvc_write_options *o) {
    return (struct callback){.progress = o->progress,
                             .progress_state = o->progress_state,
                             .counts = 1,
                             .total = format ? 0 : source_bytes(f->cache)};
}

static int unpack(const struct kvc_file *f, const char *format, const struct kvc_write_options *o,
                  struct kvc_sink *out, struct kvc_error *e) {
    const int status = format ? write_export(f, format, o, out, NULL, e)
                              : kvc_source_write(f->cache, o->threads, out, e);
    return status ? kvc_error_prefix(e, f->name) : 0;
}

int kvc_file_unpack(const struct kvc_file *f, const char *format,
                    const struct kvc_write_options *options, kvc_write_fn *write, void *state,
                    struct kvc_error *e) {
    struct kvc_write_options o;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_write_options", e)) return -1;
    struct callback callback = callbacks(f, format, &o);
    struct kvc_sink sink = {.write = call_back, .state = &callback};
    callback.write = write;
    callback.state = state;
    return unpack(f, format, &o, &sink, e);
}

static int bytes_are_there(void *state, uint64_t offset, struct kvc_error *e) {
    struct callback *c = state;
    return c->progress(c->progress_state, offset, c->total) ? cancel(c, e) : 0;
}

int kvc_file_unpack_memory(const struct kvc_file *f, const char *format,
                           const struct kvc_write_options *options, void *data, size_t room,
                           size_t *size, struct kvc_error *e) {
    struct kvc_write_options o;
    *size = 0;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_write_options", e)) return -1;
    struct callback callback = callbacks(f, format, &o);
    struct kvc_sink sink = data ? kvc_sink_memory(data, room)
                                : (struct kvc_sink){.write = call_back};
    if (!data && !format && f->cache->n_extents && !f->cache->n_members) {
        *size = (size_t)callback.total;
        return 0;
    }
    sink.state = &callback;
    if (data && o.progress) sink.told = bytes_are_there;
    if (unpack(f, format, &o, &sink, e)) return -1;
    *size = (size_t)sink.offset;
    return 0;
}

/* Passes members on, and reports progress after each. */
struct heard {
    const struct kvc_member_sink *to;
    struct callback callback;
    uint64_t size; /* of the current member */
};

static int begin_member(void *state, const char *name, uint64_t size, struct kvc_error *e) {
    struct heard *h = state;
    h->size = size;
    return h->to->begin(h->to->state, name, size, e);
}

static int finish_member(void *state, struct kvc_error *e) {
    struct heard *h = state;
    struct callback *c = &h->callback;
    if (h->to->finish(h->to->state, e)) return -1;
    c->done += h->size;
    return c->progress && c->progress(c->progress_state, c->done, c->total) ? cancel(c, e) : 0;
}

int kvc_file_unpack_folder(const struct kvc_file *f, const char *format, const char *path,
                           const struct kvc_write_options *options, struct kvc_error *e) {
    struct kvc_write_options o;
    struct kvc_member_sink files;
    if (kvc_sized_take(&o, sizeof o, options, "kvc_write_options", e)) return -1;
    if (!format && !f->cache->n_members)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "%s: its source is one file, which goes into no folder", f->name);
    struct kvc_folder *folder = kvc_folder_open(path, &files, e);
    if (!folder) return -1;
    struct heard heard = {.to = &files,
                          .callback = {.progress = o.progress,
                                       .progress_state = o.progress_state,
                                       .total = format ? 0 : source_bytes(f->cache)}};
    const struct kvc_member_sink through = {.out = files.out,
                                            .begin = begin_member,
                                            .finish = finish_member,
                                            .state = &heard};
    int status = format ? write_export(f, format, &o, NULL, &through, e)
                        : kvc_source_write_members(f->cache, o.threads, &through, e);
    status = kvc_folder_close(folder, status, e);
    return status ? kvc_error_prefix(e, f->name) : 0;
}

/* --- profiles --- */

struct kvc_profile *kvc_shared_profile_open(const char *path, struct kvc_error *e) {
    return kvc_given_profile(path, e);
}

void kvc_shared_profile_close(struct kvc_profile *p) {
    kvc_profile_free(p);
}

struct kvc_learning {
    struct kvc_learner *learner;
};

struct kvc_learning *kvc_learning_new(struct kvc_error *e) {
    struct kvc_learning *l = calloc(1, sizeof *l);
    if (l && (l->learner = kvc_learner_new(e))) {
        kvc_learner_predict(l->learner, 1, NULL);
        return l;
    }
    if (!l) kvc_fail_memory(e, "a profile");
    free(l);
    return NULL;
}

void kvc_learning_free(struct kvc_learning *l) {
    if (l) kvc_learner_free(l->learner);
    free(l);
}

int kvc_learning_add(struct kvc_learning *l, const struct kvc_file *f, struct kvc_error *e) {
    return kvc_learner_add(l->learner, f->cache, e) ? kvc_error_prefix(e, f->name) : 0;
}

int kvc_learning_write(struct kvc_learning *l, kvc_write_fn *write, void *state,
                       struct kvc_error *e) {
    struct callback callback = {.write = write, .state = state};
    struct kvc_sink sink = {.write = call_back, .state = &callback};
    return kvc_learner_write(l->learner, &sink, e);
}

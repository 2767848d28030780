/* kvc_unpack.c: implements the part of kvc.h on unpacking: the source's own bytes, or another
 * layout. The work is done in formats/file and by the formats' exports. */
#include "formats/api/callback.h"
#include "formats/api/kvc.h"
#include "formats/api/kvc_file.h"
#include "formats/api/sized.h"
#include "formats/container/container.h"
#include "formats/file/blocks_write.h"
#include "formats/file/losses.h"
#include "formats/file/restore.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A file that is unpacked. */
struct unpacking {
    const struct kvc_file *f;
    struct kvc_write_options o;
    const struct kvc_format *to; /* NULL: the source's own bytes */
    int is_new;                  /* the source's own bytes were asked for, and are not there */
    struct kvc_export_options export;
    struct kvc_callback callback;
};

static void note(const struct unpacking *u, enum kvc_note number, const char *text) {
    if (u->o.note) u->o.note(u->o.note_state, number, u->f->name, text);
}

/* --- what is written --- */

static uint64_t source_bytes(const struct kvc_cache *c) {
    uint64_t n = c->n_members ? 0 : kvc_source_size(c, 0);
    for (uint32_t i = 0; i < c->n_members; i++) n += kvc_source_size(c, i);
    return n;
}

/* Chooses between the source's own bytes and a new file, for `nearest`. */
static void choose_nearest(struct unpacking *u, const char *format) {
    const struct kvc_cache *c = u->f->cache;
    const struct kvc_format *source = kvc_format_of_source(c), *given = u->to;
    const int is_written = given && given == source && !c->n_members;
    const int same = !given || (is_written && (!given->is_default || given->is_default(c)));
    /* what was said of the file is to stand in the one that was asked for by name */
    const int told = given && (u->f->of ? u->f->of->is_told : u->f->is_told);
    const int changes = told || u->f->is_part || u->o.blocks || u->o.pairing ||
                        (u->o.set && *u->o.set) || (format && strchr(format, ':'));
    u->to = given ? given : source;
    if (!same || changes) return;
    if (c->n_extents) u->to = NULL;
    else u->is_new = !given;
}

static int refuse_format(const struct unpacking *u, const char *format, struct kvc_error *e) {
    if (format) return kvc_fail(e, KVC_ERR_USAGE, "no format '%s' can be written", format);
    return kvc_fail_need(e, KVC_ERR_USAGE, KVC_NEED_FORMAT, "its source format cannot be written%s",
                         u->is_new || u->to ? " as a new file" : "");
}

/* Reads the options, and says what is to be written. Messages do not name the file. */
static int unpacking_begin(struct unpacking *u, const struct kvc_file *f, const char *format,
                           const struct kvc_write_options *options, struct kvc_error *e) {
    const char *colon = format ? strchr(format, ':') : NULL;
    *u = (struct unpacking){.f = f, .to = format ? kvc_format_find(format) : NULL};
    if (kvc_sized_take(&u->o, sizeof u->o, options, "kvc_write_options", e)) return -1;
    if (kvc_sized_check(u->o.report, "kvc_write_report", e)) return -1;
    u->export = (struct kvc_export_options){.own = colon ? colon + 1 : NULL, .set = u->o.set};
    if (kvc_file_pairing(u->o.pairing, &u->export.pairing, e)) return -1;
    if (format && (!u->to || !kvc_format_is_written(u->to))) return refuse_format(u, format, e);
    if (u->o.nearest) choose_nearest(u, format);
    u->callback = (struct kvc_callback){.put = u->o.put,
                                        .progress = u->o.progress,
                                        .progress_state = u->o.progress_state,
                                        .counts = 1,
                                        .total = u->to ? 0 : source_bytes(f->cache)};
    return 0;
}

int kvc_file_target(const struct kvc_file *f, const char *format,
                    const struct kvc_write_options *options, struct kvc_target_info *info,
                    struct kvc_error *e) {
    if (KVC_NULL(e, f, info)) return -1;
    struct unpacking u;
    if (unpacking_begin(&u, f, format, options, e)) return kvc_error_prefix(e, f->name);
    struct kvc_target_info own = {.format = u.to ? u.to->name : NULL,
                                  .suffix = u.to ? u.to->suffix : NULL,
                                  .members = u.o.blocks || (u.to ? u.to->export_members != NULL
                                                                 : f->cache->n_members != 0)};
    if (!u.to && !f->cache->n_members) own.bytes = kvc_source_size(f->cache, 0);
    else if (!f->is_part)
        for (uint32_t t = 0; t < f->cache->n_tensors; t++)
            own.bytes += kvc_tensor_bytes(&f->cache->tensor[t]);
    return kvc_sized_give(info, &own, sizeof own, "kvc_target_info", e);
}

/* --- what is lost --- */

/* Notes facts that the source does not state, and that another engine may therefore misread. */
static void note_unknown(const struct unpacking *u) {
    const struct kvc_facts *facts = &u->f->cache->meta.facts;
    if (facts->heads_unknown)
        note(u, KVC_NOTE_HEADS_UNKNOWN,
             "the number of KV heads is unknown, so all of a row is written as one head");
    if (!facts->tile_known[0] || !facts->tile_known[1])
        note(u, KVC_NOTE_ROTATION_KEPT,
             "whether the quantised K or V is Hadamard-rotated is unknown (llama.cpp before "
             "version 4 does not say), so it is written as it is");
    if (facts->rope.pairing == KVC_PAIRING_UNKNOWN)
        note(u, KVC_NOTE_PAIRING_UNKNOWN,
             "the RoPE pairing of K is unknown, so K is written as it is");
}

static unsigned count_snapshots(const struct kvc_cache *c) {
    unsigned n = 0;
    for (uint32_t i = 0; i < c->n_parts; i++) n += c->part[i].kind == KVC_PART_SNAPSHOT;
    return n;
}

/* Refuses a target that does not hold all of the cache, or notes what is left out. */
static int check_losses(const struct unpacking *u, struct kvc_error *e) {
    const struct kvc_file *whole = kvc_file_whole(u->f);
    const unsigned snapshots = count_snapshots(whole->cache);
    struct kvc_losses losses;
    char text[sizeof losses.lost + 16];
    kvc_losses_find(&losses, u->to, u->f->cache, &u->export, whole->opened.has_model);
    if (!u->o.lossy_metadata && kvc_losses_refuse(&losses, e)) return -1;
    snprintf(text, sizeof text, "%s: left out", losses.lost);
    if (*losses.lost) note(u, KVC_NOTE_LOST, text);
    if (*losses.casts) note(u, KVC_NOTE_CASTS, losses.casts);
    if (snapshots && !count_snapshots(u->f->cache)) { /* a range of tokens has none */
        snprintf(text, sizeof text,
                 "snapshots (%u) are not written; llama.cpp may process the prompt again",
                 snapshots);
        note(u, KVC_NOTE_SNAPSHOTS, text);
    }
    if (u->to->lacks & KVC_LACKS_UNKNOWNS) note_unknown(u);
    snprintf(text, sizeof text,
             "%s does not hold positions: only the names of the files tell their order",
             u->to->name);
    if (u->o.blocks && u->to->lacks & KVC_LACKS_POSITIONS) note(u, KVC_NOTE_NO_POSITIONS, text);
    return 0;
}

/* Notes why the source's file cannot be given back, as far as the container tells. */
static void note_new(const struct unpacking *u) {
    const struct kvc_cache *c = u->f->cache;
    char text[512];
    if (!c->tokens && (c->n_prefix_keys || c->meta.facts.had_tokens)) {
        note(u, KVC_NOTE_NEW_FILE_NO_TOKENS,
             "packed without its token ids, and so without the source file's own bytes: writing a "
             "file with equal values");
        return;
    }
    snprintf(text, sizeof text, "%s: writing a file with equal values",
             u->to && u->to->no_source ? u->to->no_source
                                       : "packed without the source file's own bytes");
    note(u, u->to && u->to->no_source ? KVC_NOTE_NEW_FILE_OF_FORMAT : KVC_NOTE_NEW_FILE, text);
}

/* --- writing --- */

/* Writes a new layout: members, or where `members` is NULL one file. */
static int write_new(const struct unpacking *u, struct kvc_sink *out,
                     const struct kvc_member_sink *members, struct kvc_error *e) {
    const struct kvc_cache *c = u->f->cache;
    if (u->is_new) note_new(u);
    if (!kvc_format_is_written(u->to)) return refuse_format(u, NULL, e);
    if (members && !u->o.blocks && !u->to->export_members)
        return kvc_fail(e, KVC_ERR_USAGE, "format %s is one file, which goes into no folder",
                        u->to->name);
    if (u->export.pairing && c->meta.facts.rope.pairing == KVC_PAIRING_UNKNOWN)
        return kvc_fail_need(e, KVC_ERR_UNSUPPORTED, KVC_NEED_PAIRING,
                             "the RoPE pairing of K is unknown, so K cannot be paired in %s",
                             u->o.pairing);
    if (check_losses(u, e)) return -1;
    if (u->o.blocks)
        return kvc_blocks_write(c, u->o.blocks, u->o.stem ? u->o.stem : "block", u->to, &u->export,
                                out, members, e);
    return members ? kvc_export_members(u->to, c, &u->export, members, e)
                   : kvc_export(u->to, c, &u->export, out, e);
}

static int write_target(const struct unpacking *u, struct kvc_sink *out,
                        const struct kvc_member_sink *members, struct kvc_error *e) {
    const struct kvc_cache *c = u->f->cache;
    int status;
    if (!u->to && u->o.nearest && !c->n_extents) return refuse_format(u, NULL, e);
    if (u->to) status = write_new(u, out, members, e);
    else if (members) status = kvc_source_write_members(c, u->o.threads, members, e);
    else status = kvc_source_write(c, u->o.threads, out, e);
    /* a read of everything finds damage anywhere in a .kvc */
    if (!status && u->f->rest) status = kvc_container_check_rest(u->f->rest, e);
    return status;
}

/* Reports what was written, or names the file in the message of a failure. */
static int unpacking_end(const struct unpacking *u, int status, uint64_t bytes,
                         struct kvc_error *e) {
    const struct kvc_write_report r = {.bytes = bytes};
    if (status) return kvc_error_prefix(e, u->f->name);
    return u->o.report ? kvc_sized_give(u->o.report, &r, sizeof r, "kvc_write_report", e) : 0;
}

static int unpack_to(const struct unpacking *u, struct kvc_sink *out, struct kvc_error *e) {
    const int status = write_target(u, out, NULL, e);
    return unpacking_end(u, status, out->offset, e);
}

int kvc_file_unpack(const struct kvc_file *f, const char *format,
                    const struct kvc_write_options *options, kvc_write_fn *write, void *state,
                    struct kvc_error *e) {
    if (KVC_NULL(e, f)) return -1;
    struct unpacking u;
    if (unpacking_begin(&u, f, format, options, e)) return kvc_error_prefix(e, f->name);
    if (!write && !u.o.put) return kvc_null_function(e, __func__, "write");
    struct kvc_sink sink = kvc_callback_sink(&u.callback);
    u.callback.write = write;
    u.callback.state = state;
    return unpack_to(&u, &sink, e);
}

static int bytes_are_there(void *state, uint64_t offset, struct kvc_error *e) {
    return kvc_callback_progress(state, offset, e);
}

int kvc_file_unpack_memory(const struct kvc_file *f, const char *format,
                           const struct kvc_write_options *options, void *data, size_t room,
                           size_t *size, struct kvc_error *e) {
    if (KVC_NULL(e, f, size)) return -1;
    struct unpacking u;
    *size = 0;
    if (unpacking_begin(&u, f, format, options, e)) return kvc_error_prefix(e, f->name);
    if (!data && !u.to && f->cache->n_extents && !f->cache->n_members) {
        *size = (size_t)u.callback.total;
        return 0;
    }
    u.callback.put = NULL;
    struct kvc_sink sink = data ? kvc_sink_memory(data, room) : kvc_callback_sink(&u.callback);
    sink.state = &u.callback;
    if (data && u.o.progress) sink.told = bytes_are_there;
    if (unpack_to(&u, &sink, e)) return -1;
    *size = (size_t)sink.offset;
    return 0;
}

/* Passes members on, and reports progress after each. */
struct heard {
    const struct kvc_member_sink *to;
    struct kvc_callback *callback;
    uint64_t size; /* of the current member */
};

static int begin_member(void *state, const char *name, uint64_t size, struct kvc_error *e) {
    struct heard *h = state;
    h->size = size;
    return h->to->begin(h->to->state, name, size, e);
}

static int finish_member(void *state, struct kvc_error *e) {
    struct heard *h = state;
    if (h->to->finish(h->to->state, e)) return -1;
    return kvc_callback_progress(h->callback, h->callback->done + h->size, e);
}

int kvc_file_unpack_folder(const struct kvc_file *f, const char *format, const char *path,
                           const struct kvc_write_options *options, struct kvc_error *e) {
    if (KVC_NULL(e, f, path)) return -1;
    struct unpacking u;
    struct kvc_member_sink files;
    if (unpacking_begin(&u, f, format, options, e)) return kvc_error_prefix(e, f->name);
    if (!u.to && !f->cache->n_members)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "%s: its source is one file, which goes into no folder", f->name);
    struct kvc_folder *folder = kvc_folder_open(path, &files, e);
    if (!folder) return -1;
    struct heard heard = {.to = &files, .callback = &u.callback};
    const struct kvc_member_sink through = {.out = files.out,
                                            .begin = begin_member,
                                            .finish = finish_member,
                                            .state = &heard};
    const int status = write_target(&u, NULL, &through, e);
    const uint64_t bytes = files.out->offset; /* the sink is gone after closing */
    return unpacking_end(&u, kvc_folder_close(folder, status, e), bytes, e);
}

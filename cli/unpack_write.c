/* unpack_write.c: kvc-unpack's output, one file or several: the source's own, or a new one of a
 * format. Not for damaged containers (unpack_salvage.c). */
#include "cli/unpack.h"

#include "formats/cache/facts.h"
#include "formats/cache/join.h"
#include "formats/container/container.h"
#include "formats/file/losses.h"
#include "formats/file/restore.h"

/* Warns of facts that the source does not state, and that another engine may therefore misread. */
static void warn_unknown(const struct kvc_opened *f) {
    const struct kvc_facts *facts = &f->cache->meta.facts;
    if (facts->heads_unknown)
        cli_warn("%s: the number of KV heads is unknown, so all of a row is written as one head; "
                 "give --model or "
                 "--kv-heads",
                 f->input.name);
    if (!facts->tile_known[0] || !facts->tile_known[1])
        cli_warn("%s: whether the quantised K or V is Hadamard-rotated is unknown (llama.cpp "
                 "before version 4 does not "
                 "say), so it is written as it is",
                 f->input.name);
    if (facts->rope.pairing == KVC_PAIRING_UNKNOWN)
        cli_warn("%s: the RoPE pairing of K is unknown, so K is written as it is; give --model or "
                 "--pairing",
                 f->input.name);
}

static unsigned count_checkpoints(const struct kvc_cache *c) {
    unsigned n = 0;
    for (uint32_t i = 0; i < c->n_parts; i++) n += c->part[i].kind == KVC_PART_CHECKPOINT;
    return n;
}

int unpack_check_rest(const struct kvc_opened *f, struct kvc_error *e) {
    return kvc_cache_is_container(f->cache) ? kvc_container_check_rest(f->cache, e) : 0;
}

/* Refuses a target that does not hold all of the cache, or says what is left out. `c` is the cache,
 * or what was selected of it. */
static int check_losses(const struct cli_unpack *u, const struct kvc_format *to,
                        const struct kvc_opened *f, const struct kvc_cache *c,
                        const struct kvc_export_options *o, struct kvc_error *e) {
    struct kvc_losses losses;
    const unsigned checkpoints = count_checkpoints(f->cache);
    kvc_losses_find(&losses, to, c, o, f->has_model);
    if (!u->lossy_metadata && kvc_losses_refuse(&losses, e)) return -1;
    if (u->job.input.quiet) return 0;
    if (*losses.lost) cli_warn("%s: %s: left out", f->input.name, losses.lost);
    if (*losses.casts) cli_warn("%s: %s", f->input.name, losses.casts);
    if (checkpoints && !count_checkpoints(c)) /* a range of tokens has none */
        cli_warn(
            "%s: server checkpoints (%u) are not written; llama.cpp may process the prompt again",
            f->input.name, checkpoints);
    if (to->lacks & KVC_LACKS_UNKNOWNS) warn_unknown(f);
    return 0;
}

/* Returns why the source's file cannot be returned, as far as the container tells. */
static const char *why_new(const struct kvc_cache *c) {
    const struct kvc_format *source = kvc_format_of_source(c);
    if (!c->tokens && (c->n_prefix_keys || c->meta.facts.had_tokens))
        return "packed without its token ids (--no-tokens), and so without the source file's own "
               "bytes";
    if (source && source->no_source) return source->no_source;
    return "packed without the source file's own bytes (with --join, --tokens, --layers, "
           "--dequantize, --no-tokens or "
           "--companions=no)";
}

int unpack_wants_source(const struct cli_unpack *u, const struct kvc_cache *c) {
    const int is_written = u->to && u->to == kvc_format_of_source(c) && !c->n_members;
    const int same = !u->to || (is_written && (!u->to->is_default || u->to->is_default(c)));
    return same && !u->part.given && !u->blocks && !u->ranks && !u->export.pairing &&
           !u->settings.n;
}

const struct kvc_format *unpack_target(const struct cli_unpack *u, const struct kvc_cache *c) {
    if (unpack_wants_source(u, c) && c->n_extents) return NULL;
    return u->to ? u->to : kvc_format_of_source(c);
}

/* Writes what is selected of `c`. */
static int write_selected(const struct cli_unpack *u, const struct kvc_opened *f,
                          const struct kvc_cache *c, struct kvc_sink *out,
                          const struct kvc_member_sink *members, struct kvc_error *e) {
    const struct kvc_format *to = unpack_target(u, c);
    struct kvc_export_options options = u->export;
    options.set = u->settings.item;
    if (u->blocks) {
        if (check_losses(u, to, f, c, &options, e)) return -1;
        if (to->lacks & KVC_LACKS_POSITIONS && !u->job.input.quiet)
            cli_warn("%s: %s does not hold positions: only the names of the files tell their order",
                     f->input.name, to->name);
        return unpack_write_blocks(u, c, &options, out, members, e);
    }
    struct kvc_cache *view = u->part.given ? kvc_view_select(c, &u->part.selection, e) : NULL;
    if (u->part.given && !view) return -1;
    const struct kvc_cache *from = view ? view : c;
    int status = check_losses(u, to, f, from, &options, e);
    if (!status)
        status = members ? kvc_export_members(to, from, &options, members, e)
                         : kvc_export(to, from, &options, out, e);
    kvc_cache_free(view);
    return status;
}

/* Writes the KV heads of one rank. */
static int write_shard(const struct cli_unpack *u, const struct kvc_opened *f,
                       const struct kvc_cache *c, struct kvc_sink *out,
                       const struct kvc_member_sink *members, struct kvc_error *e) {
    int left_out;
    struct kvc_cache *shard = kvc_view_shard(c, u->rank, u->ranks, &left_out, e);
    if (!shard) return -1;
    if (left_out && !u->job.input.quiet)
        cli_warn("%s: without queries and hidden states, which are not divided by heads",
                 f->input.name);
    const int status = write_selected(u, f, shard, out, members, e);
    kvc_cache_free(shard);
    return status;
}

/* Writes a new layout: members, or where `members` is NULL one file. */
static int write_new(const struct cli_unpack *u, const struct kvc_opened *f,
                     const struct kvc_cache *c, struct kvc_sink *out,
                     const struct kvc_member_sink *members, struct kvc_error *e) {
    const struct kvc_format *to = unpack_target(u, c);
    if (unpack_wants_source(u, c) && !u->to && !u->job.input.quiet)
        cli_warn("%s: %s: writing a file with equal values", f->input.name, why_new(c));
    if (!to || !kvc_format_is_written(to))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "its source format cannot be written as a new file: use --to=FORMAT");
    const int status = u->ranks ? write_shard(u, f, c, out, members, e)
                                : write_selected(u, f, c, out, members, e);
    /* without a selection this is a read of everything, and must find damage anywhere in a .kvc */
    if (status || (!u->part.given && unpack_check_rest(f, e))) return -1;
    return 0;
}

int unpack_write(const struct cli_unpack *u, const struct kvc_opened *f, const struct kvc_cache *c,
                 struct kvc_sink *out, struct kvc_error *e) {
    if (!unpack_wants_source(u, c) || !c->n_extents) return write_new(u, f, c, out, NULL, e);
    if (kvc_source_write(c, u->job.threads, out, e) || unpack_check_rest(f, e)) return -1;
    return 0;
}

int unpack_write_members(const struct cli_unpack *u, const struct kvc_opened *f,
                         const struct kvc_member_sink *out, struct kvc_error *e) {
    const struct kvc_cache *c = f->cache;
    if (!unpack_wants_source(u, c) || !c->n_extents) return write_new(u, f, c, NULL, out, e);
    if (kvc_source_write_members(c, u->job.threads, out, e)) return -1;
    if (unpack_check_rest(f, e)) return -1;
    return 0;
}

/* unpack_write.c: kvc-unpack's output, one file or several: the source's own, or a new one of a format. Not for damaged containers
 * (unpack_salvage.c). */
#include "cli/unpack.h"

#include "formats/cache/facts.h"
#include "formats/cache/join.h"
#include "formats/container/container.h"
#include "formats/file/restore.h"

/* Warns of facts that the source does not state, and that another engine may therefore misread. */
static void warn_unknown(const struct kvc_opened *f) {
    const struct kvc_facts facts = kvc_facts_of(&f->cache->meta);
    if (!facts.heads_known)
        cli_warn("%s: the number of KV heads is unknown, so all of a row is written as one head; give --model or "
                 "--kv-heads",
                 f->input.name);
    if (!facts.tile_known[0] || !facts.tile_known[1])
        cli_warn("%s: whether the quantised K or V is Hadamard-rotated is unknown (llama.cpp before version 4 does not "
                 "say), so it is written as it is",
                 f->input.name);
    if (facts.pairing == KVC_PAIRING_UNKNOWN)
        cli_warn("%s: the RoPE pairing of K is unknown, so K is written as it is; give --model or --pairing", f->input.name);
}

static void warn_positions(const struct kvc_format *to, const struct kvc_cache *c, const char *name) {
    const struct kvc_cells *cells = c->n_parts ? &c->part[0].cells : NULL;
    if (!cells || !cells->n) return;
    if (kvc_cells_position(cells, 0) == 0 && kvc_cells_position(cells, cells->n - 1) == (int64_t)cells->n - 1) return;
    cli_warn("%s: %s does not hold positions, and these are not 0, 1, 2, ...", name, to->name);
}

static void warn_checkpoints(const struct kvc_opened *f) {
    unsigned n = 0;
    for (uint32_t i = 0; i < f->cache->n_parts; i++) n += f->cache->part[i].kind == KVC_PART_CHECKPOINT;
    if (n) cli_warn("%s: server checkpoints (%u) are not written; llama.cpp may process the prompt again", f->input.name, n);
}

int unpack_check_rest(const struct kvc_opened *f, struct kvc_error *e) {
    return kvc_cache_is_container(f->cache) ? kvc_container_check_rest(f->cache, e) : 0;
}

/* Warns of what is in a cache and not in the file that is written. `c` is the cache, or what was selected of it. */
static void warn_of_lacks(const struct kvc_format *to, const struct kvc_opened *f, const struct kvc_cache *c) {
    if (to->lacks & KVC_LACKS_CHECKPOINTS) warn_checkpoints(f);
    if (to->lacks & KVC_LACKS_UNKNOWNS) warn_unknown(f);
    if (to->lacks & KVC_LACKS_POSITIONS) warn_positions(to, c, f->input.name);
}

/* The same for a cache that is written as blocks, once for all of them. */
static void warn_of_blocks(const struct kvc_format *to, const struct kvc_opened *f) {
    if (to->lacks & KVC_LACKS_CHECKPOINTS) warn_checkpoints(f);
    if (to->lacks & KVC_LACKS_UNKNOWNS) warn_unknown(f);
    if (to->lacks & KVC_LACKS_POSITIONS)
        cli_warn("%s: %s does not hold positions: only the names of the files tell their order", f->input.name, to->name);
}

/* Returns why the source's file cannot be returned, as far as the container tells. */
static const char *why_new(const struct kvc_cache *c) {
    const struct kvc_format *source = kvc_format_of_source(c);
    if (!c->tokens && (c->n_prefix_keys || kvc_facts_of(&c->meta).had_tokens))
        return "packed without its token ids (--no-tokens), and so without the source file's own bytes";
    if (source && source->no_source) return source->no_source;
    return "packed without the source file's own bytes (with --join, --dequantize, --no-tokens or --companions=no)";
}

int unpack_wants_source(const struct cli_unpack *u, const struct kvc_cache *c) {
    const int same = !u->to || (u->to == kvc_format_of_source(c) && !c->n_members);
    return same && !u->selects && !u->blocks && !u->ranks && !u->export.pairing && !u->settings.n;
}

const struct kvc_format *unpack_target(const struct cli_unpack *u, const struct kvc_cache *c) {
    if (unpack_wants_source(u, c) && c->n_extents) return NULL;
    return u->to ? u->to : kvc_format_of_source(c);
}

/* Writes what is selected of `c`. */
static int write_selected(const struct cli_unpack *u, const struct kvc_opened *f, const struct kvc_cache *c, struct kvc_sink *out,
                          const struct kvc_member_sink *members, struct kvc_error *e) {
    const struct kvc_format *to = unpack_target(u, c);
    struct kvc_export_options options = u->export;
    options.set = u->settings.item;
    if (u->blocks) return unpack_write_blocks(u, c, &options, out, members, e);
    struct kvc_cache *view = u->selects ? kvc_view_select(c, &u->selection, e) : NULL;
    if (u->selects && !view) return -1;
    const struct kvc_cache *from = view ? view : c;
    if (!u->job.input.quiet) warn_of_lacks(to, f, from);
    const int status = members ? kvc_export_members(to, from, &options, members, e) : kvc_export(to, from, &options, out, e);
    kvc_cache_free(view);
    return status;
}

/* Writes the KV heads of one rank. */
static int write_shard(const struct cli_unpack *u, const struct kvc_opened *f, const struct kvc_cache *c, struct kvc_sink *out,
                       const struct kvc_member_sink *members, struct kvc_error *e) {
    int left_out;
    struct kvc_cache *shard = kvc_view_shard(c, u->rank, u->ranks, &left_out, e);
    if (!shard) return -1;
    if (left_out && !u->job.input.quiet)
        cli_warn("%s: without queries and hidden states, which are not divided by heads", f->input.name);
    const int status = write_selected(u, f, shard, out, members, e);
    kvc_cache_free(shard);
    return status;
}

/* Writes a new layout: members, or where `members` is NULL one file. */
static int write_new(const struct cli_unpack *u, const struct kvc_opened *f, const struct kvc_cache *c, struct kvc_sink *out,
                     const struct kvc_member_sink *members, struct kvc_error *e) {
    const struct kvc_format *to = unpack_target(u, c);
    if (unpack_wants_source(u, c) && !u->to && !u->job.input.quiet)
        cli_warn("%s: %s: writing a file with equal values", f->input.name, why_new(c));
    if (!to || !kvc_format_is_written(to))
        return kvc_fail(e, KVC_ERR_USAGE, "its source format cannot be written as a new file: use --to=FORMAT");
    if (u->blocks && !u->job.input.quiet) warn_of_blocks(to, f);
    const int status = u->ranks ? write_shard(u, f, c, out, members, e) : write_selected(u, f, c, out, members, e);
    /* without a selection this is a read of everything, and must find damage anywhere in a .kvc */
    return status || (!u->selects && unpack_check_rest(f, e)) ? -1 : 0;
}

int unpack_write(const struct cli_unpack *u, const struct kvc_opened *f, const struct kvc_cache *c, struct kvc_sink *out,
                 struct kvc_error *e) {
    if (!unpack_wants_source(u, c) || !c->n_extents) return write_new(u, f, c, out, NULL, e);
    return kvc_source_write(c, u->job.threads, out, e) || unpack_check_rest(f, e) ? -1 : 0;
}

int unpack_write_members(const struct cli_unpack *u, const struct kvc_opened *f, const struct kvc_member_sink *out,
                         struct kvc_error *e) {
    const struct kvc_cache *c = f->cache;
    if (!unpack_wants_source(u, c) || !c->n_extents) return write_new(u, f, c, NULL, out, e);
    return kvc_source_write_members(c, u->job.threads, out, e) || unpack_check_rest(f, e) ? -1 : 0;
}

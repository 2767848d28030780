/* unpack_blocks.c: kvc-unpack --blocks: writes a cache as files of some tokens each. Not for the
 * layout of a file (the formats' exports). */
#include "cli/unpack.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int unpack_check_dividing(const struct cli_unpack *u) {
    const char *option = u->blocks ? "--blocks" : "--shard";
    if (!u->blocks && !u->ranks) return 0;
    if (u->salvage) return cli_usage("%s and --salvage exclude each other", option);
    if (!u->to)
        return cli_usage("%s needs --to=FORMAT; kvc-pack packs the files that are written", option);
    if (u->blocks && !u->job.output && !u->job.to_stdout && !u->job.test)
        return cli_usage("--blocks needs -o FOLDER, -o FILE.tar or -c");
    return 0;
}

/* An output of several blocks. Members of a block that consists of several files go to a folder of
 * their own. */
struct blocks {
    const struct kvc_format *to;
    const struct kvc_export_options *options;
    const struct kvc_member_sink *out;
    int needs_sizes; /* a member's size must be known when it begins */
    const char *stem;
    int stem_length, digits;
    char *name; /* of the current block */
};

static int begin_member(void *state, const char *name, uint64_t size, struct kvc_error *e) {
    const struct blocks *b = state;
    char *path;
    if (asprintf(&path, "%s/%s", b->name, name) < 0) return kvc_fail_memory(e, "a name");
    const int status = b->out->begin(b->out->state, path, size, e);
    free(path);
    return status;
}

static int finish_member(void *state, struct kvc_error *e) {
    const struct blocks *b = state;
    return b->out->finish(b->out->state, e);
}

static int discard(void *state, const void *data, size_t n, struct kvc_error *e) {
    (void)state, (void)data, (void)n, (void)e;
    return 0;
}

/* Writes a block as one file. Its size is found by writing it to nowhere first, so that no block
 * has to fit into memory. */
static int unpack_blocks_write_file(const struct blocks *b, const struct kvc_cache *block,
                                    struct kvc_error *e) {
    struct kvc_sink nowhere = {.write = discard};
    if (b->needs_sizes && kvc_export(b->to, block, b->options, &nowhere, e)) return -1;
    if (b->out->begin(b->out->state, b->name, nowhere.offset, e)) return -1;
    if (kvc_export(b->to, block, b->options, b->out->out, e)) return -1;
    if (b->out->finish(b->out->state, e)) return -1;
    return 0;
}

static int write_block(struct blocks *b, const struct kvc_cache *block, int64_t first,
                       struct kvc_error *e) {
    const char *suffix = b->to->export_members ? "" : b->to->suffix;
    if (asprintf(&b->name, "%.*s-%0*" PRId64 "%s", b->stem_length, b->stem, b->digits, first,
                 suffix) < 0)
        return kvc_fail_memory(e, "a name");
    const struct kvc_member_sink below = {.out = b->out->out,
                                          .begin = begin_member,
                                          .finish = finish_member,
                                          .state = b};
    const int status = b->to->export_members
                           ? kvc_export_members(b->to, block, b->options, &below, e)
                           : unpack_blocks_write_file(b, block, e);
    if (status) kvc_error_prefix(e, b->name);
    free(b->name);
    return status;
}

/* Cuts the selected positions into blocks, of which those without rows are left out. */
static int write_all(struct blocks *b, const struct cli_unpack *u, const struct kvc_cache *c,
                     struct kvc_error *e) {
    const struct kvc_cells *cells = c->n_parts ? &c->part[0].cells : NULL;
    if (!cells || !cells->n) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "has no tokens");
    int64_t first = kvc_cells_position(cells, 0), last = kvc_cells_position(cells, cells->n - 1);
    if (first < 0)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "has cells at position %" PRId64 ", which is in no block", first);
    if (u->part.selection.end && first < (int64_t)u->part.selection.first)
        first = (int64_t)u->part.selection.first;
    if (u->part.selection.end && (uint64_t)last >= u->part.selection.end)
        last = (int64_t)u->part.selection.end - 1;
    if (first > last) return kvc_fail(e, KVC_ERR_USAGE, "has no tokens in the range");
    b->digits = snprintf(NULL, 0, "%07" PRId64, last);
    for (int64_t end; first <= last; first = end) {
        struct kvc_selection s = u->part.selection;
        end = last - first < (int64_t)u->blocks ? last + 1 : first + (int64_t)u->blocks;
        if (kvc_cells_row_from(cells, first) == kvc_cells_row_from(cells, end)) continue;
        s.first = (uint64_t)first;
        s.end = (uint64_t)end;
        struct kvc_cache *block = kvc_view_select(c, &s, e);
        const int status = block ? write_block(b, block, first, e) : -1;
        kvc_cache_free(block);
        if (status) return -1;
    }
    return 0;
}

/* Takes the name of the output, without folders and .tar, as the stem of the names of its files. */
static void name_stem(struct blocks *b, const char *output) {
    size_t n = output ? strlen(output) : 0;
    while (n > 1 && output[n - 1] == '/') n--;
    size_t begin = n;
    while (begin && output[begin - 1] != '/') begin--;
    if (n - begin > 4 && memcmp(output + n - 4, ".tar", 4) == 0) n -= 4;
    b->stem = n > begin ? output + begin : "block";
    b->stem_length = n > begin ? (int)(n - begin) : (int)strlen(b->stem);
}

int unpack_write_blocks(const struct cli_unpack *u, const struct kvc_cache *c,
                        const struct kvc_export_options *options, struct kvc_sink *out,
                        const struct kvc_member_sink *members, struct kvc_error *e) {
    struct blocks b = {.to = u->to, .options = options, .out = members};
    struct kvc_member_sink archive;
    name_stem(&b, u->job.output);
    if (members) return write_all(&b, u, c, e);
    struct kvc_tar *tar = kvc_tar_open(out, &archive, e);
    b.out = &archive;
    b.needs_sizes = 1;
    return tar ? kvc_tar_close(tar, write_all(&b, u, c, e), e) : -1;
}

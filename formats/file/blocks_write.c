/* blocks_write.c: writes a cache as files of some tokens each. Not for the layout of a file (the
 * formats' exports). */
#include "formats/file/blocks_write.h"

#include "formats/cache/view.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An output of several blocks. Members of a block that consists of several files go to a folder of
 * their own. */
struct blocks {
    const struct kvc_format *to;
    const struct kvc_export_options *options;
    const struct kvc_member_sink *out;
    int needs_sizes; /* a member's size must be known when it begins */
    const char *stem;
    int digits;
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
static int write_file(const struct blocks *b, const struct kvc_cache *block, struct kvc_error *e) {
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
    if (asprintf(&b->name, "%s-%0*" PRId64 "%s", b->stem, b->digits, first, suffix) < 0)
        return kvc_fail_memory(e, "a name");
    const struct kvc_member_sink below = {.out = b->out->out,
                                          .begin = begin_member,
                                          .finish = finish_member,
                                          .state = b};
    const int status = b->to->export_members
                           ? kvc_export_members(b->to, block, b->options, &below, e)
                           : write_file(b, block, e);
    if (status) kvc_error_prefix(e, b->name);
    free(b->name);
    return status;
}

/* Cuts the positions into blocks of n, of which those without rows are left out. */
static int write_all(struct blocks *b, uint64_t n, const struct kvc_cache *c, struct kvc_error *e) {
    const struct kvc_cells *cells = c->n_parts ? &c->part[0].cells : NULL;
    if (!cells || !cells->n) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "has no tokens");
    int64_t first = kvc_cells_position(cells, 0), last = kvc_cells_position(cells, cells->n - 1);
    if (first < 0)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "has cells at position %" PRId64 ", which is in no block", first);
    b->digits = snprintf(NULL, 0, "%07" PRId64, last);
    for (int64_t end; first <= last; first = end) {
        struct kvc_selection s = {.first = (uint64_t)first};
        end = (uint64_t)(last - first) < n ? last + 1 : first + (int64_t)n;
        s.end = (uint64_t)end;
        if (kvc_cells_row_from(cells, first) == kvc_cells_row_from(cells, end)) continue;
        struct kvc_cache *block = kvc_view_select(c, &s, e);
        const int status = block ? write_block(b, block, first, e) : -1;
        kvc_cache_free(block);
        if (status) return -1;
    }
    return 0;
}

int kvc_blocks_write(const struct kvc_cache *c, uint64_t n, const char *stem,
                     const struct kvc_format *to, const struct kvc_export_options *options,
                     struct kvc_sink *out, const struct kvc_member_sink *members,
                     struct kvc_error *e) {
    struct blocks b = {.to = to, .options = options, .out = members, .stem = stem};
    struct kvc_member_sink archive;
    if (members) return write_all(&b, n, c, e);
    struct kvc_tar *tar = kvc_tar_open(out, &archive, e);
    b.out = &archive;
    b.needs_sizes = 1;
    return tar ? kvc_tar_close(tar, write_all(&b, n, c, e), e) : -1;
}

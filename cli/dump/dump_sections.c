/* dump_sections.c: kvc-dump --sections: prints the place of every byte of a file. Not for contents
 * of sections. */
#include "cli/dump/dump.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The number of sections in a record has 16 bits. */
#define MAX_SECTIONS 65536

static void section_rows(struct dump_out *o, const struct kvc_piece_info *info,
                         const struct kvc_piece_section *section,
                         struct dump_section_sizes *sizes) {
    static const struct dump_column columns[] = {{"section", 7},  {"type", -10}, {"coder", -6},
                                                 {"stage", 5},    {"index", 5},  {"stored", 11},
                                                 {"decoded", 11}, {NULL, 0}};
    dump_table(o, "sections", "section", columns);
    for (unsigned i = 0; i < info->sections && i < MAX_SECTIONS; i++) {
        const struct kvc_piece_section *s = &section[i];
        dump_row(o);
        dump_u64(o, i);
        dump_text(o, s->type);
        dump_text(o, s->coder);
        if (s->stage < 0) dump_none(o);
        else dump_u64(o, (uint64_t)s->stage);
        dump_u64(o, s->index);
        dump_u64(o, s->stored);
        dump_u64(o, s->decoded);
        dump_row_end(o);
        dump_count_section(sizes, s->type ? s->type : "-", s->stored);
    }
    dump_table_end(o);
}

static int record_row(struct dump_out *o, const struct dump_file *f, uint64_t i,
                      struct kvc_piece_section *section, struct dump_section_sizes *sizes,
                      struct kvc_error *e) {
    struct kvc_piece_info info = {.size = sizeof info};
    if (kvc_file_piece(f->cache, i, &info, section, MAX_SECTIONS, e)) return -1;
    dump_row(o);
    dump_u64(o, i);
    dump_text(o, info.kind);
    if (info.tensor == KVC_NO_NUMBER) {
        dump_none(o);
        dump_none(o);
        dump_none(o);
    } else {
        dump_text(o, f->tensor[info.tensor].more.label);
        dump_u64(o, info.block);
        dump_u64(o, info.rows);
    }
    dump_u64(o, info.offset);
    dump_u64(o, info.bytes);
    dump_hash(o, info.check);
    if (info.has_digest) dump_hash(o, info.digest);
    else dump_none(o);
    section_rows(o, &info, section, sizes);
    dump_row_end(o);
    return 0;
}

static int container_sections(struct dump_out *o, const struct dump_file *f, struct kvc_error *e) {
    static const struct dump_column columns[] = {{"record", 7}, {"type", -7},   {"tensor", -20},
                                                 {"block", 5},  {"rows", 4},    {"offset", 12},
                                                 {"size", 11},  {"check", -16}, {"digest", -16},
                                                 {NULL, 0}};
    struct kvc_piece_section *section = calloc(MAX_SECTIONS, sizeof *section);
    if (!section) return cli_no_memory(e, "a list of sections");
    section->size = sizeof *section;
    dump_begin(o, f->source.name);
    dump_table(o, "records", "record", columns);
    struct dump_section_sizes sizes = {.n = 0};
    int status = 0;
    for (uint64_t i = 0; i < f->facts.pieces && !status; i++)
        status = record_row(o, f, i, section, &sizes, e);
    dump_table_end(o);
    if (!status) dump_draw_sections(o, &sizes);
    free(section);
    return status;
}

static int source_layout(struct dump_out *o, const struct dump_file *f, struct kvc_error *e) {
    static const struct dump_column columns[] = {
        {"extent", 7}, {"offset", 12}, {"size", 12}, {"holds", -20}, {NULL, 0}};
    uint64_t offset = 0;
    if (!f->facts.pieces)
        return kvc_error_set(e, KVC_ERR_UNSUPPORTED, KVC_NEED_NOTHING,
                             "has no plain layout to list: its arrays are compressed or "
                             "rearranged");
    dump_begin(o, f->source.name);
    dump_table(o, "extents", "extent", columns);
    for (uint64_t i = 0; i < f->facts.pieces; i++) {
        struct kvc_piece_info x = {.size = sizeof x};
        char label[128];
        if (kvc_file_piece(f->cache, i, &x, NULL, 0, e)) return -1;
        dump_row(o);
        dump_u64(o, i);
        dump_u64(o, offset);
        dump_u64(o, x.bytes);
        dump_text(o, dump_piece_text(f, &x, label, sizeof label));
        dump_row_end(o);
        offset += x.bytes;
    }
    dump_table_end(o);
    return 0;
}

const char *dump_piece_text(const struct dump_file *f, const struct kvc_piece_info *x, char *text,
                            size_t size) {
    if (x->tensor != KVC_NO_NUMBER) return f->tensor[x->tensor].more.label;
    if (!x->places) return x->kind;
    snprintf(text, size, "region of %" PRIu64 " places", x->places);
    return text;
}

int dump_sections(struct dump_out *o, const struct dump_file *f, struct dump_options *options,
                  struct kvc_error *e) {
    (void)options;
    return f->source.packed ? container_sections(o, f, e) : source_layout(o, f, e);
}

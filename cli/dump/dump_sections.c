/* dump_sections.c: kvc-dump --sections: prints the place of every byte of a file. Not for contents
 * of sections. */
#include "cli/dump/dump.h"

#include "formats/cache/extents.h"
#include "codecs/memory.h"
#include "formats/container/container.h"

#include <inttypes.h>
#include <stdlib.h>

/* The number of sections in a record has 16 bits. */
#define MAX_SECTIONS 65536

static void section_rows(struct dump_out *o, const struct kvc_record_info *info,
                         const struct kvc_section *section) {
    static const struct dump_column columns[] = {{"section", 7},  {"type", -10}, {"coder", -6},
                                                 {"stage", 5},    {"index", 5},  {"stored", 11},
                                                 {"decoded", 11}, {NULL, 0}};
    dump_table(o, "sections", "section", columns);
    for (unsigned i = 0; i < info->n_sections && i < MAX_SECTIONS; i++) {
        const struct kvc_section *s = &section[i];
        dump_row(o);
        dump_u64(o, i);
        dump_text(o, kvc_section_name(s->type));
        dump_text(o, kvc_coder_name(s->coder));
        if (s->stage == KVC_NO_STAGE) dump_none(o);
        else dump_u64(o, s->stage);
        dump_u64(o, s->index);
        dump_u64(o, s->size);
        dump_u64(o, s->raw_size);
        dump_row_end(o);
    }
    dump_table_end(o);
}

static int record_rows(struct dump_out *o, const struct kvc_cache *c, struct kvc_section *section,
                       struct dump_section_sizes *sizes, struct kvc_error *e) {
    for (uint64_t i = 0; i < kvc_container_records(c); i++) {
        struct kvc_record_info info;
        char label[128];
        if (kvc_container_record(c, i, &info, section, MAX_SECTIONS, e)) return -1;
        dump_row(o);
        dump_u64(o, i);
        dump_text(o, kvc_record_name(info.type));
        if (info.tensor == KVC_NONE) {
            dump_none(o);
            dump_none(o);
            dump_none(o);
        } else {
            kvc_tensor_label(c, info.tensor, label, sizeof label);
            dump_text(o, label);
            dump_u64(o, info.block);
            dump_u64(o, info.rows);
        }
        dump_u64(o, info.offset);
        dump_u64(o, info.size);
        dump_hash(o, info.check);
        if (info.type == KVC_RECORD_BLOCK) dump_hash(o, info.digest);
        else dump_none(o);
        section_rows(o, &info, section);
        for (unsigned s = 0; s < info.n_sections && s < MAX_SECTIONS; s++)
            dump_count_section(sizes, section[s].type, section[s].size);
        dump_row_end(o);
    }
    return 0;
}

static int container_sections(struct dump_out *o, const struct kvc_opened *f, struct kvc_error *e) {
    static const struct dump_column columns[] = {{"record", 7}, {"type", -7},   {"tensor", -20},
                                                 {"block", 5},  {"rows", 4},    {"offset", 12},
                                                 {"size", 11},  {"check", -16}, {"digest", -16},
                                                 {NULL, 0}};
    struct kvc_section *section = kvc_alloc(MAX_SECTIONS, sizeof *section);
    if (!section) return kvc_fail_memory(e, "a list of sections");
    dump_begin(o, f->input.name);
    dump_table(o, "records", "record", columns);
    struct dump_section_sizes sizes = {.n = 0};
    int status = record_rows(o, f->cache, section, &sizes, e);
    dump_table_end(o);
    if (!status) dump_draw_sections(o, &sizes);
    free(section);
    return status;
}

static int source_layout(struct dump_out *o, const struct kvc_opened *f, struct kvc_error *e) {
    static const struct dump_column columns[] = {
        {"extent", 7}, {"offset", 12}, {"size", 12}, {"holds", -20}, {NULL, 0}};
    const struct kvc_cache *c = f->cache;
    uint64_t offset = 0;
    if (!c->n_extents)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "has no plain layout to list: its arrays are compressed or rearranged");
    dump_begin(o, f->input.name);
    dump_table(o, "extents", "extent", columns);
    for (uint64_t i = 0; i < c->n_extents; i++) {
        const struct kvc_extent *x = &c->extent[i];
        char label[128] = "literal";
        uint32_t t;
        if (kvc_extent_is_tensor(c, x, &t)) kvc_tensor_label(c, t, label, sizeof label);
        else if (x->n_places)
            snprintf(label, sizeof label, "region of %" PRIu64 " places", x->n_places);
        dump_row(o);
        dump_u64(o, i);
        dump_u64(o, offset);
        dump_u64(o, x->size);
        dump_text(o, label);
        dump_row_end(o);
        offset += x->size;
    }
    dump_table_end(o);
    return 0;
}

int dump_sections(struct dump_out *o, const struct kvc_opened *f, struct dump_options *options,
                  struct kvc_error *e) {
    (void)options;
    return kvc_cache_is_container(f->cache) ? container_sections(o, f, e) : source_layout(o, f, e);
}

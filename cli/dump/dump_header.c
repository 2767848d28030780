/* dump_header.c: kvc-dump --header: prints versions and every metadata key. Not for facts of the
 * summary (dump_facts.c). */
#include "cli/dump/dump.h"
#include "formats/container/container.h"
#include "formats/cache/keys.h"

static const char *type_name(enum kvc_meta_type type) {
    static const char *const names[] = {NULL, "bool", "u64", "i64", "f64", "text", "bytes", "u64s"};
    return (size_t)type < sizeof names / sizeof names[0] ? names[type] : NULL;
}

static void value_cell(struct dump_out *o, const struct kvc_meta *meta,
                       const struct kvc_meta_entry *x) {
    switch (x->type) {
    case KVC_META_BOOL: dump_bool(o, kvc_meta_bool(meta, x->key, 0)); return;
    case KVC_META_U64: dump_u64(o, kvc_meta_u64(meta, x->key, 0)); return;
    case KVC_META_I64: dump_i64(o, kvc_meta_i64(meta, x->key, 0)); return;
    case KVC_META_F64: dump_f64(o, kvc_meta_f64(meta, x->key, 0)); return;
    case KVC_META_TEXT: dump_text(o, kvc_meta_text(meta, x->key, "")); return;
    case KVC_META_BYTES: dump_hex(o, x->value, x->size); return;
    case KVC_META_U64S: dump_u64s(o, x->value, x->size / 8); return;
    }
    dump_none(o);
}

int dump_header(struct dump_out *o, const struct kvc_opened *f, struct dump_options *options,
                struct kvc_error *e) {
    static const struct dump_column columns[] = {
        {"key", -32}, {"type", -5}, {"critical", -8}, {"value", -1}, {NULL, 0}};
    const struct kvc_meta *meta = &f->cache->meta;
    (void)options;
    (void)e;
    dump_begin(o, f->input.name);
    if (kvc_cache_is_container(f->cache)) {
        struct kvc_container_header header = kvc_container_header(f->cache);
        dump_key_text(o, "format", "kvc");
        dump_key_u64(o, "write_version", header.write_version);
        dump_key_u64(o, "read_version", header.read_version);
        dump_key_u64(o, "alignment", header.align);
        dump_key_u64(o, "records", kvc_container_records(f->cache));
    } else {
        dump_key_text(o, "format", kvc_meta_text(meta, KVC_KEY_SOURCE_FORMAT, f->format->name));
        if (kvc_meta_find(meta, KVC_KEY_SOURCE_VERSION))
            dump_key_u64(o, "version", kvc_meta_u64(meta, KVC_KEY_SOURCE_VERSION, 0));
    }
    dump_key_u64(o, "bytes", kvc_opened_size(f));
    dump_key_text(o, "filter", *f->input.filter ? f->input.filter : NULL);
    dump_table(o, "metadata", "meta", columns);
    for (size_t i = 0; i < meta->n; i++) {
        const struct kvc_meta_entry *x = &meta->entry[i];
        dump_row(o);
        dump_text(o, x->key);
        dump_text(o, type_name(x->type));
        dump_bool(o, x->critical);
        value_cell(o, meta, x);
        dump_row_end(o);
    }
    dump_table_end(o);
    return 0;
}

/* dump_header.c: kvc-dump --header: prints versions and every metadata key. Not for facts of the
 * summary (dump_facts.c). */
#include "cli/dump/dump.h"

#include <string.h>

static void value_cell(struct dump_out *o, const struct kvc_meta_value *v) {
    if (v->text) dump_text(o, v->text);
    else if (strcmp(v->type, "bool") == 0) dump_bool(o, (int)v->u64);
    else if (strcmp(v->type, "u64") == 0) dump_u64(o, v->u64);
    else if (strcmp(v->type, "i64") == 0) dump_i64(o, v->i64);
    else if (strcmp(v->type, "f64") == 0) dump_f64(o, v->f64);
    else if (strcmp(v->type, "bytes") == 0) dump_hex(o, v->bytes, v->n_bytes);
    else if (strcmp(v->type, "u64s") == 0) dump_u64s(o, v->bytes, v->n_bytes / 8);
    else dump_none(o);
}

int dump_header(struct dump_out *o, const struct dump_file *f, struct dump_options *options,
                struct kvc_error *e) {
    static const struct dump_column columns[] = {
        {"key", -32}, {"type", -5}, {"critical", -8}, {"value", -1}, {NULL, 0}};
    const char *key;
    (void)options;
    (void)e;
    dump_begin(o, f->source.name);
    if (f->source.packed) {
        dump_key_text(o, "format", "kvc");
        dump_key_u64(o, "write_version", f->facts.write_version);
        dump_key_u64(o, "read_version", f->facts.read_version);
        dump_key_u64(o, "alignment", f->facts.align);
        dump_key_u64(o, "records", f->facts.pieces);
    } else {
        dump_key_text(o, "format", dump_meta_text(f, "source.format", kvc_file_format(f->cache)));
        if (dump_has(f, "source.version"))
            dump_key_u64(o, "version", dump_meta(f, "source.version").u64);
    }
    dump_key_u64(o, "bytes", f->source.bytes);
    dump_key_text(o, "filter", *f->source.filter ? f->source.filter : NULL);
    dump_table(o, "metadata", "meta", columns);
    for (size_t i = 0; (key = kvc_file_meta_key(f->cache, i)) != NULL; i++) {
        const struct kvc_meta_value v = dump_meta(f, key);
        dump_row(o);
        dump_text(o, key);
        dump_text(o, *v.type ? v.type : NULL);
        dump_bool(o, v.critical);
        value_cell(o, &v);
        dump_row_end(o);
    }
    dump_table_end(o);
    return 0;
}

/* dump_list.c: kvc-dump --list: a row for each file, and their totals. Not for the facts of one
 * file (dump_facts.c). */
#include "cli/dump/dump.h"
#include "cli/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Returns 1 if the values are known not to be the engine's own. */
static int is_lossy(const struct dump_file *f) {
    return (f->source.packed && !f->facts.lossless) || dump_has(f, "values.recipe");
}

/* Returns the name of the model, or else its architecture, or else the model of the profile; NULL
 * if all are unknown. */
static const char *model_name(const struct dump_file *f) {
    const char *name = dump_meta_text(f, "model.name",
                                      dump_meta_text(f, "model.architecture", NULL));
    return name ? name : dump_meta_text(f, "profile.model", NULL);
}

int dump_list(struct dump_out *o, const struct dump_file *f, struct dump_options *options,
              struct kvc_error *e) {
    static const struct dump_column columns[] = {{"tokens", 8},   {"size", 9},    {"tensors", 9},
                                                 {"ratio", 8},    {"lossy", -5},  {"recipe", -9},
                                                 {"profile", -7}, {"model", -12}, {"format", -10},
                                                 {"file", -1},    {NULL, 0}};
    struct dump_facts x;
    if (dump_facts_gather(&x, f, e)) return -1;
    const uint64_t size = f->source.bytes;
    struct dump_listed *total = &options->listed;
    total->files++;
    total->bytes += size;
    total->tensors += x.tensor_bytes;
    if (f->source.packed) {
        total->packed_bytes += size;
        total->packed_tensors += x.tensor_bytes;
    }
    total->lossy += (uint64_t)is_lossy(f);
    dump_file_row(o, f->source.name, "list", columns);
    dump_u64(o, f->facts.tokens);
    dump_bytes(o, size);
    dump_bytes(o, x.tensor_bytes);
    if (f->source.packed) dump_ratio_cell(o, dump_ratio(&x));
    else dump_none(o); /* the file was not packed */
    dump_color(o, is_lossy(f) ? CLI_YELLOW : CLI_PLAIN);
    dump_yes(o, is_lossy(f));
    dump_color(o, CLI_PLAIN);
    dump_short_text(o, dump_meta_text(f, "recipe", NULL), 32);
    const char *place = f->facts.profile;
    dump_color(o, place && strcmp(place, "missing") == 0 ? CLI_RED : CLI_PLAIN);
    dump_text(o, place);
    dump_color(o, CLI_PLAIN);
    dump_short_text(o, model_name(f), 24);
    dump_text(o, dump_format_name(f));
    dump_file_row_end(o, f->source.name);
    free(x.part);
    return 0;
}

void dump_list_end(struct dump_out *o, const struct dump_options *options, uint64_t failed) {
    const struct dump_listed *t = &options->listed;
    const double ratio = t->packed_bytes ? (double)t->packed_tensors / (double)t->packed_bytes : 0;
    if (o->depth) dump_table_end(o);
    if (o->style == DUMP_JSON) {
        struct cli_json *j = cli_report_total(&o->report);
        if (!j) return;
        cli_json_u64(j, "files", t->files);
        cli_json_u64(j, "failed", failed);
        cli_json_u64(j, "lossy", t->lossy);
        cli_json_u64(j, "size", t->bytes);
        cli_json_u64(j, "tensors", t->tensors);
        if (ratio > 0) cli_json_f64(j, "ratio", ratio);
        else cli_json_text(j, "ratio", NULL);
        cli_json_close(j);
        return;
    }
    if (o->style == DUMP_TSV) {
        static const struct dump_column columns[] = {{"files", 0}, {"failed", 0},  {"lossy", 0},
                                                     {"size", 0},  {"tensors", 0}, {"ratio", 0},
                                                     {NULL, 0}};
        char text[32];
        dump_heading(o, "total", columns);
        cli_double_text(ratio, text);
        fprintf(o->out,
                "total\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%s\n",
                t->files, failed, t->lossy, t->bytes, t->tensors, ratio > 0 ? text : "-");
        return;
    }
    char size[32], tensors[32];
    cli_size_text(t->bytes, size);
    cli_size_text(t->tensors, tensors);
    fprintf(o->out, "%" PRIu64 " file%s, %s, tensors %s", t->files, cli_s(t->files), size, tensors);
    if (ratio > 0) fprintf(o->out, ", ratio %.3f", ratio);
    if (t->lossy) fprintf(o->out, ", %" PRIu64 " lossy", t->lossy);
    if (failed) fprintf(o->out, ", %" PRIu64 " failed", failed);
    fputc('\n', o->out);
}

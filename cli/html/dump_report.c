/* dump_report.c: the HTML report of kvc-dump: the data of a file's map and of sizes by layer, and
 * facts. Not for drawing (share/page.html), and not for text, JSON and TSV (cli/dump). */
#include "cli/dump/dump.h"
#include "cli/html/page.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SEGMENTS = 3000 }; /* of a map; where a file has more, narrow ones are left out */

static const char *content_of(const struct dump_tensor *t) {
    const char *role = t->info.role;
    return strcmp(role, "K") == 0 || strcmp(role, "V") == 0 ? role : "other";
}

/* Bytes of a file that follow each other and are of one content and one layer of the model. */
struct segment {
    uint64_t offset, size;
    const char *content;
    uint32_t layer;
    char title[128]; /* of its first piece */
};

/* What a report shows of a file. */
struct shown {
    const struct dump_file *file;
    uint64_t *side;      /* bytes of side data of each tensor */
    struct segment last; /* of the map; it is not written yet */
    uint64_t end;        /* of what is written of the map */
    uint64_t narrow;     /* bytes of the narrowest segment that is shown */
    struct dump_progress progress;
};

/* --- the map --- */

/* Writes x->last, unless it lies within what is written; narrow segments are a little too wide. */
static void write_segment(struct cli_json *j, struct shown *x) {
    const uint64_t whole = x->file->source.bytes;
    const struct segment *s = &x->last;
    uint64_t size = s->size;
    if (s->offset + size <= x->end) return;
    if (size < x->narrow) size = x->narrow < whole - s->offset ? x->narrow : whole - s->offset;
    cli_json_open(j, NULL, '[');
    cli_json_u64(j, NULL, s->offset);
    cli_json_u64(j, NULL, size);
    cli_json_text(j, NULL, s->content);
    cli_json_u64(j, NULL, s->layer);
    cli_json_text(j, NULL, s->title);
    cli_json_close(j);
    x->end = s->offset + size;
}

/* Adds bytes to the map: to x->last if they continue it. */
static void dump_report_add(struct cli_json *j, struct shown *x, const struct segment *s) {
    struct segment *last = &x->last;
    const int same = last->size && last->layer == s->layer &&
                     strcmp(last->content, s->content) == 0;
    if (same && last->offset + last->size == s->offset) {
        last->size += s->size;
        return;
    }
    write_segment(j, x);
    *last = *s;
}

/* Fills *s from a piece of the file; of extents, which follow each other, but for the offset. */
static int read_piece(struct shown *x, uint64_t i, struct segment *s, struct kvc_error *e) {
    struct kvc_piece_info info = {.size = sizeof info};
    char text[64];
    if (kvc_file_piece(x->file->cache, i, &info, NULL, 0, e)) return -1;
    *s = (struct segment){.offset = info.offset, .size = info.bytes, .content = "private"};
    snprintf(s->title, sizeof s->title, "%s", dump_piece_text(x->file, &info, text, sizeof text));
    if (x->file->source.packed) dump_progress_add(&x->progress, info.bytes);
    else if (info.places) s->content = "other";
    else snprintf(s->title, sizeof s->title, "private bytes");
    if (info.tensor == KVC_NO_NUMBER) return 0;
    const struct dump_tensor *t = &x->file->tensor[info.tensor];
    if (info.side) x->side[info.tensor] += info.bytes;
    snprintf(s->title, sizeof s->title, "%s", t->more.label);
    s->content = info.side ? "side" : content_of(t);
    s->layer = t->info.layer;
    return 0;
}

/* Writes the segments of the file in order. A record that cannot be read leaves a gap in the map;
 * then returns -1, and *e gets the first reason. */
static int write_map(struct cli_json *j, struct shown *x, struct kvc_error *e) {
    const uint64_t n = x->file->facts.pieces, size = x->file->source.bytes;
    const int packed = x->file->source.packed;
    struct segment s = {.size = 0};
    uint64_t end = 0;
    int status = 0;
    x->narrow = n > MAX_SEGMENTS ? size / MAX_SEGMENTS : 0;
    cli_json_open(j, "map", '[');
    for (uint64_t i = 0; i < n; i++) {
        if (read_piece(x, i, &s, status ? NULL : e)) {
            status = -1;
            continue;
        }
        if (!packed) s.offset = end;
        else if (!x->last.size)
            dump_report_add(j, x, &(struct segment){0, s.offset, "private", 0, "header"});
        dump_report_add(j, x, &s);
        end = s.offset + s.size;
    }
    if (packed && size > end)
        dump_report_add(j, x, &(struct segment){end, size - end, "private", 0, "footer"});
    write_segment(j, x);
    cli_json_close(j);
    cli_json_bool(j, "damaged", status);
    return status;
}

/* --- layers --- */

/* Writes the layers of the cache, and of each tensor the number of its layer among them, its
 * content, bytes of its rows, and of a container stored bytes without and of side data. */
static void write_layers(struct cli_json *j, const struct shown *x) {
    const struct dump_file *f = x->file;
    cli_json_open(j, "layers", '[');
    for (uint32_t i = 0; i < f->facts.layers; i++) cli_json_u64(j, NULL, f->layer[i].layer);
    cli_json_close(j);
    cli_json_u64(j, "parts", f->facts.parts);
    cli_json_open(j, "tensors", '[');
    for (uint32_t i = 0; i < f->facts.tensors; i++) {
        const struct dump_tensor *t = &f->tensor[i];
        const uint64_t stored = t->more.stored;
        cli_json_open(j, NULL, '[');
        cli_json_u64(j, NULL, t->more.layer);
        cli_json_text(j, NULL, content_of(t));
        cli_json_u64(j, NULL, t->more.bytes);
        cli_json_u64(j, NULL, stored > x->side[i] ? stored - x->side[i] : 0);
        cli_json_u64(j, NULL, x->side[i]);
        cli_json_close(j);
    }
    cli_json_close(j);
}

/* --- the page --- */

/* Starts the line of progress. Its time counts from where the file was opened. */
static void start_progress(struct shown *x, const struct dump_options *options) {
    const struct dump_file *f = x->file;
    struct dump_progress *p = &x->progress;
    cli_progress_start(&p->line, f->source.name, options->quiet);
    p->line.start = options->start;
    p->total = f->source.packed ? f->source.bytes : 0;
    for (uint32_t t = 0; t < f->facts.tensors; t++) p->total += f->tensor[t].more.bytes;
}

static void verdict(FILE *out, const struct dump_facts *facts, const struct kvc_error *why) {
    const struct dump_file *f = facts->f;
    char size[32], tensors[32];
    cli_size_text(f->source.bytes, size);
    cli_size_text(facts->tensor_bytes, tensors);
    fprintf(out, "<p class=\"verdict%s\">", why ? " bad" : "");
    if (why)
        html_say(out, "Not everything could be read, so this report is not complete: %s. ",
                 cli_error_unnamed(why, f->source.name));
    html_say(out, "Format %s, %s: %" PRIu32 " layer%s, tensors of %s", dump_format_name(f), size,
             facts->layers, cli_s(facts->layers), tensors);
    if (f->source.packed)
        html_say(out, ", ratio %.3f, %s", dump_ratio(facts),
                 f->facts.lossless ? "lossless" : "lossy");
    fputs(".", out);
    const struct dump_tensor *largest = NULL;
    for (uint32_t t = 0; t < f->facts.tensors && f->source.packed; t++)
        if (f->tensor[t].more.stored > (largest ? largest->more.stored : 0))
            largest = &f->tensor[t];
    if (largest) {
        cli_size_text(largest->more.stored, size);
        html_say(out, " The largest tensor is %s: %s, ratio %.3f.", largest->more.label, size,
                 (double)largest->more.bytes / (double)largest->more.stored);
    }
    fputs("</p>\n", out);
}

/* Runs a mode of kvc-dump as a part of the page. */
static int mode(dump_fn *print, const char *id, const char *title, FILE *out,
                const struct dump_file *f, struct dump_options *options, struct kvc_error *e) {
    struct dump_out o = {.out = out, .style = DUMP_HTML};
    html_section(out, id, title);
    const int status = print(&o, f, options, e);
    dump_end(&o);
    return status;
}

/* Embeds what --json prints. */
static int embed_json(FILE *out, const struct dump_file *f, struct dump_options *options,
                      struct kvc_error *e) {
    struct html_data json;
    struct dump_out o = {.style = DUMP_JSON};
    if (html_data_begin(&json, e)) return -1;
    o.out = json.json.out;
    cli_report_start(&o.report, o.out);
    const int failed = dump_facts(&o, f, options, e);
    if (failed) dump_failed(&o, f->source.name, e);
    dump_end(&o);
    cli_report_end(&o.report);
    if (html_data_end(&json, 0, out, "kvc-dump", e) || failed) return -1;
    return 0;
}

/* Keeps the first error. */
static void note(struct kvc_error *first, int status, const struct kvc_error *e) {
    if (status && kvc_error_code(first) == KVC_OK) kvc_error_copy(first, e);
}

/* Embeds the data of the pictures. Damage of one part does not keep the others from being shown;
 * *why gets the first. */
static int embed_data(FILE *out, struct shown *x, struct kvc_error *why, struct kvc_error *e) {
    struct html_data data;
    struct cli_json *j = &data.json;
    if (html_data_begin(&data, e)) return -1;
    cli_json_open(j, NULL, '{');
    cli_json_bool(j, "container", x->file->source.packed);
    cli_json_u64(j, "size", x->file->source.bytes);
    note(why, write_map(j, x, e), e);
    write_layers(j, x);
    note(why, dump_report_values(j, out, x->file, &x->progress, e), e);
    cli_json_close(j);
    return html_data_end(&data, 0, out, "pictures-data", e);
}

/* Writes everything after the verdict. */
static void contents(FILE *out, struct shown *x, struct dump_options *options,
                     struct kvc_error *why, struct kvc_error *e) {
    html_pictures(out);
    note(why, embed_data(out, x, why, e), e);
    if (kvc_error_code(why) == KVC_ERR_MEMORY) return;
    note(why, mode(dump_summary, "facts", "Facts", out, x->file, options, e), e);
    note(why, mode(dump_layers, "layer-table", "All layers", out, x->file, options, e), e);
    html_note(out,
              "A page is no check of a file: kvc-dump --check reads and verifies every value.");
    note(why, embed_json(out, x->file, options, e), e);
}

static int write_page(const struct dump_facts *facts, const struct kvc_error *why, const char *body,
                      const char *path, struct kvc_error *e) {
    struct html_page p;
    char title[1024];
    snprintf(title, sizeof title, "kvc-dump: %.1000s", facts->f->source.name);
    if (html_begin(&p, title, e)) return -1;
    verdict(p.out, facts, kvc_error_code(why) == KVC_OK ? NULL : why);
    fputs(body, p.out);
    return html_write(&p, path, e);
}

int dump_html(struct dump_out *o, const struct dump_file *f, struct dump_options *options,
              struct kvc_error *e) {
    struct dump_facts facts;
    struct shown x = {.file = f};
    struct kvc_error *why = cli_error_new();
    char *body = NULL;
    size_t size = 0;
    (void)o;
    int status = dump_facts_gather(&facts, f, e);
    x.side = calloc((size_t)f->facts.tensors + 1, sizeof *x.side);
    FILE *out = x.side && !status ? open_memstream(&body, &size) : NULL;
    if (!out && !status) status = cli_no_memory(e, "a report");
    if (out) {
        start_progress(&x, options);
        contents(out, &x, options, why, e);
        cli_progress_end(&x.progress.line);
        if (fclose(out)) status = cli_no_memory(e, "a report");
    }
    if (!status) status = write_page(&facts, why, body, options->html, e);
    if (!status && kvc_error_code(why) != KVC_OK) {
        kvc_error_copy(e, why);
        status = -1;
    }
    kvc_error_free(why);
    free(body);
    free(facts.part);
    free(x.side);
    return status;
}

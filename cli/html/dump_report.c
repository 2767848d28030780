/* dump_report.c: the HTML report of kvc-dump: the data of a file's map and of sizes by layer, and
 * facts. Not for drawing (share/page.html), and not for text, JSON and TSV (cli/dump). */
#include "cli/dump/dump_facts.h"
#include "cli/html/dump_data.h"
#include "cli/html/page.h"
#include "codecs/memory.h"
#include "formats/cache/extents.h"
#include "formats/container/container.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SEGMENTS = 3000 }; /* of a map; where a file has more, narrow ones are left out */

static const char *content_of(enum kvc_role role) {
    return role == KVC_ROLE_K ? "K" : role == KVC_ROLE_V ? "V" : "other";
}

/* Bytes of a file that follow each other and are of one content and one layer of the model. */
struct segment {
    uint64_t offset, size;
    const char *content;
    uint32_t layer;
    char title[128]; /* of its first record or extent */
};

/* What a report shows of a file. */
struct shown {
    const struct kvc_opened *file;
    const struct kvc_cache *c;
    int is_container;
    uint64_t *side;      /* bytes of side data of each tensor */
    struct segment last; /* of the map; it is not written yet */
    uint64_t end;        /* of what is written of the map */
    uint64_t narrow;     /* bytes of the narrowest segment that is shown */
    struct dump_progress progress;
};

/* --- the map --- */

/* Writes x->last, unless it lies within what is written; narrow segments are a little too wide. */
static void write_segment(struct cli_json *j, struct shown *x) {
    const uint64_t whole = kvc_opened_size(x->file);
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

/* Fills *s from a record. */
static int read_record(struct shown *x, uint64_t i, struct segment *s, struct kvc_error *e) {
    struct kvc_record_info info;
    if (kvc_container_record(x->c, i, &info, NULL, 0, e)) return -1;
    *s = (struct segment){.offset = info.offset, .size = info.size, .content = "private"};
    dump_progress_add(&x->progress, info.size);
    if (info.tensor == KVC_NONE) {
        snprintf(s->title, sizeof s->title, "%s", kvc_record_name(info.type));
        return 0;
    }
    const struct kvc_tensor *t = &x->c->tensor[info.tensor];
    const int side = info.type == KVC_RECORD_SIDE;
    if (side) x->side[info.tensor] += info.size;
    kvc_tensor_label(x->c, info.tensor, s->title, sizeof s->title);
    s->content = side ? "side" : content_of(t->role);
    s->layer = x->c->layer[t->layer].index;
    return 0;
}

/* Writes the records of a container. A record that cannot be read leaves a gap in the map; *e gets
 * the first reason. */
static int write_records(struct cli_json *j, struct shown *x, struct kvc_error *e) {
    const uint64_t size = kvc_opened_size(x->file);
    struct segment s = {.size = 0};
    int status = 0;
    for (uint64_t i = 0; i < kvc_container_records(x->c); i++) {
        struct kvc_error other = {.code = KVC_OK};
        if (read_record(x, i, &s, status ? &other : e)) {
            status = -1;
            continue;
        }
        if (!x->last.size)
            dump_report_add(j, x, &(struct segment){0, s.offset, "private", 0, "header"});
        dump_report_add(j, x, &s);
    }
    const uint64_t end = s.offset + s.size;
    if (size > end)
        dump_report_add(j, x, &(struct segment){end, size - end, "private", 0, "footer"});
    return status;
}

static void write_extents(struct cli_json *j, struct shown *x) {
    uint64_t offset = 0;
    for (uint64_t i = 0; i < x->c->n_extents; i++) {
        const struct kvc_extent *extent = &x->c->extent[i];
        struct segment s = {offset, extent->size, "private", 0, "private bytes"};
        uint32_t t;
        if (kvc_extent_is_tensor(x->c, extent, &t)) {
            kvc_tensor_label(x->c, t, s.title, sizeof s.title);
            s.content = content_of(x->c->tensor[t].role);
            s.layer = x->c->layer[x->c->tensor[t].layer].index;
        } else if (extent->n_places) {
            s.content = "other";
            snprintf(s.title, sizeof s.title, "region of %" PRIu64 " places", extent->n_places);
        }
        dump_report_add(j, x, &s);
        offset += extent->size;
    }
}

/* Writes the segments of the file in order. On a damaged container -1 and *e, and what could be
 * read is written. */
static int write_map(struct cli_json *j, struct shown *x, struct kvc_error *e) {
    const uint64_t n = x->is_container ? kvc_container_records(x->c) : x->c->n_extents;
    int status = 0;
    x->narrow = n > MAX_SEGMENTS ? kvc_opened_size(x->file) / MAX_SEGMENTS : 0;
    cli_json_open(j, "map", '[');
    if (x->is_container) status = write_records(j, x, e);
    else write_extents(j, x);
    write_segment(j, x);
    cli_json_close(j);
    cli_json_bool(j, "damaged", status);
    return status;
}

/* --- layers --- */

/* Writes the layers of the cache, and of each tensor the number of its layer among them, its
 * content, bytes of its rows, and of a container stored bytes without and of side data. */
static void write_layers(struct cli_json *j, const struct shown *x) {
    cli_json_open(j, "layers", '[');
    for (uint32_t i = 0; i < x->c->n_layers; i++) cli_json_u64(j, NULL, x->c->layer[i].index);
    cli_json_close(j);
    cli_json_u64(j, "parts", x->c->n_parts);
    cli_json_open(j, "tensors", '[');
    for (uint32_t t = 0; t < x->c->n_tensors; t++) {
        const struct kvc_tensor *tensor = &x->c->tensor[t];
        const uint64_t stored = x->is_container ? kvc_container_stored(x->c, t) : 0;
        cli_json_open(j, NULL, '[');
        cli_json_u64(j, NULL, tensor->layer);
        cli_json_text(j, NULL, content_of(tensor->role));
        cli_json_u64(j, NULL, kvc_tensor_bytes(tensor));
        cli_json_u64(j, NULL, stored > x->side[t] ? stored - x->side[t] : 0);
        cli_json_u64(j, NULL, x->side[t]);
        cli_json_close(j);
    }
    cli_json_close(j);
}

/* --- the page --- */

/* Starts the line of progress. Its time counts from where the file was opened. */
static void start_progress(struct shown *x, const struct dump_options *options) {
    struct dump_progress *p = &x->progress;
    cli_progress_start(&p->line, x->file->input.name, options->quiet);
    p->line.start = options->start;
    p->total = x->is_container ? kvc_opened_size(x->file) : 0;
    for (uint32_t t = 0; t < x->c->n_tensors; t++) p->total += kvc_tensor_bytes(&x->c->tensor[t]);
}

static void verdict(FILE *out, const struct shown *x, const struct dump_facts *facts,
                    const struct kvc_error *why) {
    char size[32], tensors[32];
    cli_size_text(kvc_opened_size(x->file), size);
    cli_size_text(facts->tensor_bytes, tensors);
    fprintf(out, "<p class=\"verdict%s\">", why ? " bad" : "");
    if (why)
        html_say(out, "Not everything could be read, so this report is not complete: %s. ",
                 why->message);
    html_say(out, "Format %s, %s: %" PRIu32 " layer%s, tensors of %s", dump_format_name(facts),
             size, facts->layers, facts->layers == 1 ? "" : "s", tensors);
    if (x->is_container)
        html_say(out, ", ratio %.3f, %s", dump_ratio(facts),
                 kvc_container_lossless(x->c) ? "lossless" : "lossy");
    fputs(".", out);
    uint32_t largest = KVC_NONE;
    uint64_t most = 0;
    for (uint32_t t = 0; t < x->c->n_tensors; t++) {
        const uint64_t bytes = x->is_container ? kvc_container_stored(x->c, t)
                                               : kvc_tensor_bytes(&x->c->tensor[t]);
        if (bytes <= most) continue;
        most = bytes;
        largest = t;
    }
    if (largest != KVC_NONE && x->is_container) {
        char label[128];
        kvc_tensor_label(x->c, largest, label, sizeof label);
        cli_size_text(most, size);
        html_say(out, " The largest tensor is %s: %s, ratio %.3f.", label, size,
                 (double)kvc_tensor_bytes(&x->c->tensor[largest]) / (double)most);
    }
    fputs("</p>\n", out);
}

/* Runs a mode of kvc-dump as a part of the page. */
static int mode(dump_fn *print, const char *id, const char *title, FILE *out,
                const struct kvc_opened *f, struct dump_options *options, struct kvc_error *e) {
    struct dump_out o = {.out = out, .style = DUMP_HTML};
    html_section(out, id, title);
    const int status = print(&o, f, options, e);
    dump_end(&o);
    return status;
}

/* Embeds what --json prints. */
static int embed_json(FILE *out, const struct kvc_opened *f, struct dump_options *options,
                      struct kvc_error *e) {
    struct html_data json;
    struct dump_out o = {.style = DUMP_JSON};
    if (html_data_begin(&json, e)) return -1;
    o.out = json.json.out;
    cli_report_start(&o.report, o.out);
    const int failed = dump_facts(&o, f, options, e);
    if (failed) dump_failed(&o, f->input.name, e);
    dump_end(&o);
    cli_report_end(&o.report);
    if (html_data_end(&json, 0, out, "kvc-dump", e) || failed) return -1;
    return 0;
}

/* Keeps the first error. */
static void note(struct kvc_error *first, int status, struct kvc_error *e) {
    if (status && first->code == KVC_OK) *first = *e;
    *e = (struct kvc_error){.code = KVC_OK};
}

/* Embeds the data of the pictures. Damage of one part does not keep the others from being shown;
 * *why gets the first. */
static int embed_data(FILE *out, struct shown *x, struct kvc_error *why, struct kvc_error *e) {
    struct html_data data;
    struct cli_json *j = &data.json;
    if (html_data_begin(&data, e)) return -1;
    cli_json_open(j, NULL, '{');
    cli_json_bool(j, "container", x->is_container);
    cli_json_u64(j, "size", kvc_opened_size(x->file));
    note(why, write_map(j, x, e), e);
    write_layers(j, x);
    note(why, dump_report_values(j, out, x->c, &x->progress, e), e);
    cli_json_close(j);
    return html_data_end(&data, 0, out, "pictures-data", e);
}

/* Writes everything after the verdict. */
static void contents(FILE *out, struct shown *x, struct dump_options *options,
                     struct kvc_error *why) {
    struct kvc_error e = {.code = KVC_OK};
    html_pictures(out);
    note(why, embed_data(out, x, why, &e), &e);
    if (why->code == KVC_ERR_MEMORY) return;
    note(why, mode(dump_summary, "facts", "Facts", out, x->file, options, &e), &e);
    note(why, mode(dump_layers, "layer-table", "All layers", out, x->file, options, &e), &e);
    html_note(out,
              "A page is no check of a file: kvc-dump --check reads and verifies every value.");
    note(why, embed_json(out, x->file, options, &e), &e);
}

/* Writes the page with its body. */
static int write_page(const struct shown *x, const struct dump_facts *facts,
                      const struct kvc_error *why, const char *body, const char *path,
                      struct kvc_error *e) {
    struct html_page p;
    char title[1024];
    snprintf(title, sizeof title, "kvc-dump: %.1000s", x->file->input.name);
    if (html_begin(&p, title, e)) return -1;
    verdict(p.out, x, facts, why->code == KVC_OK ? NULL : why);
    fputs(body, p.out);
    return html_write(&p, path, e);
}

int dump_html(struct dump_out *o, const struct kvc_opened *f, struct dump_options *options,
              struct kvc_error *e) {
    struct dump_facts facts;
    struct shown x = {.file = f, .c = f->cache, .is_container = kvc_cache_is_container(f->cache)};
    struct kvc_error why = {.code = KVC_OK};
    char *body = NULL;
    size_t size = 0;
    (void)o;
    if (dump_facts_gather(&facts, f, e)) return -1;
    x.side = kvc_alloc_zeros(x.c->n_tensors, sizeof *x.side);
    FILE *out = x.side ? open_memstream(&body, &size) : NULL;
    int status = out ? 0 : kvc_fail_memory(e, "a report");
    start_progress(&x, options);
    if (out) contents(out, &x, options, &why);
    cli_progress_end(&x.progress.line);
    if (out && fclose(out)) status = kvc_fail_memory(e, "a report");
    if (!status) status = write_page(&x, &facts, &why, body, options->html, e);
    if (!status && why.code != KVC_OK) {
        *e = why;
        status = -1;
    }
    free(body);
    free(facts.part);
    free(x.side);
    return status;
}

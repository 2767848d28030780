/* dump_report.c: the HTML report of kvc-dump: a file's map, sizes and ratios by layer, and facts. Not for text, JSON and TSV
 * (cli/dump). */
#include "cli/dump/dump_facts.h"
#include "cli/html/dump_pictures.h"
#include "cli/html/page.h"
#include "cli/html/svg.h"
#include "cli/html/svg_parts.h"
#include "cli/html/svg_map.h"
#include "codecs/memory.h"
#include "formats/cache/extents.h"
#include "formats/container/container.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAYERS = 512 };

/* --- the map --- */

enum content { K, V, OTHER, SIDE, PRIVATE, CONTENTS };
static const char *const colors[CONTENTS] = {"k", "v", "o", "s", "p"};
static const char *const content_names[CONTENTS] = {"K", "V", "other tensors", "side data", "metadata and private bytes"};

static enum content content_of(enum kvc_role role) {
    return role == KVC_ROLE_K ? K : role == KVC_ROLE_V ? V : OTHER;
}

/* What a report shows of a file. */
struct shown {
    const struct kvc_opened *file;
    const struct kvc_cache *c;
    int is_container;
    struct svg_segment *segment;
    size_t n_segments;
    struct dump_progress progress;
    double *bytes[CONTENTS]; /* stored bytes of each layer; of an engine's file, bytes of the tensors */
};

static void add_segment(struct shown *x, uint64_t offset, uint64_t size, enum content content, uint32_t group,
                        const char *title) {
    struct svg_segment *s = &x->segment[x->n_segments++];
    *s = (struct svg_segment){.offset = offset, .size = size, .color = colors[content], .group = group};
    snprintf(s->title, sizeof s->title, "%s", title);
}

static int add_record(struct shown *x, uint64_t i, struct kvc_error *e) {
    struct kvc_record_info info;
    char title[128], tensor[96];
    if (kvc_container_record(x->c, i, &info, NULL, 0, e)) return -1;
    enum content content = PRIVATE;
    uint32_t group = 0;
    if (info.tensor == KVC_NONE) {
        snprintf(title, sizeof title, "%s", kvc_record_name(info.type));
    } else {
        const struct kvc_tensor *t = &x->c->tensor[info.tensor];
        content = info.type == KVC_RECORD_SIDE ? SIDE : content_of(t->role);
        group = x->c->layer[t->layer].index;
        x->bytes[content][t->layer] += (double)info.size;
        kvc_tensor_label(x->c, info.tensor, tensor, sizeof tensor);
        snprintf(title, sizeof title, "%s%s", tensor, content == SIDE ? ", side data" : "");
    }
    add_segment(x, info.offset, info.size, content, group, title);
    return 0;
}

/* Starts the line of progress. Its time counts from where the file was opened. */
static void start_progress(struct shown *x, const struct dump_options *options) {
    struct dump_progress *p = &x->progress;
    cli_progress_start(&p->line, x->file->input.name, options->quiet);
    p->line.start = options->start;
    p->total = kvc_cache_is_container(x->file->cache) ? kvc_opened_size(x->file) : 0;
    for (uint32_t t = 0; t < x->file->cache->n_tensors; t++) p->total += kvc_tensor_bytes(&x->file->cache->tensor[t]);
}

/* Adds the records of a container. A record that cannot be read leaves a gap in the map; *e gets the first reason. */
static int add_records(struct shown *x, struct kvc_error *e) {
    int status = 0;
    add_segment(x, 0, 0, PRIVATE, 0, "header");
    for (uint64_t i = 0; i < kvc_container_records(x->c); i++) {
        struct kvc_error other = {.code = KVC_OK};
        if (add_record(x, i, status ? &other : e)) status = -1;
        else dump_progress_add(&x->progress, x->segment[x->n_segments - 1].size);
    }
    const struct svg_segment *last = &x->segment[x->n_segments - 1];
    const uint64_t end = last->offset + last->size, size = kvc_opened_size(x->file);
    if (x->n_segments > 1) x->segment[0].size = x->segment[1].offset;
    if (size > end) add_segment(x, end, size - end, PRIVATE, 0, "footer");
    return status;
}

static void add_extents(struct shown *x) {
    uint64_t offset = 0;
    for (uint64_t i = 0; i < x->c->n_extents; i++) {
        const struct kvc_extent *extent = &x->c->extent[i];
        char title[96] = "private bytes";
        enum content content = extent->n_places ? OTHER : PRIVATE;
        uint32_t t, group = 0;
        if (kvc_extent_is_tensor(x->c, extent, &t)) {
            kvc_tensor_label(x->c, t, title, sizeof title);
            content = content_of(x->c->tensor[t].role);
            group = x->c->layer[x->c->tensor[t].layer].index;
        } else if (extent->n_places) {
            snprintf(title, sizeof title, "region of %" PRIu64 " places", extent->n_places);
        }
        add_segment(x, offset, extent->size, content, group, title);
        offset += extent->size;
    }
}

/* Fills *x. On a damaged container -1 and *e, and what could be read is shown. */
static int gather(struct shown *x, const struct kvc_opened *f, struct kvc_error *e) {
    x->c = f->cache;
    x->is_container = kvc_cache_is_container(f->cache);
    const uint64_t n = x->is_container ? kvc_container_records(x->c) : x->c->n_extents;
    x->segment = kvc_alloc(n + 2, sizeof *x->segment);
    int missing = !x->segment;
    for (unsigned i = 0; i < PRIVATE; i++) {
        x->bytes[i] = kvc_alloc_zeros(x->c->n_layers, sizeof *x->bytes[i]);
        missing |= !x->bytes[i];
    }
    if (missing) return kvc_fail_memory(e, "a map");
    if (x->is_container) return add_records(x, e);
    add_extents(x);
    for (uint32_t t = 0; t < x->c->n_tensors; t++)
        x->bytes[content_of(x->c->tensor[t].role)][x->c->tensor[t].layer] += (double)kvc_tensor_bytes(&x->c->tensor[t]);
    return 0;
}

static void free_shown(struct shown *x) {
    free(x->segment);
    for (unsigned i = 0; i < CONTENTS; i++) free(x->bytes[i]);
}

static void draw_map(FILE *out, struct shown *x, int damaged) {
    int used[CONTENTS] = {0};
    html_section(out, "map", "Map of the file");
    if (!x->n_segments) {
        html_note(out, "The file has no plain layout to show: its arrays are compressed or rearranged.");
        return;
    }
    x->n_segments = svg_map_join(x->segment, x->n_segments);
    const struct svg_segment *last = &x->segment[x->n_segments - 1];
    fputs("<figure><figcaption>Bytes to scale, from left to right and from top to bottom; the two shades of a color are of "
          "alternating layers</figcaption>\n",
          out);
    svg_map(out, "Map of the file", last->offset + last->size, x->segment, x->n_segments);
    svg_legend_begin(out);
    for (size_t i = 0; i < x->n_segments; i++)
        for (unsigned k = 0; k < CONTENTS; k++) used[k] |= strcmp(x->segment[i].color, colors[k]) == 0;
    for (unsigned k = 0; k < CONTENTS; k++) {
        char class[8];
        snprintf(class, sizeof class, "f%s", colors[k]);
        if (used[k]) svg_legend_item(out, class, content_names[k]);
    }
    if (damaged) svg_legend_item(out, "lost", "a record that cannot be read");
    svg_legend_end(out);
    fputs("</figure>\n", out);
}

/* --- layers --- */

static double sum_of(const double *v, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += v[i];
    return sum;
}

/* Returns the numbers of the layers, which the caller frees. */
static uint32_t *layer_numbers(const struct kvc_cache *c, struct kvc_error *e) {
    uint32_t *number = kvc_alloc(c->n_layers, sizeof *number);
    if (!number) kvc_fail_memory(e, "a list of layers");
    for (uint32_t i = 0; number && i < c->n_layers; i++) number[i] = c->layer[i].index;
    return number;
}

static void draw_bars(FILE *out, const struct shown *x, const uint32_t *number, const double *const y[], const char *const name[],
                      unsigned n, const char *caption, int stacked) {
    struct svg_series series[CONTENTS];
    struct svg_bars b = {.label = caption, .column_word = "layer", .column_number = number, .series = series};
    b.columns = x->c->n_layers < MAX_LAYERS ? x->c->n_layers : MAX_LAYERS;
    b.stacked = b.bytes = stacked;
    for (unsigned i = 0; i < n; i++)
        if (sum_of(y[i], x->c->n_layers) > 0) series[b.n_series++] = (struct svg_series){name[i], colors[i], y[i]};
    if (!b.n_series) return;
    fprintf(out, "<figure><figcaption>%s</figcaption>\n", caption);
    svg_bars(out, &b);
    fputs("</figure>\n", out);
}

/* Draws the ratio of each layer's tensors: bytes of rows divided by stored bytes. */
static int draw_ratios(FILE *out, const struct shown *x, const uint32_t *number, struct kvc_error *e) {
    static const char *const names[] = {"K", "V", "other"};
    double *ratio[SIDE];
    int missing = 0;
    for (unsigned i = 0; i < SIDE; i++) missing |= !(ratio[i] = kvc_alloc_zeros(x->c->n_layers, sizeof *ratio[i]));
    for (uint32_t t = 0; t < x->c->n_tensors && !missing; t++) {
        const uint64_t stored = kvc_container_stored(x->c, t);
        const struct kvc_tensor *tensor = &x->c->tensor[t];
        if (stored) ratio[content_of(tensor->role)][tensor->layer] = (double)kvc_tensor_bytes(tensor) / (double)stored;
    }
    if (!missing)
        draw_bars(out, x, number, (const double *const *)ratio, names, SIDE, "Ratio: bytes of rows divided by stored bytes", 0);
    for (unsigned i = 0; i < SIDE; i++) free(ratio[i]);
    return missing ? kvc_fail_memory(e, "ratios") : 0;
}

static int draw_layers(FILE *out, const struct shown *x, struct kvc_error *e) {
    static const char *const names[] = {"K", "V", "other", "side data"};
    uint32_t *number = layer_numbers(x->c, e);
    if (!number) return -1;
    html_section(out, "layers", "Layers");
    if (!x->c->n_layers) html_note(out, "The file has no layers.");
    if (x->c->n_layers > MAX_LAYERS) html_note(out, "The pictures show the first 512 layers; the table has all.");
    if (x->c->n_parts > 1) html_note(out, "The layers are in the order of the parts of the file.");
    draw_bars(out, x, number, (const double *const *)x->bytes, names, PRIVATE,
              x->is_container ? "Stored bytes of each layer" : "Bytes of each layer", 1);
    const int status = x->is_container ? draw_ratios(out, x, number, e) : 0;
    free(number);
    return status;
}

/* --- the page --- */

static void verdict(FILE *out, const struct shown *x, const struct dump_facts *facts, const struct kvc_error *why) {
    char size[32], tensors[32];
    cli_size_text(kvc_opened_size(x->file), size);
    cli_size_text(facts->tensor_bytes, tensors);
    fprintf(out, "<p class=\"verdict%s\">", why ? " bad" : "");
    if (why) html_say(out, "Not everything could be read, so this report is not complete: %s. ", why->message);
    html_say(out, "Format %s, %s: %" PRIu32 " layer%s, tensors of %s", dump_format_name(facts), size, facts->layers,
             facts->layers == 1 ? "" : "s", tensors);
    if (x->is_container)
        html_say(out, ", ratio %.3f, %s", dump_ratio(facts), kvc_container_lossless(x->c) ? "lossless" : "lossy");
    fputs(".", out);
    uint32_t largest = KVC_NONE;
    uint64_t most = 0;
    for (uint32_t t = 0; t < x->c->n_tensors; t++) {
        const uint64_t bytes = x->is_container ? kvc_container_stored(x->c, t) : kvc_tensor_bytes(&x->c->tensor[t]);
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
static int mode(dump_fn *print, const char *id, const char *title, FILE *out, const struct kvc_opened *f,
                struct dump_options *options, struct kvc_error *e) {
    struct dump_out o = {.out = out, .style = DUMP_HTML};
    html_section(out, id, title);
    const int status = print(&o, f, options, e);
    dump_end(&o);
    return status;
}

/* Embeds what --json prints. */
static int embed_json(FILE *out, const struct kvc_opened *f, struct dump_options *options, struct kvc_error *e) {
    char *text = NULL;
    size_t size = 0;
    struct dump_out o = {.out = open_memstream(&text, &size), .style = DUMP_JSON};
    if (!o.out) return kvc_fail_memory(e, "a report");
    cli_report_start(&o.report, o.out);
    int status = dump_facts(&o, f, options, e);
    if (status) dump_failed(&o, f->input.name, e);
    dump_end(&o);
    cli_report_end(&o.report);
    if (fclose(o.out)) status = kvc_fail_memory(e, "a report");
    else html_json(out, "kvc-dump", text);
    free(text);
    return status;
}

/* Keeps the first error. */
static void note(struct kvc_error *first, int status, struct kvc_error *e) {
    if (status && first->code == KVC_OK) *first = *e;
    *e = (struct kvc_error){.code = KVC_OK};
}

/* Writes everything after the verdict. Damage of one part does not keep the others from being shown; *why gets the first. */
static void contents(FILE *out, struct shown *x, struct dump_options *options, struct kvc_error *why) {
    struct kvc_error e = {.code = KVC_OK};
    const int damaged = gather(x, x->file, &e);
    note(why, damaged, &e);
    if (why->code == KVC_ERR_MEMORY) return;
    draw_map(out, x, damaged);
    note(why, draw_layers(out, x, &e), &e);
    note(why, dump_report_values(out, x->c, &x->progress, &e), &e);
    note(why, mode(dump_summary, "facts", "Facts", out, x->file, options, &e), &e);
    note(why, mode(dump_layers, "layer-table", "All layers", out, x->file, options, &e), &e);
    html_note(out, "A page is no check of a file: kvc-dump --check reads and verifies every value.");
    note(why, embed_json(out, x->file, options, &e), &e);
}

/* Writes the page with its body. */
static int write_page(const struct shown *x, const struct dump_facts *facts, const struct kvc_error *why, const char *body,
                      const char *path, struct kvc_error *e) {
    struct html_page p;
    char title[1024];
    snprintf(title, sizeof title, "kvc-dump: %.1000s", x->file->input.name);
    if (html_begin(&p, title, e)) return -1;
    verdict(p.out, x, facts, why->code == KVC_OK ? NULL : why);
    fputs(body, p.out);
    return html_write(&p, path, e);
}

int dump_html(struct dump_out *o, const struct kvc_opened *f, struct dump_options *options, struct kvc_error *e) {
    struct dump_facts facts;
    struct shown x = {.file = f};
    struct kvc_error why = {.code = KVC_OK};
    char *body = NULL;
    size_t size = 0;
    (void)o;
    if (dump_facts_gather(&facts, f, e)) return -1;
    FILE *out = open_memstream(&body, &size);
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
    free_shown(&x);
    return status;
}

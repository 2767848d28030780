/* diff_pictures.c: heatmaps of the report of kvc-diff: errors and attention by layer and head, and errors by channel of the worst
 * tensors. Not for curves (diff_curves.c). */
#include "cli/html/diff_report.h"

#include "cli/html/page.h"
#include "cli/html/svg.h"
#include "cli/html/svg_parts.h"
#include "codecs/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* The layers of caches, or those of their companions: columns of the heatmaps. */
struct layers {
    uint32_t n;
    uint32_t *number;                   /* of the model */
    const struct kvc_part_pair **parts; /* of each column */
};

static void free_layers(struct layers *l) {
    free(l->number);
    free(l->parts);
}

static int is_companion(const struct kvc_part_pair *p) {
    return p->part[p->part[0] ? 0 : 1]->kind == KVC_PART_COMPANION;
}

static int find_layers(struct layers *l, const struct diff_collected *c, int companions, struct kvc_error *e) {
    l->n = 0;
    l->number = kvc_alloc(c->n_tensors, sizeof *l->number);
    l->parts = kvc_alloc(c->n_tensors, sizeof *l->parts);
    if (!l->number || !l->parts) return kvc_fail_memory(e, "a heatmap");
    for (size_t i = 0; i < c->n_tensors; i++) { /* tensors are sorted by part and layer */
        const struct kvc_tensor_pair *pair = c->tensor[i].pair;
        if (is_companion(pair->parts) != companions) continue;
        if (l->n && l->number[l->n - 1] == pair->layer && l->parts[l->n - 1] == pair->parts) continue;
        l->number[l->n] = pair->layer;
        l->parts[l->n++] = pair->parts;
    }
    return 0;
}

/* Returns the column of a tensor; l->n: it has none. */
static uint32_t column_of(const struct layers *l, const struct kvc_tensor_pair *pair) {
    uint32_t x = 0;
    while (x < l->n && (l->number[x] != pair->layer || l->parts[x] != pair->parts)) x++;
    return x;
}

/* A matrix of heads and layers. */
struct map {
    uint32_t heads;
    double *value;
    uint32_t *anchor;
    uint32_t mark_row, mark_column;
    int used;
};

static int start_map(struct map *m, uint64_t heads, const struct layers *l, struct kvc_error *e) {
    const uint64_t cells = heads * l->n;
    *m = (struct map){.heads = (uint32_t)heads, .mark_row = SVG_NOTHING, .used = 1};
    if (heads >= UINT32_MAX / (l->n ? l->n : 1)) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "too many heads for a heatmap");
    m->value = kvc_alloc(cells, sizeof *m->value);
    m->anchor = kvc_alloc(l->n, sizeof *m->anchor);
    if (!m->value || !m->anchor) return kvc_fail_memory(e, "a heatmap");
    for (uint64_t i = 0; i < cells; i++) m->value[i] = SVG_ABSENT;
    for (uint32_t i = 0; i < l->n; i++) m->anchor[i] = SVG_NOTHING;
    return 0;
}

static void free_map(struct map *m) {
    free(m->value);
    free(m->anchor);
}

/* Fills the map of a role; unused if no tensor in the columns has the role. */
static int role_map(struct map *m, const struct diff_collected *c, const struct layers *l, unsigned role, struct kvc_error *e) {
    const struct diff_worst worst = diff_collect_worst(c);
    uint64_t heads = 0;
    for (size_t i = 0; i < c->n_tensors; i++)
        if (c->tensor[i].pair->role == role && c->tensor[i].pair->heads > heads && column_of(l, c->tensor[i].pair) < l->n)
            heads = c->tensor[i].pair->heads;
    if (!heads) {
        *m = (struct map){.used = 0};
        return 0;
    }
    if (start_map(m, heads, l, e)) return -1;
    for (size_t i = 0; i < c->n_tensors; i++) {
        const struct diff_collected_tensor *t = &c->tensor[i];
        const uint32_t x = t->pair->role == role ? column_of(l, t->pair) : l->n;
        if (x == l->n) continue;
        m->anchor[x] = (uint32_t)i;
        for (uint64_t h = 0; h < t->pair->heads; h++) m->value[h * l->n + x] = diff_collect_error(&t->head[h]);
        if (t == worst.tensor) {
            m->mark_row = (uint32_t)worst.head;
            m->mark_column = x;
        }
    }
    return 0;
}

static int draw_map(FILE *out, const struct map *m, const struct layers *l, struct svg_scale scale, const char *label,
                    struct kvc_error *e) {
    const struct svg_heatmap h = {.label = label,
                                  .row_word = "head",
                                  .column_word = "layer",
                                  .rows = m->heads,
                                  .columns = l->n,
                                  .value = m->value,
                                  .scale = scale,
                                  .column_number = l->number,
                                  .anchor = m->anchor,
                                  .mark_row = m->mark_row,
                                  .mark_column = m->mark_column};
    fputs("<figure><figcaption>", out);
    html_text(out, label);
    fputs("</figcaption>\n", out);
    const int status = svg_heatmap(out, &h);
    fputs("</figure>\n", out);
    return status ? kvc_fail_memory(e, "a heatmap") : 0;
}

/* Says which parts the columns belong to, if there are several. */
static void part_note(FILE *out, const struct layers *l) {
    char label[64];
    uint32_t begin = 0;
    if (!l->n || l->parts[0] == l->parts[l->n - 1]) return;
    fputs("<p class=\"note\">Columns in order:", out);
    for (uint32_t i = 1; i <= l->n; i++) {
        if (i < l->n && l->parts[i] == l->parts[begin]) continue;
        diff_part_label(l->parts[begin], label, sizeof label);
        html_say(out, "%s %" PRIu32 " of part %s", begin ? "," : "", i - begin, label);
        begin = i;
    }
    fputs(".</p>\n", out);
}

/* Returns 1 if a tensor of a role in the columns differs. */
static int differ(const struct diff_collected *c, const struct layers *l, unsigned role) {
    for (size_t i = 0; i < c->n_tensors; i++)
        if (c->tensor[i].pair->role == role && c->tensor[i].all.differ && column_of(l, c->tensor[i].pair) < l->n) return 1;
    return 0;
}

/* Says which roles have no map, because no value differs. */
static void equal_note(FILE *out, const struct map map[DIFF_ROLES], const struct diff_collected *c, const struct layers *l) {
    int any = 0;
    for (unsigned role = 0; role < DIFF_ROLES; role++) {
        if (!map[role].used || differ(c, l, role)) continue;
        fprintf(out, "%s%s", any ? ", " : "<p class=\"note\">Equal in all layers: ", kvc_role_name(role));
        any = 1;
    }
    if (any) fputs(".</p>\n", out);
}

static void legend(FILE *out, const struct diff_collected *c, const struct layers *l, struct svg_scale scale) {
    const struct diff_worst worst = diff_collect_worst(c);
    svg_heat_legend_begin(out, scale, "||a \xe2\x88\x92 b|| / ||a||");
    if (worst.tensor && column_of(l, worst.tensor->pair) < l->n)
        fputs("<span><svg width=\"14\" height=\"12\" aria-hidden=\"true\"><rect class=\"ring\" x=\"1\" y=\"1\" width=\"12\" "
              "height=\"10\"/></svg>"
              "the worst head</span>",
              out);
    svg_legend_item(out, "none", "no such head");
    if (worst.tensor && worst.tensor->head[worst.head].nonfinite) svg_legend_item(out, "nan", "not finite");
    svg_legend_end(out);
}

/* Draws the maps of all roles on one scale of colors. */
static int draw_roles(FILE *out, const struct diff_collected *c, const struct layers *l, struct kvc_error *e) {
    struct map map[DIFF_ROLES] = {{0}};
    struct svg_scale scale = {.high = 0};
    char label[80];
    int status = 0, drawn = 0;
    for (unsigned role = 0; role < DIFF_ROLES && !status; role++) {
        status = role_map(&map[role], c, l, role, e);
        if (!status && map[role].used)
            scale = svg_scale_join(scale, svg_scale_of(map[role].value, (size_t)map[role].heads * l->n));
    }
    for (unsigned role = 0; role < DIFF_ROLES && !status; role++) {
        if (!map[role].used || !differ(c, l, role)) continue;
        snprintf(label, sizeof label, "Relative error of %s by layer and head", kvc_role_name(role));
        status = draw_map(out, &map[role], l, scale, label, e);
        drawn = 1;
    }
    if (drawn) legend(out, c, l, scale);
    if (drawn) part_note(out, l);
    equal_note(out, map, c, l);
    for (unsigned role = 0; role < DIFF_ROLES; role++) free_map(&map[role]);
    return status;
}

static int draw_attention(FILE *out, const struct kvc_attended *a, const struct layers *l, struct kvc_error *e) {
    struct map m;
    uint64_t heads = 0;
    double most = 0;
    for (size_t i = 0; i < a->n; i++)
        if (a->layer[i].heads > heads) heads = a->layer[i].heads;
    if (!heads) return 0;
    int status = start_map(&m, heads, l, e);
    for (size_t i = 0; i < a->n && !status; i++) {
        const uint32_t x = column_of(l, a->layer[i].k);
        for (uint64_t h = 0; h < a->layer[i].heads && x < l->n; h++) {
            const double kl = kvc_attention_kl(&a->layer[i].head[h]);
            m.value[h * l->n + x] = kl;
            if (!(kl > most)) continue;
            most = kl;
            m.mark_row = (uint32_t)h;
            m.mark_column = x;
        }
    }
    const struct svg_scale scale = status ? (struct svg_scale){.high = 0} : svg_scale_of(m.value, (size_t)heads * l->n);
    if (!status) status = draw_map(out, &m, l, scale, "KL divergence of attention by layer and KV head", e);
    if (!status) {
        svg_heat_legend_begin(out, scale, "nats, mean over queries");
        svg_legend_end(out);
    }
    free_map(&m);
    return status;
}

int diff_report_heatmaps(struct diff_comparison *d, FILE *out, struct kvc_error *e) {
    const struct diff_collected *c = d->collected;
    struct layers l = {.n = 0};
    html_section(out, "heads", "Error by layer and head");
    if (!d->unequal) {
        html_note(out, "No value differs, so there is no picture of errors.");
        return 0;
    }
    int status = 0;
    for (int companions = 0; companions < 2 && !status; companions++) {
        status = find_layers(&l, c, companions, e);
        if (!status && l.n) status = draw_roles(out, c, &l, e);
        if (!status && l.n && !companions) status = draw_attention(out, &d->attended, &l, e);
        free_layers(&l);
    }
    return status;
}

/* --- channels --- */

static int draw_channels(FILE *out, const struct diff_collected *c, const struct diff_collected_channels *w,
                         struct kvc_error *e) {
    const struct diff_collected_tensor *t = &c->tensor[w->tensor];
    const uint64_t heads = t->pair->heads, dim = w->n / heads;
    const double rows = (double)t->pair->parts->rows.rows;
    char label[192], tensor[128];
    struct kvc_error_sum all = {0, 0};
    if (w->n >= UINT32_MAX || !dim) return 0;
    double *value = kvc_alloc(w->n, sizeof *value);
    if (!value) return kvc_fail_memory(e, "a heatmap");
    for (uint64_t i = 0; i < w->n; i++) kvc_error_sum_add(&all, &w->channel[i]);
    const double rms = sqrt(all.aa / ((double)w->n * rows));
    for (uint64_t i = 0; i < w->n; i++) value[i] = rms > 0 ? sqrt(w->channel[i].dd / rows) / rms : sqrt(w->channel[i].dd / rows);
    diff_layers_label(t->pair, t->pair, tensor, sizeof tensor);
    snprintf(label, sizeof label, "%s: RMS error of each channel, relative to the RMS of the tensor", tensor);
    const struct svg_heatmap h = {.label = label,
                                  .row_word = "head",
                                  .column_word = "channel",
                                  .rows = (uint32_t)heads,
                                  .columns = (uint32_t)dim,
                                  .value = value,
                                  .scale = svg_scale_of(value, (size_t)w->n),
                                  .mark_row = SVG_NOTHING};
    fputs("<figure><figcaption>", out);
    html_text(out, label);
    fputs("</figcaption>\n", out);
    const int status = svg_heatmap(out, &h);
    svg_heat_legend_begin(out, h.scale, "of the RMS of the tensor");
    svg_legend_end(out);
    fputs("</figure>\n", out);
    free(value);
    return status ? kvc_fail_memory(e, "a heatmap") : 0;
}

int diff_report_channels(struct diff_comparison *d, FILE *out, struct kvc_error *e) {
    const struct diff_collected *c = d->collected;
    if (!c->n_worst) return 0;
    html_section(out, "channels", "Channels of the worst tensors");
    for (unsigned i = 0; i < c->n_worst; i++)
        if (draw_channels(out, c, &c->worst[i], e)) return -1;
    return 0;
}

/* rate.c: the step from a KLD by the profile's metric, or from a ratio or an error by trial.
 * Figures: man/kvc-profile.5. */
#include "formats/file/rate.h"

#include "formats/compare/attention.h"
#include "formats/cache/layers.h"
#include "formats/cache/view.h"
#include "formats/model/profile_step.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { TRIALS = 14 };

/* Coefficients of one stream of a cache, of as many tokens as a profile is made from. Where the
 * cache holds a part of the model's layers, as a file of one pipeline stage does, those of all
 * `layers`: a KLD is the model's, and the other layers drift as well. */
static double coefficients_of(const struct kvc_cache *c, uint32_t stream, uint32_t layers) {
    double n = 0;
    uint32_t here = 0;
    for (uint32_t l = 0; l < c->n_layers; l++) {
        const struct kvc_layer *layer = &c->layer[l];
        const struct kvc_part *part = &c->part[layer->part];
        if (!kvc_part_is_attended(part) || part->stream != stream) continue;
        const double window = (double)kvc_layer_window(&c->meta.facts, layer),
                     cells = (double)part->cells.n;
        const double rows = window > 0 && window < KVC_PROFILE_CONTEXT ? window
                            : part->kind == KVC_PART_WINDOW && cells < KVC_PROFILE_CONTEXT
                                ? cells
                                : KVC_PROFILE_CONTEXT;
        int any = 0;
        for (int r = 0; r < 2; r++) {
            const struct kvc_tensor *t = layer->tensor[r] == KVC_NONE
                                             ? NULL
                                             : &c->tensor[layer->tensor[r]];
            if (!t || (t->role != KVC_ROLE_K && t->role != KVC_ROLE_V)) continue;
            n += rows * (double)t->shape.heads * (double)t->shape.dim;
            any = 1;
        }
        here += (uint32_t)any;
    }
    return here && here < layers ? n * layers / here : n;
}

/* Returns the value for the largest stream: drift is measured on one sequence. */
static double coefficients(const struct kvc_cache *c, uint32_t layers) {
    double most = 0;
    for (uint32_t p = 0; p < c->n_parts; p++)
        most = fmax(most, coefficients_of(c, c->part[p].stream, layers));
    return most;
}

/* Returns the coefficients that the profile's estimates are for. */
static double counted(const struct kvc_cache *c, const struct kvc_pack_options *o) {
    return o->profile ? coefficients(c, kvc_profile_layers(o->profile)) : 0;
}

/* Returns the step whose larger estimated KLD is `kld`. */
static double step_for(const struct kvc_cache *c, const struct kvc_pack_options *o, double kld) {
    return kvc_profile_step(o->profile, counted(c, o), kld);
}

static void set_steps(struct kvc_recipe *recipe, double step) {
    for (unsigned i = 0; i < recipe->n; i++)
        if (recipe->item[i].stage->step)
            recipe->item[i].stage->set_step(&recipe->item[i].args, step);
}

/* --- trials --- */

struct trial {
    const struct kvc_cache *c;
    struct kvc_pack_options options;
    const struct kvc_rate *rate;
    struct kvc_recipe recipe;
    struct kvc_cache *view, *queries; /* as binary32, for errors */
};

static int take_nothing(void *s, const void *data, size_t n, struct kvc_error *e) {
    (void)s, (void)data, (void)n, (void)e;
    return 0;
}

/* Adds the errors of attention in one layer to `total`. */
static int measure_layer(const struct trial *t, const struct kvc_cache *decoded, uint32_t layer,
                         struct kvc_attention *total, struct kvc_error *e) {
    const struct kvc_layer *l = &t->view->layer[layer];
    const uint32_t k = l->tensor[0], v = l->tensor[1],
                   q = kvc_cache_find_queries(t->queries, l->index);
    if (k == KVC_NONE || v == KVC_NONE || q == KVC_NONE || t->view->tensor[k].role != KVC_ROLE_K ||
        !kvc_part_is_attended(&t->view->part[l->part]))
        return 0;
    const struct kvc_cells *cells = &t->view->part[l->part].cells;
    const size_t heads = (size_t)t->view->tensor[k].shape.heads;
    struct kvc_matching rows;
    struct kvc_attention *head = calloc(heads, sizeof *head);
    if (!head) return kvc_fail_memory(e, "attention");
    int status = kvc_match_rows(cells, cells, INT64_MIN, INT64_MAX, &rows, e);
    if (!status) {
        const struct kvc_attention_layer both = {.cache = {t->view, decoded},
                                                 .queries = t->queries,
                                                 .k = {k, k},
                                                 .v = {v, v},
                                                 .q = q,
                                                 .rows = &rows,
                                                 .window = kvc_layer_window(&t->view->meta.facts,
                                                                            l)};
        status = kvc_attention_compare(&both, head, e);
        for (size_t h = 0; h < heads && !status; h++)
            status = kvc_attention_add(total, &head[h], e);
        kvc_matching_free(&rows);
    }
    for (size_t h = 0; h < heads; h++) kvc_attention_free(&head[h]);
    free(head);
    return status;
}

/* Sets *value to the error of a packed cache, in the requested measure. */
static int rate_measure(const struct trial *t, const struct kvc_buffer *packed, double *error,
                        struct kvc_error *e) {
    struct kvc_input in;
    struct kvc_attention total = {0};
    kvc_input_memory(&in, "a trial", packed->data, packed->n);
    struct kvc_cache *c = kvc_format_import(&kvc_format_kvc, &in, NULL, e),
                     *view = c ? kvc_view_float(c, e) : NULL;
    int status = view ? 0 : -1;
    for (uint32_t l = 0; l < t->view->n_layers && !status; l++)
        status = measure_layer(t, view, l, &total, e);
    if (!status && !total.queries)
        status =
            kvc_fail(e, KVC_ERR_UNSUPPORTED,
                     "no layer has queries, K and V: an error of attention cannot be measured");
    if (!status)
        *error = t->rate->logit_error > 0 ? kvc_attention_logit_rms(&total)
                                          : kvc_attention_output(&total, 0.99);
    kvc_attention_free(&total);
    kvc_cache_free(view);
    kvc_cache_free(c);
    kvc_input_close(&in);
    return status;
}

/* Sets *value to the ratio or the error that a step gives. */
static int try_step(struct trial *t, double step, double *value, struct kvc_error *e) {
    struct kvc_pack_report report;
    set_steps(&t->recipe, step);
    t->options.recipe = &t->recipe;
    struct kvc_buffer buffer = {0};
    struct kvc_sink to_memory = kvc_sink_buffer(&buffer), nowhere = {.write = take_nothing};
    int status = kvc_container_write(t->c, &t->options, t->view ? &to_memory : &nowhere, &report,
                                     e);
    if (!status && t->view) status = rate_measure(t, &buffer, value, e);
    else if (!status) *value = (double)t->rate->row_bytes / (double)report.stored_bytes;
    free(buffer.data);
    return status;
}

/* Limits of the search, beyond all useful steps. */
#define LEAST_SHARE 0x1p-12
#define MOST_SHARE 0x1p12

/* The step at which the value, which grows with it, reaches `wanted`: between low and high by
 * regula falsi on logarithms. A ratio is met within half a percent; an error stays below what is
 * allowed, by less than 3 %. */
static int find_step(struct trial *t, double start, double wanted, int is_ratio, double *found,
                     double *reached, struct kvc_error *e) {
    double low = 0, high = 0, at_low = 0, at_high = 0, step = start, value = 0;
    int failed = 0;
    *found = 0;
    for (int i = 0; i < TRIALS; i++) {
        /* a step that is too fine for the largest coefficients is below all that can be met */
        failed = try_step(t, step, &value, e) != 0;
        const int below = value <= wanted;
        if (failed && (!e || e->need != KVC_NEED_STEP)) return -1;
        if (!failed &&
            (is_ratio ? fabs(value / wanted - 1) < 0.005 : below && value > 0.97 * wanted)) {
            *found = step;
            *reached = value;
            return 0;
        }
        if (failed) {
            low = step, at_low = 0;
        } else if (below) {
            if (!is_ratio || !(*found > 0) ||
                fabs(log(value / wanted)) < fabs(log(*reached / wanted)))
                *found = step, *reached = value;
            low = step, at_low = value;
        } else {
            high = step, at_high = value;
        }
        if (!(high > 0)) step *= 4;
        else if (!(low > 0)) step /= 4;
        else if (at_low > 0 && i % 3 != 2)
            step = low * pow(high / low,
                             fmin(0.95, fmax(0.05, log(wanted / at_low) / log(at_high / at_low))));
        else step = sqrt(low * high);
        if (step > start * MOST_SHARE || step < start * LEAST_SHARE) break;
    }
    if (is_ratio && *found > 0 && fabs(*reached / wanted - 1) < 0.01) return 0;
    if (!is_ratio && *found > 0) return 0;
    if (failed && !(high > 0)) return -1;
    return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                    is_ratio ? "a ratio of %g cannot be met: steps give %.4g"
                             : "an error of %g cannot be met: the finest step gives %.4g",
                    wanted, value);
}

static int by_trial(const struct kvc_cache *c, const struct kvc_pack_options *options,
                    const struct kvc_rate *rate, struct kvc_recipe *recipe,
                    struct kvc_rate_report *report, struct kvc_error *e) {
    struct trial t = {.c = c, .options = *options, .rate = rate, .recipe = *recipe};
    const double error = rate->output_error > 0 ? rate->output_error : rate->logit_error;
    const struct kvc_cache *from = options->queries ? options->queries : c;
    int status = 0;
    t.options.no_verify = 1;
    t.options.progress = NULL;
    if (error > 0) {
        t.options.embed_profile = 1; /* so that the trial decodes by itself */
        if (!kvc_cache_has_queries(from))
            return kvc_fail_need(
                e, KVC_ERR_UNSUPPORTED, KVC_NEED_QUERIES,
                "an error of attention is measured with queries, and there are none");
        if (!(t.view = kvc_view_float(c, e)) ||
            !(t.queries = kvc_view_queries(from, c->meta.facts.rope.pairing, e)))
            status = -1;
    }
    if (!status) {
        const int is_ratio = !(error > 0);
        double reached = 0;
        status = find_step(&t, step_for(c, options, KVC_PROFILE_KLD),
                           is_ratio ? rate->ratio : error, is_ratio, &report->step, &reached, e);
        if (is_ratio) report->ratio = reached;
        else report->error = reached;
        set_steps(recipe, report->step);
        for (unsigned i = 0; i < recipe->n; i++) { /* as rounded for the recipe */
            double kld;
            const struct kvc_item *item = &recipe->item[i];
            if (item->stage->step) report->step = item->stage->step(&item->args, &kld);
        }
    }
    kvc_cache_free(t.view);
    kvc_cache_free(t.queries);
    return status;
}

int kvc_rate_settle(const struct kvc_cache *c, const struct kvc_pack_options *options,
                    const struct kvc_rate *rate, struct kvc_recipe *settled,
                    struct kvc_rate_report *report, struct kvc_error *e) {
    struct kvc_recipe recipe = *kvc_recipe_or_default(options->recipe);
    const int asked = (rate->kld > 0) + (rate->ratio > 0) + (rate->output_error > 0) +
                      (rate->logit_error > 0);
    unsigned codes = 0;
    *report = (struct kvc_rate_report){.step = 0};
    for (unsigned i = 0; i < recipe.n; i++) {
        struct kvc_stage_args *const args = &recipe.item[i].args;
        const struct kvc_stage *stage = recipe.item[i].stage;
        double kld;
        if (!stage->step) continue;
        codes++;
        double step = stage->step(args, &kld);
        if (rate->kld > 0) step = step_for(c, options, rate->kld);
        else if (!(step > 0)) step = step_for(c, options, kld > 0 ? kld : KVC_PROFILE_KLD);
        stage->set_step(args, step);
        report->step = stage->step(args, &kld);
    }
    if (asked > 1)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "only one of a KLD, a ratio and an error can be asked for");
    if (asked && !codes)
        return kvc_fail(
            e, KVC_ERR_USAGE,
            "the recipe has no step to settle: take a preset such as small, or a recipe with code");
    if ((rate->ratio > 0 || rate->output_error > 0 || rate->logit_error > 0) &&
        by_trial(c, options, rate, &recipe, report, e))
        return -1;
    if (codes && (!options->fit || options->fit->verdict == KVC_FIT_GOOD)) {
        const double n = counted(c, options), square = report->step * report->step;
        report->kld[0] = kvc_profile_drift(options->profile, n) * square;
        report->kld[1] = kvc_profile_drift_worst(options->profile, n) * square;
    }
    *settled = recipe;
    return 0;
}

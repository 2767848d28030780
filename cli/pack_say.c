/* pack_say.c: what kvc-pack says of a packed file. Not for packing (kvc-pack.c). */
#include "cli/kld_text.h"
#include "cli/pack_job.h"

#include "formats/io/hash.h"
#include "formats/cache/keys.h"
#include "formats/cache/rows.h"
#include "formats/container/plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Returns the bytes of the last n rows of part 0. */
static uint64_t last_bytes(const struct kvc_cache *c, uint64_t n) {
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (c->layer[c->tensor[t].layer].part == 0) bytes += n * kvc_row_bytes(&c->tensor[t].shape);
    return bytes;
}

void pack_say_rows(struct cli_pack *p, const struct kvc_cache *c) {
    struct kvc_rows rows;
    char text[800];
    p->zero_bytes = 0;
    /* packing reads the same rows, and says why it cannot */
    if (kvc_rows_look(&rows, c, NULL)) return;
    p->zero_bytes = last_bytes(c, rows.zeros);
    kvc_rows_say(&rows, "", text, sizeof text);
    if (*text && !p->job.input.quiet) cli_warn("%s: %s", p->file->input.name, text);
}

/* --- what a lossy recipe left as it was --- */

/* The lowest model layer from `from` on with a tensor of this role that comes back bit by bit, or
 * KVC_NONE. */
static uint32_t next_lossless(const struct kvc_cache *c, const struct kvc_plan *plan,
                              enum kvc_role role, uint32_t from) {
    uint32_t next = KVC_NONE;
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        const uint32_t index = c->layer[c->tensor[t].layer].index;
        if (c->tensor[t].role == role && index >= from && index < next &&
            kvc_pipeline_lossless(&plan->pipeline[plan->pipeline_of[t]]))
            next = index;
    }
    return next;
}

/* "K of layers 0-14,20; V of layer 3" */
static void print_lossless(FILE *out, const struct kvc_cache *c, const struct kvc_plan *plan) {
    const char *between = "";
    for (enum kvc_role role = KVC_ROLE_K; role <= KVC_ROLE_HIDDEN; role++) {
        uint32_t next = next_lossless(c, plan, role, 0);
        if (next == KVC_NONE) continue;
        const int one = next_lossless(c, plan, role, next + 1) == KVC_NONE;
        fprintf(out, "%s%s of layer%s ", between, kvc_role_name(role), one ? "" : "s");
        between = "";
        while (next != KVC_NONE) {
            const uint32_t first = next;
            uint32_t last = first;
            while ((next = next_lossless(c, plan, role, last + 1)) == last + 1 && next != KVC_NONE)
                last = next;
            fprintf(out, "%s%" PRIu32, between, first);
            if (last > first) fprintf(out, "-%" PRIu32, last);
            between = ",";
        }
        between = "; ";
    }
}

static void say_lossless(const char *name, const struct kvc_cache *c,
                         const struct kvc_recipe *recipe) {
    struct kvc_plan plan;
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);
    if (!out) return;
    /* it was planned while packing, so it can be planned */
    if (!kvc_plan_make(&plan, c, recipe, NULL)) {
        print_lossless(out, c, &plan);
        kvc_plan_free(&plan);
    }
    if (!fclose(out) && *text) cli_warn("%s: left lossless: %s", name, text);
    free(text);
}

#define MOST_PREDICTED 0.2

/* `kld` of the text's continuation and of recall. */
static void say_kld(const char *name, const double kld[2]) {
    char text[160];
    cli_warn("%s: predicted KLD %.2g for the text's continuation, %.2g for recall: estimates from "
             "the profile's metric",
             name, kld[0], kld[1]);
    cli_warn("%s: a KLD of %.2g: %s (kvc-quality(7))", name, kld[0],
             cli_kld_text(CLI_KLD_TOKENS, kld[0], text, sizeof text));
}

static void say_errors(const struct cli_pack *p, const char *name,
                       const struct kvc_recipe *recipe) {
    const struct kvc_rate_report *r = &p->done.rated;
    char text[KVC_MAX_RECIPE_TEXT];
    if (p->done.fit.ratio[0] > 0 || p->done.fit.ratio[1] > 0)
        cli_warn("%s: fit of the profile: %s; mean square of coefficients to the profile's: K "
                 "%.3g, V %.3g (1: as in its texts)",
                 name, kvc_fit_name(p->done.fit.verdict), p->done.fit.ratio[0],
                 p->done.fit.ratio[1]);
    if (r->step > 0 && !kvc_recipe_print(recipe, text, sizeof text))
        cli_warn("%s: recipe %s", name, text);
    if (r->kld[0] > MOST_PREDICTED)
        cli_warn("%s: the step is coarser than estimates of a KLD are for", name);
    else if (r->kld[0] > 0) say_kld(name, r->kld);
    else if (p->how.options.profile && p->done.fit.verdict != KVC_FIT_GOOD &&
             kvc_profile_metric(p->how.options.profile) == KVC_METRIC_FISHER)
        cli_warn("%s: no KLD is predicted, as %s", name,
                 p->done.fit.verdict == KVC_FIT_UNKNOWN
                     ? "whether the profile fits could not be measured"
                     : "the profile does not fit the cache well");
    else if (r->step > 0)
        cli_warn("%s: no profile with a metric of the model: the step is a relative one, and no "
                 "KLD is predicted",
                 name);
    if (r->error > 0)
        cli_warn("%s: error left in attention, measured: %s %.4g", name,
                 p->how.rate.logit_error > 0 ? "logits, root mean square,"
                                             : "outputs, 0.99 of them below",
                 r->error);
    if (p->how.options.no_verify) return;
    cli_warn("%s: error left in the values, measured: K %.4g, V %.4g of their root mean square",
             name, p->done.report.error[0], p->done.report.error[1]);
}

void pack_say_lossy(const struct cli_pack *p, const char *name, const struct kvc_cache *c,
                    const struct kvc_recipe *recipe) {
    say_lossless(name, c, recipe);
    say_errors(p, name, recipe);
}

/* "; reading needs the profile of ...", or nothing, into text. */
static void profile_text(const struct cli_pack *p, char *text, size_t size) {
    char hash[2 * KVC_SHA256_BYTES + 1];
    const char *model = p->how.options.profile ? kvc_profile_model(p->how.options.profile) : "";
    *text = '\0';
    if (!p->done.report.uses_profile || p->how.options.embed_profile) return;
    kvc_hex(kvc_profile_sha256(p->how.options.profile), KVC_SHA256_BYTES, hash);
    snprintf(text, size,
             "; reading needs the profile%s%s (sha256 %.8s...): keep it, or use --embed-profile",
             *model ? " of " : "", model, hash);
}

/* The one line that every lossy container gets, and every container that cannot be read without a
 * profile. */
static void say_lossy(const struct cli_pack *p, const char *name, double ratio) {
    char profile[512];
    if (p->job.input.quiet) return;
    profile_text(p, profile, sizeof profile);
    if (p->done.report.lossless && *profile) cli_warn("%s: lossless%s", name, profile);
    if (p->done.report.lossless) return;
    cli_warn("%s: lossy: recipe %s, %.1f times smaller%s", name, p->recipe_text, ratio, profile);
}

static int has_fingerprint(const struct kvc_meta *m) {
    for (size_t i = 0; i < m->n; i++)
        if (strncmp(m->entry[i].key, KVC_KEY_FINGERPRINT, strlen(KVC_KEY_FINGERPRINT)) == 0)
            return 1;
    return 0;
}

/* Once a run. */
static void hint_fingerprint(struct cli_pack *p, const struct kvc_meta *m) {
    if (p->hinted || p->job.input.quiet || has_fingerprint(m)) return;
    p->hinted = 1;
    cli_warn("packed without a model fingerprint; --model=FILE adds one");
}

static void report_fit(struct cli_json *j, const struct kvc_fit *fit) {
    cli_json_open(j, "profile_fit", '{');
    cli_json_text(j, "verdict", kvc_fit_name(fit->verdict));
    cli_json_f64(j, "k", fit->ratio[0]);
    cli_json_f64(j, "v", fit->ratio[1]);
    cli_json_open(j, "layers", '[');
    for (uint32_t i = 0; i < fit->n; i++) {
        cli_json_open(j, NULL, '{');
        cli_json_u64(j, "layer", fit->layer[i].layer);
        cli_json_f64(j, "k", fit->layer[i].ratio[0]);
        cli_json_f64(j, "v", fit->layer[i].ratio[1]);
        cli_json_close(j);
    }
    cli_json_close(j);
    cli_json_close(j);
}

/* What the container lacks of its source, so that the source cannot be given back. */
static void say_missing(const struct cli_pack *p, const struct kvc_opened *f) {
    static const char outcome[] =
        ", and so without the file's own bytes: it cannot be given back as it was";
    if (p->job.input.quiet) return;
    if (p->how.options.no_tokens && f->cache->n_extents)
        cli_warn("%s: without its token ids%s", f->input.name, outcome);
    if (p->done.left_out)
        cli_warn("%s: without its queries and hidden states%s", f->input.name, outcome);
    if (p->part.given) cli_warn("%s: packed in part%s", f->input.name, outcome);
    if (p->done.dequantized) cli_warn("%s: dequantised%s", f->input.name, outcome);
}

/* Writes what the ratio counts beside rows of tokens, and what it does not count, each with a comma
 * after it. Less than a hundredth of the source is not worth a word. */
static void tell_apart(const struct cli_pack *p, const struct kvc_opened *f, char *text,
                       size_t size) {
    const uint64_t source = kvc_opened_size(f), rows = p->done.row_bytes,
                   stored = p->done.report.stored_bytes;
    char bytes[32];
    *text = '\0';
    if (p->zero_bytes && stored)
        snprintf(text, size, "%.3f without rows of zeros, ",
                 (double)(rows - p->zero_bytes) / (double)stored);
    if (p->part.given || p->done.left_out || kvc_cache_is_container(f->cache) ||
        source <= rows + source / 100)
        return;
    cli_size_text(source - rows, bytes);
    snprintf(text + strlen(text), size - strlen(text), "%s of the source are no K or V, ", bytes);
}

void pack_say_done(void *state, const struct kvc_opened *f) {
    struct cli_pack *p = state;
    const struct kvc_pack_report *r = &p->done.report;
    double ratio = r->stored_bytes ? (double)p->done.row_bytes / (double)r->stored_bytes : 0;
    double seconds = job_now() - p->progress.start;
    const int lossless = r->lossless && !p->done.dequantized;
    if (p->job.json) {
        struct cli_json *j = &p->job.report.json;
        cli_report_file(&p->job.report, f->input.name);
        cli_json_text(j, "format", f->format->name);
        cli_json_u64(j, "source_bytes", kvc_opened_size(f));
        cli_json_u64(j, "tensor_bytes", r->tensor_bytes);
        cli_json_u64(j, "stored_bytes", r->stored_bytes);
        cli_json_f64(j, "ratio", ratio);
        if (p->zero_bytes) cli_json_u64(j, "zero_bytes", p->zero_bytes);
        cli_json_bool(j, "companions", !p->done.left_out);
        cli_json_u64(j, "records", r->records);
        cli_json_u64(j, "sections", r->sections);
        cli_json_u64(j, "same_rows", r->same_rows);
        cli_json_bool(j, "lossless", lossless);
        if (!r->lossless && !p->how.options.no_verify) {
            cli_json_f64(j, "error_k", r->error[0]);
            cli_json_f64(j, "error_v", r->error[1]);
        }
        if (p->done.rated.step > 0) cli_json_f64(j, "step", p->done.rated.step);
        if (p->done.rated.error > 0)
            cli_json_f64(j, p->how.rate.logit_error > 0 ? "logit_rms" : "output_p99",
                         p->done.rated.error);
        if (p->done.fitted) report_fit(j, &p->done.fit);
        if (p->done.rated.kld[0] > 0) {
            cli_json_f64(j, "predicted_kld", p->done.rated.kld[0]);
            cli_json_f64(j, "predicted_kld_recall", p->done.rated.kld[1]);
        }
        cli_json_bool(j, "verified", !p->how.options.no_verify);
        cli_json_f64(j, "seconds", seconds);
        cli_report_file_end(&p->job.report);
    }
    say_missing(p, f);
    say_lossy(p, f->input.name, ratio);
    if (!p->job.verbose) return;
    char from[32], to[32], apart[160];
    cli_size_text(p->done.row_bytes, from);
    cli_size_text(r->stored_bytes, to);
    hint_fingerprint(p, &f->cache->meta);
    tell_apart(p, f, apart, sizeof apart);
    cli_warn("%s: %s -> %s (%.3f), %s%s%s, %.2f s", f->input.name, from, to, ratio, apart,
             lossless ? "lossless" : "lossy", p->how.options.no_verify ? "" : ", verified",
             seconds);
}

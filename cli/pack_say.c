/* pack_say.c: what kvc-pack says of a packed file. Not for packing (kvc-pack.c). */
#include "cli/kld_text.h"
#include "cli/pack_job.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

double pack_ratio(const struct kvc_write_report *r) {
    return r->bytes ? (double)r->row_bytes / (double)r->bytes : 0;
}

/* --- what a lossy recipe did --- */

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

static void say_no_kld(const struct cli_pack *p, const char *name) {
    const struct kvc_write_report *r = &p->done;
    const int good = r->fit && strcmp(r->fit, "good") == 0,
              unknown = !r->fit || strcmp(r->fit, "unknown") == 0;
    if ((p->how.shared_profile || p->chosen) && !good && strcmp(p->profile.metric, "fisher") == 0)
        cli_warn("%s: no KLD is predicted, as %s", name,
                 unknown ? "whether the profile fits could not be measured"
                         : "the profile does not fit the cache well");
    else if (r->step > 0)
        cli_warn("%s: no profile with a metric of the model: the step is a relative one, and no "
                 "KLD is predicted",
                 name);
}

/* With -v: which tensors a lossy recipe left as they were, and the errors that it left in the
 * others. */
static void say_errors(const struct cli_pack *p, const char *name) {
    const struct kvc_write_report *r = &p->done;
    if (r->base_rows)
        cli_warn("%s: %.1f %% of the rows stay as %s has them", name,
                 100 * (double)r->base_rows / (double)r->rows, job_source(p->base).name);
    if (*r->exact) cli_warn("%s: left lossless: %s", name, r->exact);
    if (r->fit_ratio[0] > 0 || r->fit_ratio[1] > 0)
        cli_warn("%s: fit of the profile: %s; mean square of coefficients to the profile's: K "
                 "%.3g, V %.3g (1: as in its texts)",
                 name, r->fit, r->fit_ratio[0], r->fit_ratio[1]);
    if (r->step > 0 && *r->recipe) cli_warn("%s: recipe %s", name, r->recipe);
    if (r->kld[0] > MOST_PREDICTED)
        cli_warn("%s: the step is coarser than estimates of a KLD are for", name);
    else if (r->kld[0] > 0) say_kld(name, r->kld);
    else say_no_kld(p, name);
    if (r->target_error > 0)
        cli_warn("%s: error left in attention, measured: %s %.4g", name,
                 p->how.max_logit_error > 0 ? "logits, root mean square,"
                                            : "outputs, 0.99 of them below",
                 r->target_error);
    if (p->how.no_verify) return;
    cli_warn("%s: error left in the values, measured: K %.4g, V %.4g of their root mean square",
             name, r->error[0], r->error[1]);
}

/* "; reading needs the profile of ...", or nothing, into text. */
static void profile_text(const struct cli_pack *p, char *text, size_t size) {
    const struct kvc_profile_info *profile = &p->profile;
    *text = '\0';
    if (!p->done.needs_profile) return;
    snprintf(text, size,
             "; reading needs the profile%s%s (sha256 %02x%02x%02x%02x...): keep it, or use "
             "--embed-profile",
             *profile->model ? " of " : "", profile->model, profile->sha256[0], profile->sha256[1],
             profile->sha256[2], profile->sha256[3]);
}

/* The one line that every lossy container gets, and every container that cannot be read without a
 * profile. */
static void say_lossy(const struct cli_pack *p, const char *name) {
    char profile[512];
    if (p->job.input.quiet) return;
    profile_text(p, profile, sizeof profile);
    if (p->done.lossless && *profile) cli_warn("%s: lossless%s", name, profile);
    if (p->done.lossless) return;
    cli_warn("%s: lossy: recipe %s, %.1f times smaller%s", name, p->recipe_text,
             pack_ratio(&p->done), profile);
}

/* --- profiles --- */

/* With -v: the profile that was chosen. */
static void say_chosen(const struct cli_pack *p, const char *name) {
    if (!p->chosen || !p->done.fit || !p->job.verbose) return;
    cli_warn("%s: profile %s (%s), which fits; --profile=none packs without", name, p->profile.path,
             *p->profile.model ? p->profile.model : "of a model without a name");
}

/* With -v, once a run: how the profile that readers need stays to be had. */
static void say_keep(struct cli_pack *p, const char *name) {
    const struct kvc_profile *profile = p->chosen ? p->chosen : p->how.shared_profile;
    char command[1536];
    if (!p->done.needs_profile || !p->job.verbose || p->job.test || p->hinted_profile || p->base ||
        kvc_shared_profile_kept(profile, p->job.target, command, sizeof command))
        return;
    p->hinted_profile = 1;
    if (*command) cli_warn("%s: readers find the profile after: %s", name, command);
    else cli_warn("%s: readers find the profile only by --profile=%s", name, p->profile.path);
}

/* On a terminal and with -v, once a run: what a profile would give to the transform codec. Figures:
 * kvc-profile(5). */
static void say_without(struct cli_pack *p, const char *name) {
    const int told = p->how.shared_profile || p->chosen || p->no_profile || p->joined.append ||
                     p->base;
    if (told || !(p->done.step > 0) || p->hinted_profile || p->job.input.quiet ||
        !(p->job.verbose || isatty(STDERR_FILENO)))
        return;
    p->hinted_profile = 1;
    cli_warn("%s: packed without a profile of the model, with which files are two to six times "
             "smaller: kvc-profile make or learn; kvc-profile(1)",
             name);
}

/* --- other lines --- */

/* Once a run. */
static void hint_fingerprint(struct cli_pack *p, const struct kvc_file *f) {
    static const char fingerprint[] = "model.fingerprint";
    if (p->hinted || p->job.input.quiet) return;
    for (size_t i = 0; kvc_file_meta_key(f, i); i++)
        if (strncmp(kvc_file_meta_key(f, i), fingerprint, sizeof fingerprint - 1) == 0) return;
    p->hinted = 1;
    cli_warn("packed without a model fingerprint; --model=FILE adds one");
}

static void report_fit(struct cli_json *j, const struct kvc_write_report *r) {
    cli_json_open(j, "profile_fit", '{');
    cli_json_text(j, "verdict", r->fit);
    cli_json_f64(j, "k", r->fit_ratio[0]);
    cli_json_f64(j, "v", r->fit_ratio[1]);
    cli_json_open(j, "layers", '[');
    for (uint32_t i = 0; i < r->n_layers; i++) {
        cli_json_open(j, NULL, '{');
        cli_json_u64(j, "layer", r->layers[i].layer);
        cli_json_f64(j, "k", r->layers[i].ratio[0]);
        cli_json_f64(j, "v", r->layers[i].ratio[1]);
        cli_json_close(j);
    }
    cli_json_close(j);
    cli_json_close(j);
}

/* What the container lacks of its source, so that the source cannot be given back. */
static void say_missing(const struct cli_pack *p, const struct kvc_source_info *from) {
    static const char outcome[] =
        ", and so without the file's own bytes: it cannot be given back as it was";
    if (p->job.input.quiet) return;
    if (p->how.no_tokens && from->has_bytes)
        cli_warn("%s: without its token ids%s", from->name, outcome);
    if (p->done.no_companions)
        cli_warn("%s: without its queries and hidden states%s", from->name, outcome);
    if (p->part.given) cli_warn("%s: packed in part%s", from->name, outcome);
    if (p->done.dequantized) cli_warn("%s: dequantised%s", from->name, outcome);
}

/* Writes what the ratio counts beside rows of tokens, and what it does not count, each with a comma
 * after it. Less than a hundredth of the source is not worth a word. */
static void tell_apart(const struct cli_pack *p, const struct kvc_source_info *from, char *text,
                       size_t size) {
    const uint64_t source = from->bytes, rows = p->done.row_bytes, stored = p->done.bytes;
    char bytes[32];
    *text = '\0';
    if (p->done.zero_bytes && stored)
        snprintf(text, size, "%.3f without rows of zeros, ",
                 (double)(rows - p->done.zero_bytes) / (double)stored);
    if (p->part.given || p->done.no_companions || from->packed || source <= rows + source / 100)
        return;
    cli_size_text(source - rows, bytes);
    snprintf(text + strlen(text), size - strlen(text), "%s of the source are no K or V, ", bytes);
}

static void report(struct cli_pack *p, const struct kvc_file *f, const struct kvc_source_info *from,
                   double seconds) {
    const struct kvc_write_report *r = &p->done;
    struct cli_json *j = &p->job.report.json;
    cli_report_file(&p->job.report, from->name);
    cli_json_text(j, "format", kvc_file_format(f));
    cli_json_u64(j, "source_bytes", from->bytes);
    cli_json_u64(j, "tensor_bytes", r->tensor_bytes);
    cli_json_u64(j, "stored_bytes", r->bytes);
    cli_json_f64(j, "ratio", pack_ratio(r));
    if (r->zero_bytes) cli_json_u64(j, "zero_bytes", r->zero_bytes);
    cli_json_bool(j, "companions", !r->no_companions);
    cli_json_u64(j, "records", r->records);
    cli_json_u64(j, "sections", r->sections);
    cli_json_u64(j, "same_rows", r->same_rows);
    if (r->rows) {
        cli_json_u64(j, "base_rows", r->base_rows);
        cli_json_u64(j, "rows", r->rows);
    }
    cli_json_bool(j, "lossless", r->lossless && !r->dequantized);
    if (!r->lossless && !p->how.no_verify) {
        cli_json_f64(j, "error_k", r->error[0]);
        cli_json_f64(j, "error_v", r->error[1]);
    }
    if (r->step > 0) cli_json_f64(j, "step", r->step);
    if (r->target_error > 0)
        cli_json_f64(j, p->how.max_logit_error > 0 ? "logit_rms" : "output_p99", r->target_error);
    if (r->fit) report_fit(j, r);
    if (r->kld[0] > 0) {
        cli_json_f64(j, "predicted_kld", r->kld[0]);
        cli_json_f64(j, "predicted_kld_recall", r->kld[1]);
    }
    cli_json_bool(j, "verified", !p->how.no_verify);
    cli_json_f64(j, "seconds", seconds);
    cli_report_file_end(&p->job.report);
}

void pack_say_done(void *state, const struct kvc_file *f) {
    struct cli_pack *p = state;
    const struct kvc_write_report *r = &p->done;
    const struct kvc_source_info source = job_source(f);
    const double seconds = cli_now() - p->start;
    char from[32], to[32], apart[160];
    if (p->job.verbose && !r->lossless) say_errors(p, source.name);
    if (p->job.json) report(p, f, &source, seconds);
    say_missing(p, &source);
    say_lossy(p, source.name);
    say_chosen(p, source.name);
    say_keep(p, source.name);
    say_without(p, source.name);
    if (!p->job.verbose) return;
    cli_size_text(r->row_bytes, from);
    cli_size_text(r->bytes, to);
    hint_fingerprint(p, f);
    tell_apart(p, &source, apart, sizeof apart);
    cli_warn("%s: %s -> %s (%.3f), %s%s%s, %.2f s", source.name, from, to, pack_ratio(r), apart,
             r->lossless && !r->dequantized ? "lossless" : "lossy",
             p->how.no_verify ? "" : ", verified", seconds);
}

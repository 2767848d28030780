/* pack_curve.c: kvc-pack --curve: packs a file by each preset to nowhere, and reports ratio and
 * error. Not for drawing (curve.c). */
#include "cli/curve.h"
#include "cli/pack_job.h"

#include <stdlib.h>
#include <string.h>

/* KLDs between and beyond those of the presets, for a profile that predicts them. */
static const double klds[] = {0.001, 0.1};

/* Packs the file by the options of *p into *point. */
static void measure(struct cli_pack *p, const struct kvc_file *f, struct curve_point *point) {
    struct cli_output nowhere = {.fd = -1};
    const struct kvc_write_report *r = &p->done;
    point->failed = p->job.write(p, f, &nowhere, point->why) != 0;
    if (point->failed) {
        /* all are about one file */
        kvc_error_set(point->why, (enum kvc_code)kvc_error_code(point->why),
                      (enum kvc_need)kvc_error_need(point->why), "%s",
                      cli_error_unnamed(point->why, job_source(f).name));
        return;
    }
    point->stored = r->bytes;
    point->lossless = r->lossless && !r->dequantized;
    point->ratio = pack_ratio(r);
    for (int k = 0; k < 2 && !point->lossless; k++) {
        point->error[k] = r->error[k];
        point->kld[k] = r->kld[k];
    }
}

static struct curve_point *pack_curve_add(struct curve *c, const char *name) {
    struct curve_point *grown = cli_room_for_one(c->point, c->n, sizeof *grown);
    if (!grown) return NULL;
    c->point = grown;
    struct curve_point *point = &c->point[c->n++];
    *point = (struct curve_point){.why = cli_error_new()};
    snprintf(point->name, sizeof point->name, "%s", name);
    return point;
}

/* Adds the point of a recipe, with a KLD as its target unless `kld` is 0. */
static int add_recipe(struct cli_pack *p, struct curve *c, const struct kvc_file *f,
                      const char *recipe, double kld, struct kvc_error *e) {
    char name[64];
    if (kld > 0) snprintf(name, sizeof name, "--target-kld=%g", kld);
    else snprintf(name, sizeof name, "%s", recipe);
    struct curve_point *point = pack_curve_add(c, name);
    if (!point) return cli_no_memory(e, "the points of a curve");
    p->how.recipe = recipe;
    p->how.target_kld = kld;
    p->how.target_ratio = p->how.max_output_error = p->how.max_logit_error = 0;
    measure(p, f, point);
    return 0;
}

/* Adds the point of the options. It is that of a preset if they name one and no target. */
static int add_chosen(struct cli_pack *p, struct curve *c, const struct kvc_file *f,
                      const struct kvc_write_options *chosen, struct kvc_error *e) {
    const int targets = chosen->target_kld > 0 || chosen->target_ratio > 0 ||
                        chosen->max_output_error > 0 || chosen->max_logit_error > 0;
    for (size_t i = 0; i < c->n && !targets; i++)
        if (strcmp(c->point[i].name, p->recipe_text) == 0 &&
            (chosen->recipe || !p->how.shared_profile)) {
            c->point[i].chosen = 1;
            return 0;
        }
    struct curve_point *point = pack_curve_add(c, chosen->recipe && !targets
                                                      ? p->recipe_text
                                                      : "the options' recipe");
    if (!point) return cli_no_memory(e, "the points of a curve");
    point->chosen = 1;
    p->how = *chosen;
    measure(p, f, point);
    return 0;
}

static int add_all(struct cli_pack *p, struct curve *c, const struct kvc_file *f,
                   struct kvc_error *e) {
    const struct kvc_write_options chosen = p->how;
    if (add_recipe(p, c, f, "split", 0, e)) return -1;
    if (p->how.shared_profile && add_recipe(p, c, f, "cross", 0, e)) return -1;
    for (size_t i = 0; kvc_preset_name(i, NULL); i++)
        if (add_recipe(p, c, f, kvc_preset_name(i, NULL), 0, e)) return -1;
    for (size_t i = 0; curve_is_kld(c) && i < sizeof klds / sizeof klds[0]; i++)
        if (add_recipe(p, c, f, "small", klds[i], e)) return -1;
    return add_chosen(p, c, f, &chosen, e);
}

static int pack_curve_collect(struct cli_pack *p, struct curve *c, const char *path,
                              struct kvc_error *e) {
    struct kvc_file *f = cli_open(path, &p->job.input, e);
    const int status = f ? add_all(p, c, f, e) : -1;
    kvc_file_close(f);
    return status;
}

static void report(struct cli_report *r, const struct curve *c) {
    struct cli_json *j = &r->json;
    cli_report_start(r, stdout);
    cli_report_file(r, c->file);
    cli_json_text(j, "axis", curve_is_kld(c) ? "kld" : "error");
    cli_json_open(j, "curve", '[');
    for (size_t i = 0; i < c->n; i++) {
        const struct curve_point *p = &c->point[i];
        cli_json_open(j, NULL, '{');
        cli_json_text(j, "recipe", p->name);
        cli_json_bool(j, "chosen", p->chosen);
        if (p->failed) {
            cli_json_error(j, p->why);
        } else {
            cli_json_u64(j, "stored_bytes", p->stored);
            cli_json_f64(j, "ratio", p->ratio);
            cli_json_bool(j, "lossless", p->lossless);
            cli_json_f64(j, "error_k", p->error[0]);
            cli_json_f64(j, "error_v", p->error[1]);
            if (p->kld[0] > 0) {
                cli_json_f64(j, "predicted_kld", p->kld[0]);
                cli_json_f64(j, "predicted_kld_recall", p->kld[1]);
            }
        }
        cli_json_close(j);
    }
    cli_json_close(j);
    cli_report_file_end(r);
    cli_report_end(r);
}

static int write_picture(const struct cli_pack *p, const struct curve *c, struct kvc_error *e) {
    struct cli_output out;
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f) return cli_no_memory(e, "a picture");
    int status = curve_write_svg(c, f, e);
    if (fclose(f)) status = cli_no_memory(e, "a picture");
    if (!status) status = cli_output_open(&out, p->curve_path, p->job.force, 0666, e);
    if (!status) status = cli_output_end(&out, cli_output_write(&out, text, n), e);
    free(text);
    return status;
}

int pack_curve(struct cli_pack *p, const char *path, struct kvc_error *e) {
    struct curve c = {.file = path};
    int status = 0;
    if (p->curve_path && !p->job.force && cli_output_exists(p->curve_path))
        status = cli_usage_error(e, "%s exists already: use -f to replace it", p->curve_path);
    p->how.note = NULL; /* notes are for the packing that follows */
    p->how.exact = 0;
    if (!status) status = pack_curve_collect(p, &c, path, e);
    if (!status && p->job.json) {
        report(&p->job.report, &c);
    } else if (!status) {
        curve_print_table(&c, stdout);
        curve_print_plot(&c, stdout);
    }
    int failed = status || (p->curve_path && write_picture(p, &c, e));
    for (size_t i = 0; i < c.n && !failed; i++) {
        if (!c.point[i].chosen || !c.point[i].failed) continue;
        kvc_error_copy(e, c.point[i].why);
        failed = 1;
    }
    if (status && p->job.json) {
        cli_report_start(&p->job.report, stdout);
        cli_report_failed(&p->job.report, path, e);
        cli_report_end(&p->job.report);
    }
    if (failed) {
        kvc_error_about(e, path);
        cli_error(e);
    }
    for (size_t i = 0; i < c.n; i++) kvc_error_free(c.point[i].why);
    free(c.point);
    return failed ? EXIT_TROUBLE : EXIT_SAME;
}

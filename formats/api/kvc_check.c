/* kvc_check.c: implements kvc_file_check() and kvc_check() of kvc.h. The work is done in
 * formats/container/inspect.c. */
#include "formats/api/kvc.h"
#include "formats/api/kvc_file.h"
#include "formats/api/sized.h"
#include "formats/cache/rows.h"
#include "formats/container/container.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int kvc_file_check(const struct kvc_file *f, unsigned threads, struct kvc_error *e) {
    if (KVC_NULL(e, f)) return -1;
    const struct kvc_file *whole = kvc_file_whole(f);
    const struct kvc_survey *s = whole->survey;
    if (f->check) return f->check(f, threads, e);
    for (size_t i = 0; i < whole->n_joined; i++)
        if (kvc_file_check(whole->joined[i], threads, e)) return -1;
    if (!kvc_cache_is_container(whole->cache) || (s && !s->n)) return 0;
    if (s)
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "%s: %" PRIu64 " of %" PRIu64 " records are damaged or missing", f->name,
                        s->damaged, s->records);
    return kvc_container_check(whole->cache, threads, e) ? kvc_error_prefix(e, f->name) : 0;
}

/* --- from a path --- */

/* The caller's callback of progress. A check cannot be cancelled. */
static void show(void *state, uint64_t done, uint64_t total) {
    const struct kvc_check_options *how = state;
    how->progress(how->progress_state, done, total);
}

static int ends_in_kvc(const char *path) {
    const size_t n = strlen(path), suffix = strlen(kvc_format_kvc.suffix);
    return n >= suffix && strcmp(path + n - suffix, kvc_format_kvc.suffix) == 0;
}

/* Returns 1 if the input is a .kvc by its bytes, its name or the format that the caller names. An
 * unreadable .kvc counts as damaged. */
static int claims_kvc(const struct kvc_bundle *b, const char *format) {
    char why[256];
    if (!b->is_file) return 0;
    if (format) return strcmp(format, kvc_format_kvc.name) == 0;
    return kvc_format_kvc.probe(b, why, sizeof why) || ends_in_kvc(b->name);
}

static int check_container(const struct kvc_file *f, struct kvc_check_options *how,
                           struct kvc_error *e) {
    if (how->check) return how->check(how->check_state, f, e);
    return kvc_container_check_shown(f->cache, how->threads, how->progress ? show : NULL, how, e);
}

/* Reads all of an opened bundle. Returns 0, 1 for a damaged .kvc, or -1. */
static int check_bundle(struct kvc_file *f, struct kvc_file_opening *by,
                        struct kvc_check_options *how, int is_kvc, struct kvc_error *e) {
    const struct kvc_import_options *import = &by->how.import;
    struct kvc_opened *o = &f->opened;
    o->format = &kvc_format_kvc;
    o->cache = is_kvc ? kvc_format_kvc.import(&o->bundle, import, e)
                      : kvc_import(&o->bundle, import, &o->format, e);
    f->cache = o->cache;
    f->name = o->input.name;
    if (f->cache && (!is_kvc || !check_container(f, how, e))) return 0;
    return is_kvc && (e->code == KVC_ERR_DAMAGED || e->code == KVC_ERR_UNKNOWN_FORMAT) ? 1 : -1;
}

/* Lists all damage of a file whose first damage is in *e. Returns 1, with f->survey unless nothing
 * more is known. Returns -1 where whole rows cannot be decoded for another reason, which outweighs
 * damage. */
static int list_damage(struct kvc_file *f, struct kvc_file_opening *by, unsigned threads,
                       struct kvc_error *e) {
    struct kvc_error why;
    kvc_cache_free(f->opened.cache);
    f->cache = f->opened.cache = kvc_import_damaged(&f->opened.input, &by->how.import, &why);
    f->survey = f->cache ? kvc_salvage_survey(f->opened.cache, threads, &why) : NULL;
    if (!f->survey || f->survey->trouble.code == KVC_OK) return 1;
    *e = f->survey->trouble;
    return -1;
}

/* Checks what `by` tells to open. *damaged is a handle with a list of damage, or NULL. */
static int check_path(const char *path, struct kvc_file_opening *by, struct kvc_check_options *how,
                      struct kvc_check_report *report, struct kvc_error *e) {
    struct kvc_file *f = calloc(1, sizeof *f);
    if (!f) return kvc_fail_memory(e, "a file");
    by->how.any_bytes = ends_in_kvc(path);
    if (kvc_open_bundle(&f->opened, path, &by->how, e)) {
        free(f);
        return -1;
    }
    report->has_checksums = claims_kvc(&f->opened.bundle, by->how.import.format);
    int status = check_bundle(f, by, how, report->has_checksums, e);
    if (status > 0) status = list_damage(f, by, how->threads, e);
    if (f->survey && f->survey->n) {
        f->weights = by->weights;
        by->weights = NULL;
        report->damaged = f;
        return status;
    }
    kvc_close(&f->opened);
    free(f);
    return status;
}

int kvc_check(const char *path, const struct kvc_open_options *options,
              const struct kvc_check_options *how, struct kvc_check_report *report,
              struct kvc_error *e) {
    if (KVC_NULL(e, path)) return -1;
    if (kvc_sized_check(report, "kvc_check_report", e)) return -1;
    struct kvc_check_report own = {0};
    struct kvc_check_options h;
    struct kvc_file_opening by;
    struct kvc_error why;
    if (kvc_sized_take(&h, sizeof h, how, "kvc_check_options", e)) return -1;
    int status = kvc_file_opening_begin(&by, options, &why);
    if (!status) status = check_path(path, &by, &h, &own, &why);
    kvc_file_opening_end(&by);
    if (status && e) *e = why;
    if (report && kvc_sized_give(report, &own, sizeof own, "kvc_check_report", e)) status = -1;
    if (!report) kvc_file_close(own.damaged);
    return status;
}

int kvc_file_check_hashes(const struct kvc_file *f, struct kvc_error *e) {
    if (KVC_NULL(e, f)) return -1;
    if (!kvc_cache_is_container(f->cache)) return 0;
    return kvc_container_check_hashes(f->cache, e);
}

int kvc_file_check_rows(const struct kvc_file *f, struct kvc_error *e) {
    if (KVC_NULL(e, f)) return -1;
    struct kvc_rows rows;
    if (kvc_rows_look(&rows, f->cache, e) || kvc_rows_refuse(&rows, e))
        return kvc_error_prefix(e, f->name);
    return 0;
}

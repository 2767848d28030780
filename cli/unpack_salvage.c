/* unpack_salvage.c: kvc-unpack --salvage: writes what is whole of a damaged container. Not for
 * finding damage (formats/container/survey.c). */
#include "cli/damage.h"
#include "cli/unpack.h"

#include <inttypes.h>
#include <string.h>

int unpack_check_salvage(struct cli_unpack *u) {
    const char *from = u->job.input.import.format;
    if (!u->salvage) return 0;
    if (u->job.test)
        return cli_usage("--salvage and -t exclude each other: kvc-dump --check lists all damage");
    if (u->job.remove)
        return cli_usage(
            "--salvage and --rm exclude each other: the output may lack parts of the input");
    if (u->device.kind != CLI_DEVICE_CPU)
        return cli_usage("--salvage decodes on the CPU only: leave out --device");
    if (from && strcmp(from, "kvc") != 0)
        return cli_usage("--salvage reads .kvc files only, not %s", from);
    u->job.input.import.format = "kvc"; /* damaged first bytes may not tell the format */
    return 0;
}

/* Finds the positions that a selection covers: [*first, *end). */
static void find_range(const struct kvc_cache *c, const struct kvc_selection *s, int64_t *first,
                       int64_t *end) {
    *first = INT64_MAX;
    *end = INT64_MIN;
    for (uint32_t p = 0; p < c->n_parts; p++) {
        const struct kvc_cells *cells = &c->part[p].cells;
        if ((c->part[p].kind != KVC_PART_LIVE && c->part[p].kind != KVC_PART_SLIDING) || !cells->n)
            continue;
        const int64_t begin = kvc_cells_position(cells, 0),
                      last = kvc_cells_position(cells, cells->n - 1);
        if (begin < *first) *first = begin;
        if (last >= *end) *end = last + 1;
    }
    if (s->end && (uint64_t)*end > s->end) *end = (int64_t)s->end;
    if (s->first && *first < (int64_t)s->first) *first = (int64_t)s->first;
}

/* Says what was written of what was selected. as_it_was: the source's own file was wanted, and a
 * new file was written. */
static void say_salvaged(struct cli_unpack *u, const struct kvc_opened *f,
                         const struct kvc_selection *given, int as_it_was) {
    const struct kvc_survey *s = u->survey;
    int64_t first, end, given_first, given_end;
    find_range(f->cache, &u->part.selection, &first, &end);
    find_range(f->cache, given, &given_first, &given_end);
    u->incomplete = given_end < end || given->no_companions || s->no_meta || s->no_tokens ||
                    (as_it_was && (s->no_source || f->cache->n_extents));
    if (u->job.input.quiet) return;
    cli_warn("%s: given back: tokens %" PRId64 ":%" PRId64 " of %" PRId64 ":%" PRId64 "%s%s%s%s%s",
             f->input.name, given_first, given_end, first, end,
             u->part.selection.layers ? " of the selected layers" : "",
             as_it_was ? ", as a new file" : "", s->no_tokens ? ", without token ids" : "",
             s->no_meta ? ", without metadata" : "",
             given->no_companions ? ", without queries and hidden states" : "");
}

int unpack_write_salvaged(struct cli_unpack *u, const struct kvc_opened *f, struct kvc_sink *out,
                          struct kvc_error *e) {
    const int as_it_was = unpack_wants_source(u, f->cache);
    u->incomplete = 0;
    if (!(u->survey = kvc_salvage_survey(f->cache, u->job.threads, e))) return -1;
    const struct kvc_survey *s = u->survey;
    if (s->n && !u->job.input.quiet) cli_say_damage(f->input.name, s);
    if (s->trouble.code != KVC_OK) {
        *e = s->trouble;
        return -1;
    }
    if (!s->n ||
        (as_it_was && f->cache->n_extents && kvc_survey_all_whole(s, f->cache) && !s->no_source))
        return unpack_write(u, f, f->cache, out, e);
    struct cli_unpack some = *u;
    if (kvc_survey_narrow(s, f->cache, &some.part.selection, e)) return -1;
    some.part.given = 1;
    if (unpack_write(&some, f, f->cache, out, e)) return -1;
    say_salvaged(u, f, &some.part.selection, as_it_was);
    return 0;
}

/* unpack_salvage.c: kvc-unpack --salvage: writes what is whole of a damaged container. */
#include "cli/damage.h"
#include "cli/unpack.h"

#include <inttypes.h>
#include <string.h>

int unpack_check_salvage(struct cli_unpack *u) {
    const char *from = u->job.input.open.format;
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
    u->job.input.open.damaged = 1;
    u->job.input.open.threads = u->job.threads;
    return 0;
}

/* What a file has of the live cache and its windows. */
struct range {
    int64_t first, end; /* positions */
    int companions;
};

static struct range find_range(const struct kvc_file *f) {
    struct range r = {INT64_MAX, INT64_MIN, 0};
    struct kvc_tensor_info t = {.size = sizeof t};
    for (uint32_t i = 0; !kvc_file_tensor(f, i, &t); i++) {
        const int is_companion = strcmp(t.part, "companion") == 0;
        r.companions |= is_companion;
        if ((strcmp(t.part, "live") != 0 && strcmp(t.part, "window") != 0) || !t.rows) continue;
        const int64_t begin = kvc_file_position(f, i, 0),
                      last = kvc_file_position(f, i, t.rows - 1);
        if (begin < r.first) r.first = begin;
        if (last >= r.end) r.end = last + 1;
    }
    return r;
}

/* Returns 1 if queries or hidden states of the range were left out, as they are damaged. */
static int lost_companions(const struct cli_unpack *u, const struct kvc_file *f,
                           const struct range *given) {
    struct kvc_select_options asked = u->part.selection;
    if (given->companions || given->end <= 0) return 0;
    asked.end = (uint64_t)given->end;
    struct kvc_file *part = kvc_file_select(f, &asked, NULL);
    const int lost = part && find_range(part).companions;
    kvc_file_close(part);
    return lost;
}

/* Says what was written of what was selected. as_it_was: the source's own file was wanted, and a
 * new file was written. */
static void say_salvaged(struct cli_unpack *u, const struct kvc_file *f, const struct range *given,
                         int as_it_was) {
    const struct kvc_select_options *part = &u->part.selection;
    struct kvc_survey_info s = {.size = sizeof s};
    struct range all = find_range(f);
    kvc_file_survey(f, &s);
    if (part->end && (uint64_t)all.end > part->end) all.end = (int64_t)part->end;
    if (part->first && all.first < (int64_t)part->first) all.first = (int64_t)part->first;
    const int lost = lost_companions(u, f, given);
    u->incomplete = given->end < all.end || lost || s.no_meta || s.no_tokens ||
                    (as_it_was && (s.no_source || job_source(f).has_bytes));
    if (u->job.input.quiet) return;
    cli_warn("%s: given back: tokens %" PRId64 ":%" PRId64 " of %" PRId64 ":%" PRId64 "%s%s%s%s%s",
             job_source(f).name, given->first, given->end, all.first, all.end,
             part->layers ? " of the selected layers" : "", as_it_was ? ", as a new file" : "",
             s.no_tokens ? ", without token ids" : "", s.no_meta ? ", without metadata" : "",
             lost ? ", without queries and hidden states" : "");
}

int unpack_write_salvaged(struct cli_unpack *u, const struct kvc_file *f,
                          const struct unpack_place *place, struct kvc_error *e) {
    const struct kvc_write_options o = unpack_options(u);
    struct kvc_survey_info s = {.size = sizeof s};
    struct kvc_target_info target = {.size = sizeof target};
    u->incomplete = 0;
    if (kvc_file_target(f, u->to, &o, &target, e)) return -1;
    kvc_file_survey(f, &s);
    const int as_it_was = !u->part.given && !u->pairing && !u->settings.n &&
                          (!target.format || !u->to);
    if (s.places && !u->job.input.quiet) cli_say_damage(job_source(f).name, f);
    if (!s.places || (as_it_was && job_source(f).has_bytes && s.whole && !s.no_source))
        return unpack_write(u, f, place, e);
    struct cli_unpack some = *u;
    some.part.selection.whole = 1;
    struct kvc_file *part = kvc_file_select(f, &some.part.selection, e);
    if (!part) return -1;
    const struct range given = find_range(part);
    some.part.given = 0;
    const int status = unpack_write(&some, part, place, e);
    u->job.bytes = some.job.bytes;
    if (!status) say_salvaged(u, f, &given, as_it_was);
    kvc_file_close(part);
    return status;
}

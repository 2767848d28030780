/* diff_align.c: prints how the channels of two caches were aligned. Not for aligning
 * (formats/compare/align.c). */
#include "cli/diff/diff.h"

#include <inttypes.h>

/* Writes what a note says. */
static void note_text(const struct kvc_align_note *n, char *text, size_t size) {
    const char *role = kvc_role_name(n->role), *to = diff_side[!n->side];
    const char *who = n->told[0]   ? "B does not say"
                      : n->told[1] ? "A does not say"
                                   : "A and B do not say";
    switch (n->kind) {
    case KVC_ALIGN_TILE_GUESSED:
        snprintf(text, size,
                 "%s does not say whether its %s is Hadamard-rotated: with tiles of %" PRIu64
                 " (0: none) the "
                 "relative error of the first %s is %.3g, as stored %.3g: compared rotated back",
                 diff_side[n->side], role, n->tile[n->side], role, n->error, n->plain);
        break;
    case KVC_ALIGN_TILES_DIFFER:
        snprintf(text, size,
                 "Hadamard tiles of %s: %" PRIu64 " in A, %" PRIu64 " in B (0: none): rotated back",
                 role, n->tile[0], n->tile[1]);
        break;
    case KVC_ALIGN_PAIRING_GUESSED:
        snprintf(
            text, size,
            "%s how RoPE pairs the channels of K: as %s in A and %s in B the relative error of the "
            "first K is %.3g, as stored %.3g: aligned %s to %s (--pairing=P,Q decides it)",
            who, kvc_pairing_name(n->pairing[0]), kvc_pairing_name(n->pairing[1]), n->error,
            n->plain, diff_side[n->side], to);
        break;
    case KVC_ALIGN_PAIRINGS_DIFFER:
        snprintf(text, size, "RoPE pairs of K: %s in A, %s in B: aligned %s to %s",
                 kvc_pairing_name(n->pairing[0]), kvc_pairing_name(n->pairing[1]),
                 diff_side[n->side], to);
        break;
    }
}

int diff_align(struct diff_comparison *d, struct kvc_error *e) {
    d->align = (struct kvc_align){.cache = {d->cache[0], d->cache[1]},
                                  .name = {d->compare.name[0], d->compare.name[1]},
                                  .sample = {kvc_pairs_sample(&d->pairs, KVC_ROLE_K),
                                             kvc_pairs_sample(&d->pairs, KVC_ROLE_V)}};
    const int status = kvc_align_caches(&d->align, e);
    for (unsigned i = 0; i < d->align.n_notes; i++) {
        char text[512];
        note_text(&d->align.note[i], text, sizeof text);
        if (!d->quiet) cli_warn("%s", text);
        if (d->collected) diff_collect_align(d->collected, text);
    }
    for (int s = 0; s < 2; s++) d->cache[s] = d->align.cache[s];
    return status;
}

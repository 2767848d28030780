/* diff_labels.c: the names of parts, layers and columns in the output of kvc-diff. Not for matching
 * them (formats/compare/pairs.c). */
#include "cli/diff/diff.h"

#include <inttypes.h>

void diff_tsv_heading(struct diff_comparison *d, enum diff_headed which, const char *heading) {
    if (!(d->headed_rows & which)) puts(heading);
    d->headed_rows |= which;
}

const struct kvc_part *diff_part_of(const struct kvc_part_pair *parts) {
    return parts->part[0] ? parts->part[0] : parts->part[1];
}

void diff_part_label(const struct kvc_part_pair *parts, char *text, size_t size) {
    const struct kvc_part *part = diff_part_of(parts);
    char snapshot[16] = "", stream[24] = "";
    if (part->kind == KVC_PART_SNAPSHOT)
        snprintf(snapshot, sizeof snapshot, " %" PRIu32, part->snapshot);
    if (part->stream) snprintf(stream, sizeof stream, " stream %" PRIu32, part->stream);
    snprintf(text, size, "%s%s%s", kvc_part_kind_name(part->kind), snapshot, stream);
}

void diff_layers_label(const struct kvc_tensor_pair *first, const struct kvc_tensor_pair *last,
                       char *text, size_t size) {
    const struct kvc_part *part = diff_part_of(first->parts);
    const char *role = kvc_role_name(first->role);
    char where[64] = "";
    if (part->kind != KVC_PART_LIVE || part->stream)
        diff_part_label(first->parts, where, sizeof where);
    const char *space = *where ? " " : "";
    if (first->layer == last->layer)
        snprintf(text, size, "%s%slayer %" PRIu32 " %s", where, space, first->layer, role);
    else
        snprintf(text, size, "%s%slayers %" PRIu32 "-%" PRIu32 " %s", where, space, first->layer,
                 last->layer, role);
}

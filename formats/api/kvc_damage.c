/* kvc_damage.c: implements the part of kvc.h on damaged files. The work is done in
 * formats/container/salvage.c and survey.c. */
#include "formats/api/kvc.h"
#include "formats/api/kvc_file.h"
#include "formats/api/sized.h"

int kvc_file_survey(const struct kvc_file *f, struct kvc_survey_info *info) {
    const struct kvc_survey *s = kvc_file_whole(f)->survey;
    if (!s) return -1;
    const struct kvc_survey_info own = {
        .records = s->records,
        .damaged = s->damaged,
        .places = s->n,
        .no_meta = s->no_meta,
        .no_tokens = s->no_tokens,
        .no_source = s->no_source,
        .layers = s->whole_layers,
        .tokens = s->whole_tokens,
        .whole = kvc_survey_all_whole(s, kvc_file_whole(f)->cache),
    };
    return kvc_sized_give(info, &own, sizeof own, "kvc_survey_info", NULL);
}

int kvc_file_damage(const struct kvc_file *f, uint64_t i, struct kvc_damage_info *info) {
    const struct kvc_survey *s = kvc_file_whole(f)->survey;
    if (!s || i >= s->n) return -1;
    const struct kvc_damage *d = &s->damage[i];
    const struct kvc_damage_info own = {
        .kind = d->kind,
        .place = d->place,
        .reason = d->reason,
        .record = d->record,
        .offset = d->offset,
        .bytes = d->size,
        .part = d->has_tensor ? kvc_part_kind_name(d->part) : NULL,
        .role = d->has_tensor ? kvc_role_name(d->role) : NULL,
        .layer = d->layer,
        .has_tokens = d->has_tokens,
        .first = d->first,
        .end = d->end,
    };
    return kvc_sized_give(info, &own, sizeof own, "kvc_damage_info", NULL);
}

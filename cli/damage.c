/* damage.c: prints the damage of a .kvc. */
#include "cli/damage.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MOST_LINES = 1000 };

/* Writes "record 35 (layer 0 V, tokens 0:200), bytes 1982880-2040351". */
static void name_place(const struct kvc_damage_info *d, char *text, size_t size) {
    const int is_block = strcmp(d->kind, "BLOCK") == 0, is_bytes = strcmp(d->kind, "bytes") == 0;
    char what[192];
    if (!*d->place) snprintf(what, sizeof what, "%s", d->kind);
    else if (is_block) snprintf(what, sizeof what, "%s", d->place);
    else snprintf(what, sizeof what, "%s: %s", d->kind, d->place);
    if (d->record != UINT64_MAX) snprintf(text, size, "record %" PRIu64 " (%s)", d->record, what);
    else snprintf(text, size, "%s", what);
    const size_t n = strlen(text);
    if (d->offset == UINT64_MAX) return;
    snprintf(text + n, size - n, "%s%" PRIu64 "-%" PRIu64, is_bytes ? " " : ", bytes ", d->offset,
             d->offset + d->bytes - 1);
}

void cli_say_damage(const char *name, const struct kvc_file *f) {
    struct kvc_survey_info s = {.size = sizeof s};
    struct kvc_damage_info d = {.size = sizeof d};
    char place[256];
    kvc_file_survey(f, &s);
    for (uint64_t i = 0; i < MOST_LINES && !kvc_file_damage(f, i, &d); i++) {
        name_place(&d, place, sizeof place);
        cli_warn("%s: %s: %s", name, place, d.reason);
    }
    if (s.places > MOST_LINES) cli_warn("%s: and %" PRIu64 " more", name, s.places - MOST_LINES);
    if (!s.layers) {
        cli_warn("%s: %" PRIu64 " of %" PRIu64
                 " records are damaged or missing; the whole rows cannot be determined",
                 name, s.damaged, s.records);
        return;
    }
    cli_warn("%s: %" PRIu64 " of %" PRIu64
             " records are damaged or missing; whole layers: %s; tokens whole in all layers: %s",
             name, s.damaged, s.records, *s.layers ? s.layers : "none",
             *s.tokens ? s.tokens : "none");
}

static void json_or_null(struct cli_json *j, const char *key, int known, int64_t value) {
    if (known) cli_json_i64(j, key, value);
    else cli_json_text(j, key, NULL);
}

void cli_json_damage(struct cli_json *j, const struct kvc_file *f) {
    struct kvc_survey_info s = {.size = sizeof s};
    struct kvc_damage_info info = {.size = sizeof info}, *d = &info;
    kvc_file_survey(f, &s);
    cli_json_u64(j, "records", s.records);
    cli_json_u64(j, "damaged_records", s.damaged);
    cli_json_text(j, "whole_layers", s.layers);
    cli_json_text(j, "whole_tokens", s.tokens);
    cli_json_open(j, "damage", '[');
    for (uint64_t i = 0; !kvc_file_damage(f, i, d); i++) {
        const int there = d->offset != UINT64_MAX;
        cli_json_open(j, NULL, '{');
        json_or_null(j, "record", d->record != UINT64_MAX, (int64_t)d->record);
        cli_json_text(j, "kind", d->kind);
        cli_json_text(j, "part", d->part);
        json_or_null(j, "layer", d->part != NULL, d->layer);
        cli_json_text(j, "role", d->role);
        json_or_null(j, "first_token", d->has_tokens, d->first);
        json_or_null(j, "end_token", d->has_tokens, d->end);
        json_or_null(j, "offset", there, (int64_t)d->offset);
        json_or_null(j, "bytes", there, (int64_t)d->bytes);
        cli_json_text(j, "reason", d->reason);
        cli_json_close(j);
    }
    cli_json_close(j);
}

static void print_or_dash(FILE *out, int known, int64_t value) {
    if (known) fprintf(out, "\t%" PRId64, value);
    else fputs("\t-", out);
}

void cli_tsv_damage(FILE *out, const struct kvc_file *f) {
    struct kvc_damage_info info = {.size = sizeof info}, *d = &info;
    for (uint64_t i = 0; !kvc_file_damage(f, i, d); i++) {
        const int there = d->offset != UINT64_MAX;
        fputs("damage", out);
        print_or_dash(out, d->record != UINT64_MAX, (int64_t)d->record);
        fprintf(out, "\t%s\t%s", d->kind, d->part ? d->part : "-");
        print_or_dash(out, d->part != NULL, d->layer);
        fprintf(out, "\t%s", d->role ? d->role : "-");
        print_or_dash(out, d->has_tokens, d->first);
        print_or_dash(out, d->has_tokens, d->end);
        print_or_dash(out, there, (int64_t)d->offset);
        print_or_dash(out, there, (int64_t)d->bytes);
        fputc('\t', out);
        cli_print_safe(out, d->reason);
        fputc('\n', out);
    }
}

/* dump_draw.c: rows of blocks and bars below tables of kvc-dump: stored bytes by layer and by type
 * of section. Not for numbers. */
#include "cli/dump/dump.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { BAR = 40 };

static int draws(const struct dump_out *o) {
    return o->style == DUMP_TEXT && o->canvas.plots;
}

/* Draws the tensors of a role in a part. Returns without a line if there are none. */
static void draw_role(struct dump_out *o, const struct dump_file *f, uint32_t part,
                      const char *role, double largest, double *value) {
    uint32_t first = 0, last = 0;
    uint64_t stored = 0;
    char label[64], size[32];
    size_t n = 0;
    for (uint32_t t = 0; t < f->facts.tensors; t++) {
        const struct dump_tensor *x = &f->tensor[t];
        if (x->more.part != part || strcmp(x->info.role, role) != 0) continue;
        stored += x->more.stored;
        if (!n) first = x->info.layer;
        value[n++] = (double)x->more.stored;
        last = x->info.layer;
    }
    if (!n) return;
    snprintf(label, sizeof label, "part %" PRIu32 " layers %" PRIu32 "-%" PRIu32 " %s", part, first,
             last, role);
    cli_size_text(stored, size);
    fprintf(o->out, "  %-24s ", label);
    cli_strip(&o->canvas, o->out, value, n, largest, NULL);
    fprintf(o->out, "  %s\n", size);
}

void dump_draw_layers(struct dump_out *o, const struct dump_file *f,
                      const struct dump_options *options) {
    const uint32_t n = f->facts.tensors;
    double largest = 0,
           *value = draws(o) && f->source.packed ? calloc((size_t)n + 1, sizeof *value) : NULL;
    char size[32];
    if (!value) return;
    for (uint32_t t = 0; t < n; t++)
        if (dump_wants_part(options, f->tensor[t].more.part) &&
            (double)f->tensor[t].more.stored > largest)
            largest = (double)f->tensor[t].more.stored;
    cli_size_text((uint64_t)largest, size);
    fprintf(o->out, "stored bytes by layer (a full block is %s):\n", size);
    for (uint32_t p = 0; p < f->facts.parts; p++)
        for (size_t role = 0; dump_roles[role] && dump_wants_part(options, p); role++)
            draw_role(o, f, p, dump_roles[role], largest, value);
    free(value);
}

void dump_count_section(struct dump_section_sizes *s, const char *type, uint64_t bytes) {
    unsigned i = 0;
    while (i < s->n && strcmp(s->type[i], type) != 0) i++;
    if (i == DUMP_SECTION_TYPES) return; /* more types than there are */
    if (i == s->n) {
        s->type[s->n++] = type;
        s->bytes[i] = 0;
    }
    s->bytes[i] += bytes;
}

void dump_draw_sections(struct dump_out *o, const struct dump_section_sizes *s) {
    uint64_t largest = 0, total = 0;
    if (!draws(o)) return;
    for (unsigned i = 0; i < s->n; i++) {
        total += s->bytes[i];
        if (s->bytes[i] > largest) largest = s->bytes[i];
    }
    fputs("stored bytes by type of section:\n", o->out);
    for (unsigned i = 0; i < s->n; i++) {
        char size[32];
        cli_size_text(s->bytes[i], size);
        fprintf(o->out, "  %-12s %9s %5.1f %%  ", s->type[i], size,
                total ? 100 * (double)s->bytes[i] / (double)total : 0);
        cli_bar(&o->canvas, o->out, (double)s->bytes[i], (double)largest, BAR);
        fputc('\n', o->out);
    }
}

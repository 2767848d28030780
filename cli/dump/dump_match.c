/* dump_match.c: kvc-dump --match: counts the leading tokens that each file shares with a prompt,
 * and sorts the files. Not for reading the prompt (kvc_token_ids_read()). */
#include "cli/dump/dump.h"
#include "cli/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct dump_matched {
    char *name;
    uint64_t order;  /* index of the file among the operands */
    uint64_t tokens; /* number of tokens of the file's cache */
    struct kvc_match_info found;
};

/* Returns 1 if all tokens of the cache are a prefix of the prompt. */
static int is_whole(const struct dump_matched *m) {
    return m->found.common && !m->found.first && m->found.common == m->tokens;
}

int dump_match(struct dump_out *o, const struct dump_file *f, struct dump_options *options,
               struct kvc_error *e) {
    (void)o; /* printing waits for the last file */
    struct dump_matched m = {.order = options->n_matched,
                             .tokens = f->facts.tokens,
                             .found.size = sizeof m.found};
    if (kvc_file_match_how(f->cache, options->tokens.id, options->tokens.n, &m.found, e)) return -1;
    struct dump_matched *grown = reallocarray(options->matched, options->n_matched + 1,
                                              sizeof *grown);
    if (!grown) return cli_no_memory(e, "the list of files");
    options->matched = grown;
    if (!(m.name = strdup(f->source.name))) return cli_no_memory(e, "a name");
    options->matched[options->n_matched++] = m;
    return 0;
}

/* Sorts caches that are a prefix of the prompt first, the longest first; then the others by shared
 * tokens; then by name. */
static int compare(const void *a, const void *b) {
    const struct dump_matched *x = a, *y = b;
    if (is_whole(x) != is_whole(y)) return is_whole(x) ? -1 : 1;
    if (x->found.common != y->found.common) return x->found.common > y->found.common ? -1 : 1;
    const int names = strcmp(x->name, y->name);
    return names ? names : x->order < y->order ? -1 : 1;
}

static void print_one(struct dump_out *o, const struct dump_matched *m,
                      const struct dump_options *options) {
    const char *how = m->found.by_keys ? "prefix keys" : "token ids";
    if (o->style == DUMP_JSON) {
        dump_begin(o, m->name);
        cli_json_u64(&o->report.json, "common", m->found.common);
        cli_json_u64(&o->report.json, "tokens", m->tokens);
        cli_json_text(&o->report.json, "by", how);
        cli_json_u64(&o->report.json, "first", m->found.first);
        dump_end(o);
    } else if (o->style == DUMP_TSV) {
        static const struct dump_column columns[] = {{"common", 0}, {"name", 0},  {"by", 0},
                                                     {"tokens", 0}, {"first", 0}, {NULL, 0}};
        dump_heading(o, "match", columns);
        fprintf(o->out, "match\t%" PRIu64 "\t", m->found.common);
        cli_print_safe(o->out, m->name);
        fprintf(o->out, "\t%s\t%" PRIu64 "\t%" PRIu64 "\n", how, m->tokens, m->found.first);
    } else {
        fprintf(o->out, "%" PRIu64 "\t%" PRIu64 "\t", m->found.common, m->tokens);
        cli_print_safe(o->out, m->name);
        fprintf(o->out, "%s%s\n", options->verbose ? "\t" : "", options->verbose ? how : "");
    }
}

uint64_t dump_match_end(struct dump_out *o, struct dump_options *options) {
    uint64_t sharing = 0;
    if (options->n_matched > 1)
        qsort(options->matched, (size_t)options->n_matched, sizeof *options->matched, compare);
    for (uint64_t i = 0; i < options->n_matched; i++) {
        print_one(o, &options->matched[i], options);
        sharing += options->matched[i].found.common > 0;
        free(options->matched[i].name);
    }
    free(options->matched);
    options->matched = NULL;
    options->n_matched = 0;
    return sharing;
}

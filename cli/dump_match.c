/* dump_match.c: kvc-dump --match: how much of a prompt each file already holds. */
#include "cli/dump.h"
#include "cli/text.h"
#include "formats/prefix.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int is_separator(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == ',' || c == '[' || c == ']';
}

static int is_text(const struct kvc_input *in) {
    for (uint64_t i = 0; i < in->size; i++) {
        char c = (char)in->data[i];
        if (!is_separator(c) && c != '-' && (c < '0' || c > '9')) return 0;
    }
    return 1;
}

/* One decimal token id from *at on; -1 when there is none. */
static int take_id(const struct kvc_input *in, uint64_t *at, int32_t *id) {
    int negative = in->data[*at] == '-';
    int64_t n = 0;
    uint64_t first = *at += (uint64_t)negative;
    for (; *at < in->size && in->data[*at] >= '0' && in->data[*at] <= '9'; ++*at) {
        n = 10 * n + (in->data[*at] - '0');
        if (n > INT32_MAX) return -1;
    }
    *id = (int32_t)(negative ? -n : n);
    return *at == first || (*at < in->size && !is_separator((char)in->data[*at])) ? -1 : 0;
}

static int read_list(const struct kvc_input *in, struct dump_options *options, struct kvc_error *e) {
    /* An id and what separates it from the next take two bytes at least. */
    options->tokens = malloc((size_t)(in->size / 2 + 1) * sizeof *options->tokens);
    if (!options->tokens) return kvc_fail_memory(e, "tokens");
    for (uint64_t at = 0; at < in->size;) {
        uint64_t start = at;
        if (is_separator((char)in->data[at])) {
            at++;
        } else if (take_id(in, &at, &options->tokens[options->n_tokens++])) {
            return kvc_fail_at(e, KVC_ERR_UNKNOWN, start, "%s: not a token id", in->name);
        }
    }
    return 0;
}

static int read_cache(const struct kvc_input *in, const struct kvc_import_options *import,
                      struct dump_options *options, struct kvc_error *e) {
    const struct kvc_format *format;
    struct kvc_cache *c = kvc_import(in, import, &format, e);
    if (!c && e->code == KVC_ERR_UNKNOWN)
        return kvc_fail(e, KVC_ERR_UNKNOWN, "%s: neither a list of token ids nor a cache file that kvc knows",
                        in->name);
    if (!c) return -1;
    options->tokens = c->tokens;
    options->n_tokens = c->n_tokens;
    c->tokens = NULL;
    c->n_tokens = 0;
    kvc_cache_free(c);
    return 0;
}

int dump_match_tokens(const char *path, const struct kvc_import_options *import, struct dump_options *options,
                      struct kvc_error *e) {
    struct kvc_input in;
    if (kvc_input_open(&in, path, e)) return -1;
    int status = is_text(&in) ? read_list(&in, options, e) : read_cache(&in, import, options, e);
    if (!status && !options->n_tokens)
        status = kvc_fail(e, KVC_ERR_UNKNOWN, "%s: holds no token ids", in.name);
    kvc_input_close(&in);
    return status;
}

int dump_match(struct dump_out *o, const struct cli_file *f, struct dump_options *options,
               struct kvc_error *e) {
    uint64_t common;
    int by_keys;
    if (kvc_prefix_match(f->cache, options->tokens, options->n_tokens, &common, &by_keys, e)) return -1;
    const char *how = by_keys ? "prefix keys" : "token ids";
    options->matched += common > 0;
    if (o->style == DUMP_JSON) {
        dump_begin(o, f->input.name);
        cli_json_u64(&o->report.json, "common", common);
        cli_json_text(&o->report.json, "by", how);
        return 0;
    }
    if (o->style == DUMP_TSV) fputs("match\t", o->out);
    fprintf(o->out, "%" PRIu64 "\t", common);
    cli_print_safe(o->out, f->input.name);
    if (o->style == DUMP_TSV || options->verbose) fprintf(o->out, "\t%s", how);
    fputc('\n', o->out);
    return 0;
}

/* dump_file.c: opens a file, and lists what the library tells of it. Not for printing. */
#include "cli/dump/dump.h"

#include <stdlib.h>

const char *const dump_roles[] = {"K", "V", "latent", "R", "S", "queries", "hidden", NULL};

int dump_file_open(struct dump_file *f, const char *path, struct cli_input *in,
                   struct kvc_error *e) {
    *f = (struct dump_file){.cache = cli_open(path, in, e)};
    if (!f->cache) return -1;
    if (!dump_file_describe(f, e)) return 0;
    dump_file_close(f);
    return -1;
}

int dump_file_describe(struct dump_file *f, struct kvc_error *e) {
    f->source.size = sizeof f->source;
    f->facts.size = sizeof f->facts;
    kvc_file_source(f->cache, &f->source);
    kvc_file_describe(f->cache, &f->facts);
    f->part = calloc((size_t)f->facts.parts + 1, sizeof *f->part);
    f->layer = calloc((size_t)f->facts.layers + 1, sizeof *f->layer);
    f->tensor = calloc((size_t)f->facts.tensors + 1, sizeof *f->tensor);
    if (!f->part || !f->layer || !f->tensor) return cli_no_memory(e, "the facts of a file");
    for (uint32_t i = 0; i < f->facts.parts; i++) {
        f->part[i].size = sizeof *f->part;
        kvc_file_part(f->cache, i, &f->part[i]);
    }
    for (uint32_t i = 0; i < f->facts.layers; i++) {
        f->layer[i].size = sizeof *f->layer;
        kvc_file_layer(f->cache, i, &f->layer[i]);
    }
    for (uint32_t i = 0; i < f->facts.tensors; i++) {
        struct dump_tensor *t = &f->tensor[i];
        t->info.size = sizeof t->info;
        t->more.size = sizeof t->more;
        kvc_file_tensor(f->cache, i, &t->info);
        kvc_file_tensor_more(f->cache, i, &t->more);
    }
    return 0;
}

void dump_file_close(struct dump_file *f) {
    free(f->part);
    free(f->layer);
    free(f->tensor);
    kvc_file_close(f->cache);
    *f = (struct dump_file){.cache = NULL};
}

struct kvc_meta_value dump_meta(const struct dump_file *f, const char *key) {
    struct kvc_meta_value v = {.size = sizeof v};
    kvc_file_meta_value(f->cache, key, &v);
    return v;
}

const char *dump_meta_text(const struct dump_file *f, const char *key, const char *otherwise) {
    const char *text = dump_meta(f, key).text;
    return text ? text : otherwise;
}

int dump_has(const struct dump_file *f, const char *key) {
    return dump_meta(f, key).type != NULL;
}

int dump_check_part(const struct dump_file *f, const struct dump_options *options,
                    struct kvc_error *e) {
    if (options->part == KVC_NO_NUMBER || options->part < f->facts.parts) return 0;
    return cli_usage_error(e, "there is no part %u: the file has %u (0 is the first)",
                           options->part, f->facts.parts);
}

int dump_wants_part(const struct dump_options *options, uint32_t p) {
    return options->part == KVC_NO_NUMBER || options->part == p;
}

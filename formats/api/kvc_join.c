/* kvc_join.c: implements kvc_file_join() of kvc.h. The work is done in formats/cache/join.c and
 * join_heads.c. */
#include "formats/api/kvc.h"
#include "formats/api/kvc_file.h"
#include "formats/cache/join.h"
#include "codecs/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names joined files "a.bin and 2 more", and adds their sizes. */
static int join_describe(struct kvc_file *f, const struct kvc_file *const *files, size_t n,
                         struct kvc_error *e) {
    const int length = n > 1 ? asprintf(&f->joined_name, "%s and %zu more", files[0]->name, n - 1)
                             : asprintf(&f->joined_name, "%s", files[0]->name);
    f->joined = kvc_alloc(n, sizeof *f->joined);
    if (length < 0) f->joined_name = NULL;
    if (length < 0 || !f->joined) return kvc_fail_memory(e, "files");
    memcpy(f->joined, files, n * sizeof *files);
    f->n_joined = n;
    f->name = f->joined_name;
    f->opened.format = kvc_file_whole(files[0])->opened.format;
    for (size_t i = 0; i < n; i++) {
        const struct kvc_file *whole = kvc_file_whole(files[i]);
        f->bytes += whole->bytes ? whole->bytes : kvc_opened_size(&whole->opened);
    }
    return 0;
}

static int join(struct kvc_file *f, int heads, struct kvc_error *e) {
    struct kvc_join_report report;
    struct kvc_join_operand *from = kvc_alloc(f->n_joined, sizeof *from);
    if (!from) return kvc_fail_memory(e, "files");
    for (size_t i = 0; i < f->n_joined; i++)
        from[i] = (struct kvc_join_operand){.cache = f->joined[i]->cache,
                                            .name = f->joined[i]->name};
    f->opened.cache = heads ? kvc_view_join_heads(from, f->n_joined, &report, e)
                            : kvc_view_join(from, f->n_joined, &report, e);
    free(from);
    f->cache = f->opened.cache;
    return f->cache ? 0 : -1;
}

struct kvc_file *kvc_file_join(const struct kvc_file *const *files, size_t n, const char *how,
                               struct kvc_error *e) {
    const int heads = how && strcmp(how, "heads") == 0;
    if (!n || (how && !heads && strcmp(how, "tokens") != 0)) {
        if (n) kvc_fail(e, KVC_ERR_USAGE, "files are joined by tokens or heads, not by '%s'", how);
        else kvc_fail(e, KVC_ERR_USAGE, "there are no files to join");
        return NULL;
    }
    struct kvc_file *f = calloc(1, sizeof *f);
    if (f && !join_describe(f, files, n, e) && !join(f, heads, e)) return f;
    if (!f) kvc_fail_memory(e, "a file");
    kvc_file_close(f);
    return NULL;
}

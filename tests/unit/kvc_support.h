/* kvc_support.h: files read into memory and samples opened through the public interface alone. Not
 * for tests of other headers. */
#ifndef KVC_SUPPORT_H
#define KVC_SUPPORT_H

#include "formats/api/kvc.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct memory {
    uint8_t *data;
    size_t n;
};

static inline int append(void *state, const void *data, size_t n) {
    struct memory *m = state;
    uint8_t *grown = realloc(m->data, m->n + n);
    if (!grown) return -1;
    memcpy(grown + m->n, data, n);
    m->data = grown;
    m->n += n;
    return 0;
}

static inline struct memory file_bytes(const char *path) {
    struct memory m = {0};
    uint8_t chunk[4096];
    size_t n;
    FILE *f = fopen(path, "rb");
    if (!f) return m;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) append(&m, chunk, n);
    fclose(f);
    return m;
}

#define SAMPLE "samples/slot-f16.bin"

static inline struct kvc_file *sample(struct kvc_error *e) {
    const struct kvc_open_options options = {.size = sizeof options,
                                             .kv_heads = 3,
                                             .pairing = "interleaved"};
    struct kvc_file *f = kvc_file_open(SAMPLE, &options, e);
    if (!f) fail_msg("%s", kvc_error_message(e));
    return f;
}

#endif

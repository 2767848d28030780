/* make_inputs.c: makes files for which a barrier of the device decoder is needed, where the stored
 * files do without it: run.sh decodes them, so that a barrier that is missing is reported. Not for
 * decoding them (tests/unit/test_load.c).
 *
 *   make_inputs FOLDER      writes FOLDER/NAME.kvc */
#include "tests/cuda/made.h"

#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *name, *recipe;
    int profile;
    struct made_shape shape;
} inputs[] = {
    /* A tile of a basis is multiplied in two parts: 12 rows, of which 32 lanes have 8 at a time. */
    {"basis-of-80",
     "center,basis,code:step=0.5",
     1,
     {.tokens = 24, .layers = 1, .heads = 1, .dim_k = 80, .dim_v = 24, .dtype = KVC_F16}},
    /* Streams of four lanes: a lane reads the rotation of channels that another lane has rotated,
     * after a ballot, which orders no memory: only ThreadSanitizer reports it. Streams but the
     * first begin after row 0. */
    {"rotated",
     "split:stream=2048",
     0,
     {.tokens = 100,
      .layers = 1,
      .heads = 1,
      .dim_k = 64,
      .dim_v = 8,
      .dtype = KVC_BF16,
      .mean = 6}},
};

static int make(size_t i, const char *folder, struct kvc_error *e) {
    char path[512];
    struct made m;
    snprintf(path, sizeof path, "%s/%s.kvc", folder, inputs[i].name);
    int status = made_new(&m, &inputs[i].shape, inputs[i].profile, e);
    if (!status) status = made_pack(m.cache, inputs[i].recipe, m.profile, path, e);
    made_free(&m);
    return status;
}

int main(int argc, char **argv) {
    struct kvc_error e;
    if (argc != 2) return fprintf(stderr, "usage: make_inputs FOLDER\n"), 2;
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        if (make(i, argv[1], &e))
            return fprintf(stderr, "make_inputs: %s: %s\n", inputs[i].name, e.message), 1;
    }
    return 0;
}

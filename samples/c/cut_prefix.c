/* cut_prefix.c: the first tokens of a cache file, packed, and compared with what they were cut
 * from.
 *
 *     cc cut_prefix.c $(pkg-config --cflags --libs kvc) -o cut_prefix
 *     ./cut_prefix slot.bin 8 prefix.kvc
 *
 * Every function that can fail takes a struct kvc_error, which holds the message afterwards. */
#include <kvc.h>
#include <stdio.h>
#include <stdlib.h>

static int write_bytes(void *state, const void *data, size_t n) {
    return fwrite(data, 1, n, state) != n;
}

int main(int argc, char **argv) {
    if (argc != 4) return fprintf(stderr, "usage: %s FILE TOKENS OUT\n", argv[0]), 2;
    struct kvc_error *e = kvc_error_new();
    struct kvc_select_options part = {.size = sizeof part,
                                      .end = strtoull(argv[2], NULL, 10),
                                      .no_companions = 1};
    /* .recipe = "fast", .threads = 2, ... */
    struct kvc_write_options lossless = {.size = sizeof lossless};
    struct kvc_comparison found = {.size = sizeof found};
    struct kvc_file *file = kvc_file_open(argv[1], NULL, e), *prefix = NULL, *packed = NULL;
    FILE *out = NULL;
    int status = 2;
    if (file && (prefix = kvc_file_select(file, &part, e)) && (out = fopen(argv[3], "wb")) &&
        !kvc_file_pack(prefix, &lossless, write_bytes, out, e) && !fclose(out) &&
        (packed = kvc_file_open(argv[3], NULL, e)) &&
        kvc_file_compare(packed, prefix, NULL, &found, e) >= 0) {
        printf("%u tensors, %llu values, %llu differ\n", (unsigned)kvc_file_tensors(packed),
               (unsigned long long)found.values, (unsigned long long)found.differ);
        status = found.differ != 0;
    } else {
        fprintf(stderr, "%s\n",
                file && prefix && !out ? "the output cannot be opened" : kvc_error_message(e));
    }
    kvc_file_close(packed);
    kvc_file_close(prefix); /* before the file that it is a part of */
    kvc_file_close(file);
    kvc_error_free(e);
    return status;
}

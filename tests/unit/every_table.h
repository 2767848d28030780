/* every_table.h: compares the kernel tables by a digest of what they code. A process chooses its
 * table once: the test's program runs again for each, as `PROGRAM digest`. */
#ifndef EVERY_TABLE_H
#define EVERY_TABLE_H

#include "kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Prints digest() and returns 1 where a program was called as `PROGRAM digest`. */
static inline int print_digest(int argc, char **argv, unsigned long long (*digest)(void)) {
    if (argc != 2 || strcmp(argv[1], "digest") != 0) return 0;
    printf("%016llx\n", digest());
    return 1;
}

/* Fails where a kernel table that this CPU runs has another digest than `own`, of this process;
 * NULL: than the first table. */
static inline void assert_every_table(const char *program, const unsigned long long *own) {
    char command[4200], line[64]; /* PATH_MAX and a little */
    unsigned long long first = own ? *own : 0;
    unsigned tables = own ? 1 : 0;
    for (const char *const *name = kvc_kernels_names(); *name; name++) {
        if (!kvc_kernels_find(*name)) continue;
        const int length = snprintf(command, sizeof command, "KVC_KERNEL=%s '%s' digest", *name,
                                    program);
        assert_in_range(length, 1, sizeof command - 1);
        FILE *f = popen(command, "r");
        assert_non_null(f);
        char *got = fgets(line, sizeof line, f);
        const int status = pclose(f);
        if (status || !got) fail_msg("%s: status %d", command, status);
        const unsigned long long value = strtoull(line, NULL, 16);
        if (tables++ && value != first) fail_msg("kernels %s: other bytes", *name);
        first = value;
    }
    assert_true(tables > 0);
}

#endif

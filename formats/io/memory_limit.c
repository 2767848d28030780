#include "formats/io/memory_limit.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Returns the number in a file; UINT64_MAX: there is none, or the file has a word ("max"). */
static uint64_t number_in(const char *path) {
    char text[32], *end = text;
    FILE *f = fopen(path, "re");
    if (!f) return UINT64_MAX;
    const uint64_t n = fgets(text, sizeof text, f) ? strtoull(text, &end, 10) : 0;
    fclose(f);
    return end == text ? UINT64_MAX : n;
}

/* Returns the smallest limit of a group and of those around it. A container may have its own group
 * at the top of the tree, under another name than /proc gives it. Cuts `group`. */
static uint64_t limit_of(const char *root, const char *tree, char *group, const char *name) {
    uint64_t limit = UINT64_MAX;
    for (char *slash = group;; *slash = '\0') {
        char path[2 * PATH_MAX];
        snprintf(path, sizeof path, "%s%s%s/%s", root, tree, group, name);
        limit = smaller(limit, number_in(path));
        slash = strrchr(group, '/');
        if (!slash) return limit;
    }
}

uint64_t kvc_memory_limit(const char *root) {
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t limit = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_C(1) << 30;
    char line[PATH_MAX], path[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) { /* NUMBER:CONTROLLERS:GROUP */
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'),
             *group = controllers ? strchr(++controllers, ':') : NULL;
        if (!group) continue;
        *group++ = '\0';
        if (!*controllers)
            limit = smaller(limit, limit_of(root, "/sys/fs/cgroup", group, "memory.max"));
        if (strcmp(controllers, "memory") == 0)
            limit = smaller(limit, limit_of(root, "/sys/fs/cgroup/memory", group,
                                            "memory.limit_in_bytes"));
    }
    if (f) fclose(f);
    return limit;
}

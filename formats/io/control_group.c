/* control_group.c: reads the limits of control groups. */
#include "formats/io/control_group.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t NONE = UINT64_MAX;

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Returns the first number in a file, and the second in *then; NONE: there is no number, or a word
 * ("max") or -1 in its place. */
static uint64_t number_in(const char *folder, const char *name, uint64_t *then) {
    char path[3 * PATH_MAX], text[64] = "", *end;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "re");
    if (!f) return NONE;
    const char *line = fgets(text, sizeof text, f);
    fclose(f);
    const uint64_t n = line ? strtoull(text, &end, 10) : NONE;
    if (!line || end == text) return NONE;
    if (then) *then = strtoull(end, NULL, 10);
    return n;
}

/* Each version has its own files. */
static uint64_t memory_in(const char *folder) {
    return smaller(number_in(folder, "memory.max", NULL),
                   number_in(folder, "memory.limit_in_bytes", NULL));
}

static uint64_t cores_in(const char *folder) {
    uint64_t period = 0, quota = number_in(folder, "cpu.max", &period);
    if (quota == NONE) {
        quota = number_in(folder, "cpu.cfs_quota_us", NULL);
        period = number_in(folder, "cpu.cfs_period_us", NULL);
    }
    if (quota == NONE || !period || period == NONE) return NONE;
    const uint64_t cores = quota / period + (quota % period != 0);
    return cores ? cores : 1;
}

/* Returns 1 if a controller is in a list with commas. */
static int has(const char *list, const char *controller) {
    const size_t n = strlen(controller);
    for (;; list++) {
        if (strncmp(list, controller, n) == 0 && (list[n] == ',' || !list[n])) return 1;
        if (!(list = strchr(list, ','))) return 0;
    }
}

/* Returns the smallest limit of a group and of those around it. A container may have its own group
 * at the top of the tree, under another name than /proc gives it. Cuts `group`. */
static uint64_t limit_of(const char *tree, char *group, uint64_t limit_in(const char *folder)) {
    uint64_t limit = NONE;
    for (char *slash = group; slash;) {
        char folder[2 * PATH_MAX];
        snprintf(folder, sizeof folder, "%s%s", tree, group);
        limit = smaller(limit, limit_in(folder));
        slash = strrchr(group, '/');
        if (slash) *slash = '\0';
    }
    return limit;
}

/* Returns the smallest limit that a controller has for this process. */
static uint64_t limit_by(const char *root, const char *controller,
                         uint64_t limit_in(const char *folder)) {
    uint64_t limit = NONE;
    char line[PATH_MAX], path[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f)) { /* NUMBER:CONTROLLERS:GROUP; version 2 names none */
        line[strcspn(line, "\n")] = '\0';
        char *list = strchr(line, ':'), *group = list ? strchr(++list, ':') : NULL;
        if (!group) continue;
        *group++ = '\0';
        if (*list && !has(list, controller)) continue;
        snprintf(path, sizeof path, "%s/sys/fs/cgroup/%s", root, *list ? controller : "");
        limit = smaller(limit, limit_of(path, group, limit_in));
    }
    if (f) fclose(f);
    return limit;
}

uint64_t kvc_memory_limit_below(const char *root) {
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    const uint64_t all = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 1 << 30;
    return smaller(all, limit_by(root, "memory", memory_in));
}

uint64_t kvc_core_limit_below(const char *root) {
    return limit_by(root, "cpu", cores_in);
}

/* Returns what is kept, which is found first; several threads may find it. */
static uint64_t find_once(_Atomic uint64_t *kept, uint64_t find(const char *root)) {
    if (!atomic_load(kept)) atomic_store(kept, find(""));
    return atomic_load(kept);
}

uint64_t kvc_memory_limit(void) {
    static _Atomic uint64_t limit;
    return find_once(&limit, kvc_memory_limit_below);
}

uint64_t kvc_core_limit(void) {
    static _Atomic uint64_t limit;
    return find_once(&limit, kvc_core_limit_below);
}

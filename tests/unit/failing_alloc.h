/* failing_alloc.h: malloc() and its kin, which the linker puts in place of the library's
 * (tests.mk), for tests in which allocations fail. Allocations that other libraries make do not
 * fail. */
#ifndef KVC_FAILING_ALLOC_H
#define KVC_FAILING_ALLOC_H

#include <stddef.h>

/* Returns 1 for an allocation that fails; the test's own. */
static int fails(void);

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
char *__wrap_strdup(const char *text);

void *__wrap_malloc(size_t n) {
    return fails() ? NULL : __real_malloc(n);
}
void *__wrap_calloc(size_t n, size_t size) {
    return fails() ? NULL : __real_calloc(n, size);
}
void *__wrap_realloc(void *p, size_t n) {
    return fails() ? NULL : __real_realloc(p, n);
}
char *__wrap_strdup(const char *text) {
    return fails() ? NULL : __real_strdup(text);
}

#endif

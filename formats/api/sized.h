/* sized.h: what functions of the public interface do with their arguments: required pointers and
 * the sizes of memory are checked, and structs whose first field is their size are copied. The
 * caller may be built with an earlier or a later kvc.h. Not for users of the library. */
#ifndef KVC_SIZED_H
#define KVC_SIZED_H

#include "codecs/error.h"

#include <stddef.h>
#include <stdint.h>

/* Returns 0 if none of the pointers is NULL. Otherwise -1, with an error that names the function
 * and the argument: KVC_ERR_USAGE. For pointers to objects; arguments that are functions are
 * refused by kvc_null_function(). */
#define KVC_NULL(e, ...)                                                             \
    kvc_null_argument(e, __func__, #__VA_ARGS__, (const void *const[]){__VA_ARGS__}, \
                      sizeof((const void *const[]){__VA_ARGS__}) / sizeof(void *))
int kvc_null_argument(struct kvc_error *e, const char *function, const char *names,
                      const void *const *argument, size_t n);
/* Refuses a caller's memory of `size` bytes that n elements of `each` bytes are to be written to,
 * if it is too small: -1, with an error that names function and argument and says what is needed.
 */
#define KVC_SHORT(e, argument, size, n, each) \
    kvc_short_argument(e, __func__, #argument, size, n, each)
int kvc_short_argument(struct kvc_error *e, const char *function, const char *name, size_t size,
                       uint64_t n, uint64_t each);
/* Refuses a call without the callback `name`. Returns -1. */
int kvc_null_function(struct kvc_error *e, const char *function, const char *name);

/* Copies a caller's struct of options, NULL for all zero, to *own, which has `size` bytes and the
 * size as first field. Fields that the caller does not know become zero. KVC_ERR_USAGE: the caller
 * has not set the size. KVC_ERR_UNSUPPORTED: a field that is unknown to this library is not zero.
 * `name` is the name of the struct, for messages. */
int kvc_sized_take(void *own, size_t size, const void *callers, const char *name,
                   struct kvc_error *e);

/* The same for element i of a caller's array, whose elements have `stride` bytes and no size. */
int kvc_sized_take_at(void *own, size_t size, const void *callers, size_t stride, size_t i,
                      const char *name, struct kvc_error *e);

/* Copies results to a caller's struct, as many fields as the caller knows. Fields that this library
 * does not know become zero. The size stays. Errors as above, also where there is no struct. */
int kvc_sized_give(void *callers, const void *own, size_t size, const char *name,
                   struct kvc_error *e);

/* Refuses a caller's struct of results whose size is not set, before there are any. NULL is well.
 */
int kvc_sized_check(const void *callers, const char *name, struct kvc_error *e);

/* The same as kvc_sized_give() for a caller's array of results. The size of the first element is
 * that of all, which get it. */
int kvc_sized_give_at(void *callers, size_t i, const void *own, size_t size, const char *name,
                      struct kvc_error *e);
/* Returns element i of such an array. */
void *kvc_sized_at(void *callers, size_t i);

/* Makes all fields of a caller's struct zero but the size. Does nothing where the size is not set.
 */
void kvc_sized_clear(void *callers);

#endif

/* past.h: when pieces are written past the caches. Only for the twins that do. */
#ifndef KVC_PAST_H
#define KVC_PAST_H

#include <stddef.h>
#include <stdint.h>

/* bytes of a run so long that its first and its last line do not count */
enum { KVC_PAST_RUN = 1024 };

/* Returns 1 where n pieces of `size` bytes, to_step bytes apart, may be written past the caches in
 * vectors of 16 bytes: they are whole lines of 64 bytes, or follow each other in a long run. A line
 * that is written in parts costs the memory a read and a write for each. */
static inline int kvc_fills_lines(const uint8_t *dst, size_t to_step, size_t n, size_t size) {
    enum { VECTOR = 16, LINE = 64 };
    if (n == 1 || to_step == size)
        return ((uintptr_t)dst | size) % VECTOR == 0 && n * size >= KVC_PAST_RUN;
    return ((uintptr_t)dst | to_step | size) % LINE == 0;
}

#endif

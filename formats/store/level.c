/* level.c: the clock of deadlines. */
#include "formats/store/level.h"

#include <time.h>

kvc_instant kvc_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (kvc_instant)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

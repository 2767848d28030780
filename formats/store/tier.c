/* tier.c: what all backends need: the clock of deadlines, and messages without secrets. */
#include "formats/store/tier.h"

#include <string.h>
#include <time.h>

kvc_instant kvc_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (kvc_instant)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

#define REPEATED 12 /* bytes of a secret */

/* Returns how many bytes two texts begin with that are equal. */
static size_t common(const char *a, const char *b) {
    size_t n = 0;
    while (a[n] && a[n] == b[n]) n++;
    return n;
}

void kvc_tier_redact(char *text, const char *secret) {
    const size_t length = secret ? strlen(secret) : 0,
                 least = length < REPEATED ? length : REPEATED;
    for (size_t longest; length && *text; text += longest ? longest : 1) {
        longest = 0;
        for (const char *p = secret; p + least <= secret + length; p++) {
            const size_t n = common(text, p);
            if (n >= least && n > longest) longest = n;
        }
        memset(text, '*', longest);
    }
}

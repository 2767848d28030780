/* near.h: names that somebody may have meant. Not for looking names up. */
#ifndef KVC_NEAR_H
#define KVC_NEAR_H

#include <stddef.h>

/* Collects, out of names that are offered one by one, those like `word`: it begins them, or a slip or two away. */
struct kvc_near {
    const char *word;
    char text[160]; /* "kivi2, kivi4"; "" while there is none */
};
void kvc_near_offer(struct kvc_near *n, const char *name);

#endif

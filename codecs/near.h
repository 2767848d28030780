/* near.h: names that resemble a misspelt name. Not for looking names up. */
#ifndef KVC_NEAR_H
#define KVC_NEAR_H

#include <stddef.h>

/* Collects the names that resemble `word` most: `word` is their beginning, or differs by one slip,
 * or by two if it has at least six letters. */
struct kvc_near {
    const char *word;
    unsigned slips; /* of the names in `text` */
    char text[160]; /* "kivi2, kivi4"; "" while there is none */
};
/* Offers one name. */
void kvc_near_offer(struct kvc_near *n, const char *name);

#endif

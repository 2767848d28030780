/* s3_search.h: how many objects of a chain are there, in few rounds of questions asked at once; and
 * what is known without asking. Not for how questions are asked. */
#ifndef KVC_S3_SEARCH_H
#define KVC_S3_SEARCH_H

#include "formats/store/tier.h"

/* Questions of a round. */
#define KVC_S3_PROBES 32

/* The number of objects lies between the two. */
struct kvc_s3_search {
    size_t low, high;
};

/* Chooses what to ask next: rising numbers below `high`. 31 of them, at equal distances: one round
 * settles up to 31 objects, and two rounds up to 1 023. The first of those that are not known is
 * always among them: it may well be where the chain ends. Returns how many; 0: the search is over.
 */
size_t kvc_s3_probes(const struct kvc_s3_search *s, size_t probe[KVC_S3_PROBES]);
void kvc_s3_narrow(struct kvc_s3_search *s, const size_t *probe, const uint8_t *there, size_t n);

/* Remembers for some time which objects this process has put or seen. Its size is fixed: new
 * entries take the place of old ones. */
struct kvc_s3_memory;
enum kvc_s3_known {
    KVC_S3_UNKNOWN,
    KVC_S3_THERE,
    KVC_S3_BAD /* put aside: as if it were not there */
};

struct kvc_s3_memory *kvc_s3_memory_new(int64_t lifetime);
void kvc_s3_memory_free(struct kvc_s3_memory *m);
void kvc_s3_remember(struct kvc_s3_memory *m, const struct kvc_object *o, enum kvc_s3_known known,
                     uint64_t size, kvc_instant now);
/* Sets *size of an object that is there. */
enum kvc_s3_known kvc_s3_recall(struct kvc_s3_memory *m, const struct kvc_object *o, uint64_t *size,
                                kvc_instant now);

#endif

/* s3_search.c: the search by 32 ways, and the memory. Spec: S3.md, "Finding". */
#include "formats/store/s3/s3_search.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define WAYS 32u

size_t kvc_s3_probes(const struct kvc_s3_search *s, size_t probe[KVC_S3_PROBES]) {
    const size_t unknown = s->high - s->low;
    size_t n = 0;
    if (unknown < WAYS) {
        while (n < unknown) {
            probe[n] = s->low + n;
            n++;
        }
        return n;
    }
    /* The first one is always asked about: a rule of the bucket may have removed it, as the oldest,
     * before what follows it. */
    probe[n++] = s->low;
    for (size_t i = 1; i < WAYS; i++)
        probe[n++] = s->low + unknown / WAYS * i + unknown % WAYS * i / WAYS;
    return n;
}

void kvc_s3_narrow(struct kvc_s3_search *s, const size_t *probe, const uint8_t *there, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!there[i]) {
            s->high = probe[i];
            return;
        }
        s->low = probe[i] + 1;
    }
}

/* --- memory --- */

#define SETS 8192u
#define PLACES 8u /* of a set; a key belongs to one set */

struct place {
    struct kvc_object object;
    uint64_t size;
    kvc_instant until; /* 0: empty */
    enum kvc_s3_known known;
};

struct kvc_s3_memory {
    pthread_mutex_t lock;
    int64_t lifetime;
    struct place place[SETS][PLACES];
};

struct kvc_s3_memory *kvc_s3_memory_new(int64_t lifetime) {
    struct kvc_s3_memory *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->lifetime = lifetime;
    if (pthread_mutex_init(&m->lock, NULL)) {
        free(m);
        return NULL;
    }
    return m;
}

void kvc_s3_memory_free(struct kvc_s3_memory *m) {
    if (!m) return;
    pthread_mutex_destroy(&m->lock);
    free(m);
}

/* Keys are hashes already. */
static struct place *set_of(struct kvc_s3_memory *m, const struct kvc_object *o) {
    uint32_t first;
    memcpy(&first, o->key, sizeof first);
    return m->place[first % SETS];
}

void kvc_s3_remember(struct kvc_s3_memory *m, const struct kvc_object *o, enum kvc_s3_known known,
                     uint64_t size, kvc_instant now) {
    pthread_mutex_lock(&m->lock);
    struct place *p = set_of(m, o), *to = &p[0];
    for (size_t i = 0; i < PLACES; i++) {
        if (p[i].until && kvc_object_equal(&p[i].object, o)) {
            to = &p[i];
            break;
        }
        if (p[i].until < to->until) to = &p[i];
    }
    if (known == KVC_S3_UNKNOWN) {
        if (to->until && kvc_object_equal(&to->object, o)) to->until = 0;
    } else if (known == KVC_S3_BAD || m->lifetime) {
        *to = (struct place){*o, size, known == KVC_S3_BAD ? INT64_MAX : now + m->lifetime, known};
    }
    pthread_mutex_unlock(&m->lock);
}

enum kvc_s3_known kvc_s3_recall(struct kvc_s3_memory *m, const struct kvc_object *o, uint64_t *size,
                                kvc_instant now) {
    enum kvc_s3_known known = KVC_S3_UNKNOWN;
    pthread_mutex_lock(&m->lock);
    const struct place *p = set_of(m, o);
    for (size_t i = 0; i < PLACES; i++)
        if (p[i].until > now && kvc_object_equal(&p[i].object, o)) {
            known = p[i].known;
            *size = p[i].size;
            break;
        }
    pthread_mutex_unlock(&m->lock);
    return known;
}

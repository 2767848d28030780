/* pack.h: the state of kvc-pack, and what it says of a packed file. Not for packing (kvc-pack.c). */
#ifndef KVC_CLI_PACK_H
#define KVC_CLI_PACK_H

#include "cli/job.h"
#include "formats/container/container.h"
#include "formats/file/rate.h"

struct pack_progress {
    double start, shown;
};

struct pack {
    struct job job;
    struct kvc_pack_options options;
    int dequantize;
    const char *queries_path; /* NULL: none */
    struct kvc_opened queries;
    const char *learn_path; /* NULL: no profile is to be made */
    struct kvc_rate rate;
    struct kvc_rate_report rated;  /* of the file at hand */
    struct kvc_profile *profile;   /* that --profile names; NULL: none */
    int force_profile;
    struct kvc_fit fit;            /* of the profile and the file at hand, where the recipe takes the profile */
    int fitted;                    /* it does */
    struct kvc_pack_report report; /* of the file at hand */
    int dequantized;               /* likewise */
    int no_companions;
    int left_out;                  /* the file at hand has companions, and they were left out */
    uint64_t packed_bytes;         /* of its source, without them */
    struct pack_progress progress;
    int hinted; /* that --model adds a fingerprint */
};

/* With -v: which tensors a lossy recipe left as they were, and the errors that it leaves in the others. */
void pack_say_lossy(const struct pack *p, const char *name, const struct kvc_cache *c, const char *recipe);
/* Says that a file is packed, as --json, -v and -q ask for; that it is lossy even without -v. */
void pack_say_done(void *state, const struct kvc_opened *f);

#endif

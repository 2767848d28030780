/* load_state.h: the state of a load, between planning (load_plan.c), its memory and run
 * (load_run.c), and the way of its pieces (load_pieces.c). Not for callers (load.h). */
#ifndef KVC_LOAD_STATE_H
#define KVC_LOAD_STATE_H

#include "formats/device/batch.h"
#include "formats/device/load.h"
#include "formats/device/ring.h"

#include <pthread.h>
#include <stdatomic.h>

enum { KVC_LOAD_MIN_SLOTS = 2, KVC_LOAD_MAX_SLOTS = 256, KVC_LOAD_MAX_WAYS = 8 };

/* Bytes of scratch memory of all ways together, where no block needs more. */
#define KVC_LOAD_SCRATCH (UINT64_C(1) << 30)

/* A block that is loaded: its wanted rows, and their place in the target. */
struct kvc_load_wanted {
    uint32_t tensor;
    uint64_t block, offset, size; /* of its record in the file */
    uint64_t first, rows;         /* of the block */
    uint64_t row;                 /* of the target, for the first of them */
    uint64_t digest;              /* of its record; set when the record was checked */
    int whole;                    /* 1: all rows are wanted, and their digest is compared */
};

/* Neighbouring blocks that are read and launched together. */
struct kvc_load_piece {
    size_t first, n; /* blocks */
    uint64_t at;     /* of its bytes in the device's memory */
};

/* Inputs of predictions that are made of a tensor's rows, in the device's memory. */
struct kvc_load_inputs {
    int used;
    uint32_t last;     /* tensor that is predicted from them */
    uint32_t stride;   /* bytes of a row */
    uint64_t at, size; /* in that memory */
    uint64_t first;    /* row of the tensor at `at` */
};

/* Memory for the bytes of a piece, until they are copied. */
struct kvc_load_slot {
    uint8_t *memory; /* as it was allocated */
    uint8_t *bytes;  /* aligned in it, as direct reads need */
    void *copied;    /* an event */
};

/* Memory for the tables of a launch, of the host and of the device, until it is done. */
struct kvc_load_room {
    uint8_t *tables;
    void *device_tables;
    void *done;                      /* an event */
    struct kvc_device_launch launch; /* the last one */
    size_t used;                     /* bytes of its tables */
    unsigned launches;               /* of a run */
};

/* A stream on which launches run beside those of other ways, and the memory for what they decode
 * in steps. */
struct kvc_load_way {
    void *stream, *scratch;
};

struct kvc_load {
    struct kvc_device *device;
    const struct kvc_cache *cache;
    const struct kvc_input *in;
    struct kvc_load_options options;
    struct kvc_load_info info;
    struct kvc_device_target *target; /* by tensor */
    struct kvc_load_wanted *block;
    size_t n_blocks;
    struct kvc_load_piece *piece;
    struct kvc_ring_piece *range; /* of each piece, in the file */
    size_t n_pieces;
    struct kvc_load_slot *slot;
    struct kvc_load_room *room; /* piece i has room i % n_rooms */
    unsigned n_rooms;
    struct kvc_kept kept;
    struct kvc_load_inputs *inputs; /* by tensor */
    uint64_t input_bytes;
    int predicts; /* 1: the device predicts tensors from others */
    void *device_inputs, *device_bytes, *device_kept, *device_target, *device_status,
        *device_digest;
    uint32_t *status; /* by block; host memory that the device copies to, as `digest` */
    uint64_t *digest;
    /* a stream, events; by `meet` the ways wait for the caller's stream, and it for them */
    void *copies, *last, *meet;
    struct kvc_load_way way[KVC_LOAD_MAX_WAYS];
    unsigned ways;
    int queued; /* 1: work may be under way on the device */

    /* of a run */
    struct kvc_ring *ring;
    pthread_mutex_t lock, taking;
    pthread_cond_t turn_came;
    uint64_t turn;                      /* the piece that is queued next */
    unsigned *busy, first_busy, n_busy; /* slots whose copies are queued, oldest first */
    void *stream;
    int failed, loaded, complete; /* complete: finished, without a fault */
    struct kvc_error error;
    atomic_int cancelled;
};

/* Plans: lists blocks and pieces, finds the tables that blocks share, and settles the options that
 * the caller left open. */
int kvc_load_plan(struct kvc_load *l, struct kvc_error *e);
/* Plans the memory for inputs of predictions: l->inputs and l->input_bytes (load_inputs.c). */
int kvc_load_plan_inputs(struct kvc_load *l, struct kvc_error *e);
/* Returns 1 and *to where others are predicted from a block, else 0. */
int kvc_load_inputs_of(const struct kvc_load *l, uint32_t tensor, uint64_t block,
                       struct kvc_batch_inputs *to);
/* Takes pieces from the ring until there are none, with threads, and queues copies and launches on
 * the ways. Sets l->failed on failure. */
void kvc_load_pieces(struct kvc_load *l);

#endif

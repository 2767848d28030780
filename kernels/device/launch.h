/* launch.h: what one launch of the device decoder is made of: a queue of items over jobs, runs and their operations. Plain
 * numbers and addresses in the device's memory; codecs/program.h makes them, decode.h runs them. Not for how they are run.
 *
 * Decoding a block has four levels, and an item of one waits until those of the level before are done:
 * - prepare: jobs that make tables (numbers stored as halves, slots of rANS tables, channel models);
 * - stream: jobs that decode rANS streams into scratch memory, a warp a stream;
 * - rows: a run of rows of one head, whose operations, last stage first, make values of what is stored, tile by tile;
 * - digest: sums of hashes over the rows that were written.
 * Items are taken in the order of the queue, each by one warp, and wait only for earlier ones. */
#ifndef KVC_KERNELS_DEVICE_H
#define KVC_KERNELS_DEVICE_H

#include <stdint.h>

/* Words of a tile: rows times channels that a warp has at hand at once. */
#define KVC_DEVICE_TILE 1024

/* What was wrong with a record's bytes: bits of its status. */
enum kvc_device_fault {
    KVC_FAULT_STREAM = 1,  /* an rANS stream does not end where it should */
    KVC_FAULT_NUMBER = 2,  /* a stored number is out of range or not finite */
    KVC_FAULT_INDEX = 4    /* an index lies outside, or they do not ascend */
};

/* How values are kept. 0 to 6 are codecs/tensor.h's plain dtypes. */
enum kvc_device_dtype {
    KVC_DEVICE_F32 = 0, KVC_DEVICE_F16 = 1, KVC_DEVICE_BF16 = 2, KVC_DEVICE_F8E4M3 = 3, KVC_DEVICE_F8E5M2 = 4, KVC_DEVICE_U8 = 5,
    KVC_DEVICE_I8 = 6
};

/* Where one tensor's rows go. Row i, head h, channel d, r being first + i:
 *   base + page(r / page_size) * page + (r % page_size) * token + h * head + d * dim
 * in bytes, page(i) being table[i], or i without a table. */
struct kvc_device_target {
    uint64_t base;
    uint64_t table;  /* u32 page numbers, or 0 */
    uint64_t pages;  /* rows that have no page are not written and set KVC_FAULT_INDEX */
    int64_t page, token, head, dim;
    uint32_t first;   /* and the tensor's rows behind it are fewer than 2^32 */
    uint32_t page_size;
    uint32_t dtype;   /* of what is written */
    uint32_t from;    /* of the tensor */
    uint32_t heads;   /* of the tensor, and its channels a head: for digests */
    uint32_t channels;
};

enum kvc_device_job_kind {
    KVC_JOB_HALVES = 1, KVC_JOB_SLOTS, KVC_JOB_MODEL, /* prepare */
    KVC_JOB_SPLIT, KVC_JOB_CODE                       /* stream */
};

/* What fields mean stands at the function in decode.h that runs the job. */
struct kvc_device_job {
    uint32_t kind, record;
    uint64_t at[8];
    uint32_t n[14];
    float f[2];
};

/* Bits of the kind of a channel model, and of KVC_OP_QUANT's flags. */
enum { KVC_MODEL_TURN = 3, KVC_MODEL_CODES = 4 };
enum { KVC_QUANT_SYM = 1, KVC_QUANT_BY_HEAD = 2, KVC_QUANT_ADD = 4 };

enum kvc_device_op_kind {
    KVC_OP_WORDS = 1, /* values as they are stored */
    KVC_OP_UPPER,     /* upper halves of f32, and two byte planes */
    KVC_OP_FAST,
    KVC_OP_QUANT,
    KVC_OP_FACTORS,
    KVC_OP_OUTLIERS,
    KVC_OP_PATCH,
    KVC_OP_SPREAD,  /* channels back to their places */
    KVC_OP_NORMS,
    KVC_OP_STEPS,
    KVC_OP_BASIS,
    KVC_OP_SCALE,
    KVC_OP_MEAN,
    KVC_OP_TURN,
    KVC_OP_WIDEN,   /* dtype to binary32 */
    KVC_OP_ROUND    /* binary32 to dtype */
};

/* One operation of a run. `row`: number, in the matrix that the operation works on, of the run's first row; `heads`, `dim`: of
 * that matrix. */
struct kvc_device_op {
    uint32_t kind, row, heads, dim;
    uint64_t at[9];
    uint32_t n[8];
    float f[2];
};

/* Rows of a block that come to be in the same way. */
struct kvc_device_run {
    uint64_t ops; /* address of the first struct kvc_device_op */
    uint32_t n_ops, record;
    uint32_t target;
    uint32_t dim;  /* channels of a head as they are written */
    uint64_t row;  /* of the target, where the run's first row goes */
};

enum kvc_device_item_kind { KVC_ITEM_JOB = 1, KVC_ITEM_ROWS, KVC_ITEM_DIGEST };

struct kvc_device_item {
    uint32_t kind;
    uint32_t index;           /* of a job or a run; of a digest: the record */
    uint32_t head;            /* rows: which head; digest: the target */
    uint32_t first, rows;     /* rows: of the run; digest: of the target */
    uint32_t column, columns; /* rows: channels of the head */
    uint32_t seed;            /* digest: number in the tensor of the first row */
};

enum { KVC_DEVICE_LEVELS = 4 };

/* Addresses of the device's memory all. */
struct kvc_device_launch {
    const struct kvc_device_item *item;
    const struct kvc_device_job *job;
    const struct kvc_device_run *run;
    const struct kvc_device_target *target;
    uint32_t *counter;   /* 0 at first: counter[0] hands out items, counter[1 + i] counts those of level i that are done */
    uint32_t *status;    /* by record: enum kvc_device_fault */
    uint64_t *digest;    /* by record */
    uint32_t n_items;
    /* Items before end[i] that belong to no level before are of level i, and wait until need[i] of level wait[i] are done. */
    uint32_t end[KVC_DEVICE_LEVELS], wait[KVC_DEVICE_LEVELS], need[KVC_DEVICE_LEVELS];
};

#endif

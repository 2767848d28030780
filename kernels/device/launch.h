/* launch.h: what one launch of the device decoder consists of: a queue of items over jobs, runs and
 * their operations, in plain numbers and addresses of the device's memory. codecs/program.h makes
 * them, decode.h runs them. C11 and CUDA C++17 both compile this. Not for how items are run.
 *
 * Items have levels. An item waits until all items of the level before are done:
 * - prepare: jobs that make tables (numbers stored as halves, slots of rANS tables, channel
 * models);
 * - stream: jobs that decode rANS streams into scratch memory, one warp a stream;
 * - rows: a run of rows of one head, whose operations, last stage first, make values of what is
 * stored, tile by tile. Where tensors are predicted from others, each tensor's rows are a level, in
 * the order of the tensors. Where streams are coded relative to predictions, two levels come before
 * the tensor's rows: jobs that make channel models of predictions, and these streams;
 * - digest: sums of hashes over the rows that were written.
 * Warps take items in the order of the queue. An item waits for earlier items only. */
#ifndef KVC_LAUNCH_H
#define KVC_LAUNCH_H

#include "kernels/dot_matrix.h"

#include <assert.h>
#include <stdint.h>

/* Words of a tile: rows times channels that a warp works on at once. */
#define KVC_DEVICE_TILE 1024

/* Damage of a record: bits of its status. */
enum kvc_device_fault {
    KVC_FAULT_STREAM = 1, /* an rANS stream does not end where it should */
    KVC_FAULT_NUMBER = 2, /* a stored number is out of range or not finite */
    KVC_FAULT_INDEX = 4   /* an index lies outside, or they do not ascend */
};

/* Dtypes of values. 0 to 6 are the plain dtypes of codecs/dtype.h. */
enum kvc_device_dtype {
    KVC_DEVICE_F32 = 0,
    KVC_DEVICE_F16 = 1,
    KVC_DEVICE_BF16 = 2,
    KVC_DEVICE_F8E4M3 = 3,
    KVC_DEVICE_F8E5M2 = 4,
    KVC_DEVICE_U8 = 5,
    KVC_DEVICE_I8 = 6
};

/* Where the rows of one tensor are written. Row i, head h, channel d, with r = first + i, is at
 * byte base + page(r / page_size) * page + (r % page_size) * token + h * head + d * dim where
 * page(i) is table[i], or i without a table. */
struct kvc_device_target {
    uint64_t base;
    uint64_t table; /* u32 page numbers, or 0 */
    uint64_t pages; /* rows without a page are not written and set KVC_FAULT_INDEX */
    int64_t page, token, head, dim;
    uint32_t first; /* the tensor has fewer than 2^32 rows from here on */
    uint32_t page_size;
    uint32_t dtype; /* of written values */
    uint32_t from;  /* dtype of the tensor */
    uint32_t heads; /* of the tensor, and its channels a head: for digests */
    uint32_t channels;
};

enum kvc_device_job_kind {
    KVC_JOB_HALVES = 1,
    KVC_JOB_SLOTS,
    KVC_JOB_MODEL, /* prepare */
    KVC_JOB_SPLIT,
    KVC_JOB_CODE, /* stream */
    KVC_JOB_AHEAD /* predict */
};

/* --- operands of jobs (decode_streams.h); uint64_t fields are addresses --- */

/* KVC_JOB_HALVES: numbers stored as halves (codecs/floats.md) become binary32. */
struct kvc_halves_job {
    /* lower bytes, packed codes of upper bytes, upper bytes without a code */
    uint64_t lower, codes, escapes;
    uint64_t to; /* binary32, n of them */
    uint32_t n, zeros, width, base, rotated, n_escapes;
    float scale;
};

/* KVC_JOB_SLOTS: slots of a decoding table (kernels/rans_state.h) out of its symbols. */
struct kvc_slots_job {
    uint64_t entry; /* u32: symbol | frequency << 16, n of them, ascending */
    uint64_t to;    /* u32, as many as the frequencies sum to */
    uint32_t n;
};

/* How words are made of numbers. */
struct kvc_word_form {
    uint32_t sign_cut; /* sign bit | cut << 8 */
    uint32_t rebias, shift;
};

/* Kinds of a channel model: 0, channels at rest; 1 or 2, rotated by this pairing (codecs/rope.h);
 * integer codes; or another for each row (KVC_JOB_AHEAD). */
enum { KVC_MODEL_TURN = 3, KVC_MODEL_CODES = 4, KVC_MODEL_AHEAD = 8 };

/* KVC_JOB_MODEL: the channel model (codecs/stages/split/channels.md) as streams use it. */
struct kvc_model_job {
    uint64_t mean, spread; /* i8 and u8, one a channel */
    /* at rest: u32, bias | context << 16; rotated or ahead: binary32, all values, all partners, all
     * variances */
    uint64_t to;
    uint32_t channels, word_bits, kind, period;
    uint32_t first, pairs; /* of the channels of a period that are rotated */
    struct kvc_word_form form;
};

/* KVC_JOB_SPLIT: the words of one rANS stream of `split`. */
struct kvc_split_job {
    uint64_t states, words; /* the words begin at an even address */
    uint64_t slots;         /* of all tables */
    uint64_t low;           /* low bits */
    /* made by KVC_JOB_MODEL, or by KVC_JOB_AHEAD; 0: all biases and contexts are 0 */
    uint64_t model;
    /* rotation of one row: `period` cosines, as many sines, binary32 */
    uint64_t turn;
    uint64_t to;                    /* u16, the whole matrix */
    uint32_t size, lanes;           /* bytes of words; lanes of the stream */
    uint32_t table_bits, tables;    /* tables: the table of each context, 4 bits each */
    uint32_t channels, first, rows; /* of a row; of the stream */
    uint32_t word_bits, kind, period;
    struct kvc_word_form form;
};

/* KVC_JOB_CODE: the coefficients of one rANS stream of `code`. */
struct kvc_code_job {
    uint64_t states, words;
    uint64_t slots;       /* of the fixed tables */
    uint64_t extra;       /* string of bits after the words */
    uint64_t index;       /* u8 of each head and component */
    uint64_t step_class;  /* i8 of each row and head; 0: none */
    uint64_t to;          /* binary32 */
    uint32_t size, lanes; /* bytes of words; lanes of the stream */
    uint32_t rows, heads, dim;
    uint32_t extra_size; /* bytes */
    float step;
};

/* --- operands of operations that jobs have too --- */

/* KVC_OP_TURN: rotates rows, codecs/stages/derope/derope.md. */
struct kvc_turn_op {
    uint64_t high, low; /* binary64, 16 tables of `pairs` cosines and as many sines each: rotations
                           by the block's first position and 16 m, rotations by l */
    uint64_t position;  /* u8: the low byte of each row's position */
    uint32_t pairs, halves; /* halves, 1: the pairing is by halves, else interleaved */
    uint32_t back;          /* 1: by the negative position */
};

/* KVC_OP_PREDICT: predicts rows, codecs/stages/cross/cross.md, and adds them to what predict.md
 * stores. */
struct kvc_predict_op {
    uint64_t weights; /* words of four inputs of an output, i8, as kvc_dot_place() has them:
                         [block][input / 4][output of the block] */
    uint64_t numbers; /* binary32: the scales of all outputs, then their means */
    uint64_t inputs;  /* struct kvc_predict_input, n of them */
    uint32_t n, outputs;
    uint32_t words; /* of a row of inputs, of all tensors */
};
struct kvc_predict_input {
    uint64_t at;    /* i8, [row][width], of the matrix's row 0, a multiple of 4 */
    uint32_t words; /* of a row: width / 4, rounded up. What follows the width has weights of 0 */
    uint32_t first; /* of its words among those of all tensors */
};

/* KVC_JOB_AHEAD: the channel model of each predicted row, codecs/stages/cross/cross.md, for rows of
 * one head. */
struct kvc_ahead_job {
    struct kvc_predict_op predict;
    /* of predictions to their positions; pairs is 0 where they are not rotated */
    struct kvc_turn_op turn;
    uint64_t model;       /* made by KVC_JOB_MODEL */
    uint64_t to;          /* u32 of each value of the whole matrix: bias | context << 16 */
    uint32_t first, rows; /* of the matrix */
    uint32_t head, dim;
    struct kvc_word_form form; /* of whole words: without low bits */
    uint32_t half;             /* half a symbol, taken from each bias */
};

enum { KVC_JOB_WORDS = 16 };
struct kvc_device_job {
    uint32_t kind, record;
    union {
        uint64_t all[KVC_JOB_WORDS]; /* first, so that an initialiser clears every operand */
        struct kvc_halves_job halves;
        struct kvc_slots_job slots;
        struct kvc_model_job model;
        struct kvc_split_job split;
        struct kvc_code_job code;
        struct kvc_ahead_job ahead;
    };
};
static_assert(sizeof(struct kvc_device_job) == 8 + 8 * KVC_JOB_WORDS,
              "operands of a job need more room");

enum kvc_device_op_kind {
    KVC_OP_WORDS = 1,
    KVC_OP_UPPER,
    KVC_OP_FAST,
    KVC_OP_QUANT,
    KVC_OP_FACTORS,
    KVC_OP_OUTLIERS,
    KVC_OP_PATCH,
    KVC_OP_SPREAD,
    KVC_OP_NORMS,
    KVC_OP_STEPS,
    KVC_OP_BASIS,
    KVC_OP_SCALE,
    KVC_OP_MEAN,
    KVC_OP_TURN,
    KVC_OP_WIDEN,
    KVC_OP_ROUND,
    KVC_OP_PREDICT,
    KVC_OP_SMALL
};

/* --- operands of operations (decode_rows.h and what it includes); uint64_t fields are addresses
 * --- */

/* KVC_OP_WORDS: values as they are stored. */
struct kvc_words_op {
    uint64_t from; /* a multiple of 16 */
    uint32_t size; /* bytes of a value */
};

/* KVC_OP_UPPER: upper halves of f32, and two byte planes. */
struct kvc_upper_op {
    uint64_t upper, lowest, low; /* u16; the lowest bytes; the bytes above those */
};

/* KVC_OP_FAST: codecs/stages/fast/fast.md. */
struct kvc_fast_op {
    uint64_t low, codes;
    uint64_t bias; /* u16 a channel */
    uint64_t pair; /* pairs of escapes, or 0 */
    /* u32 pairs, one a row and one more: the row's first escape; the value that a distance of 0
     * means */
    uint64_t start;
    uint64_t plane[2]; /* of f32, or 0 */
    uint32_t bits;     /* of a code */
};

enum { KVC_QUANT_SYM = 1, KVC_QUANT_BY_HEAD = 2, KVC_QUANT_ADD = 4 }; /* flags */
/* axis: rows share, channels share, a whole row shares */
enum { KVC_QUANT_ROWS = 0, KVC_QUANT_CHANNELS = 1, KVC_QUANT_ROW = 2 };

/* KVC_OP_QUANT: codecs/stages/quant/quant.md. Arrays have an element for each of the two classes.
 */
struct kvc_quant_op {
    uint64_t codes[2], step[2], low[2]; /* packed; binary32; binary32, the minimum of a group */
    /* u32 pairs, [class][head]: the first parameter, the first code; 0: both are 0 */
    uint64_t begin;
    /* u16, [row][head]: rank in its class, bit 15: class 1; 0: there is one class */
    uint64_t rank;
    uint64_t norms; /* binary32 a channel, or 0 */
    uint32_t bits[2], axis, group, flags;
    float centre[2]; /* half of the levels, negated, for KVC_QUANT_SYM */
};

/* KVC_OP_FACTORS: codecs/papers/lowrank/lowrank.md. */
struct kvc_factors_op {
    uint64_t coefficients, directions; /* binary32 */
    /* whole, 1: of whole rows, not heads; add, 1: adds to the tile */
    uint32_t rank, whole, add;
};

/* KVC_OP_OUTLIERS: codecs/papers/outlier/outlier.md. */
struct kvc_outliers_op {
    uint64_t start; /* u32 a vector, and one more: its first outlier; 0: every vector has `each` */
    uint64_t index, value;
    uint32_t index_bytes, each, dtype, columns; /* columns, 1: vectors are channels, else rows */
    uint32_t length;                            /* values of a vector */
};

/* KVC_OP_PATCH: codecs/stages/finite/finite.md. */
struct kvc_patch_op {
    uint64_t number, value; /* u32: numbers of values in the matrix */
    uint32_t n, size;       /* size: bytes of a value */
};

/* KVC_OP_SPREAD: channels back to their places, codecs/papers/prune/prune.md. */
struct kvc_spread_op {
    uint64_t map;    /* u16 a channel: its index among the stored channels of the head, or 0xffff */
    uint64_t empty;  /* u32 words of left-out channels, for all channels; 0: all are 0 */
    uint32_t stored; /* channels of a head that are stored */
};

/* KVC_OP_NORMS: codecs/papers/merge/merge.md. */
struct kvc_norms_op {
    uint64_t norms; /* binary32 */
    uint32_t each;  /* norms of a row: 1, or one a head */
};

/* KVC_OP_STEPS: codecs/stages/steps/steps.md. */
struct kvc_steps_op {
    uint64_t step_class; /* i8 of each row and head */
};

/* KVC_OP_BASIS: codecs/stages/basis/basis.md. Rows of codes, and the channels of a head, are filled
 * up to a multiple of 4. */
struct kvc_basis_op {
    uint64_t codes;   /* i8, rows of all heads */
    uint64_t parts;   /* u32 pairs, one a head: its first row, its number of rows */
    uint64_t scale;   /* binary32 a row */
    uint64_t channel; /* binary32 a channel, or 0 */
};

/* KVC_OP_SCALE, KVC_OP_MEAN: codecs/stages/basis/basis.md, kind 0; codecs/stages/center/center.md.
 */
struct kvc_channels_op {
    uint64_t number; /* binary32 a channel */
};

/* KVC_OP_WIDEN, KVC_OP_ROUND: the dtype to binary32, and back. */
struct kvc_convert_op {
    uint32_t dtype;
};

/* KVC_OP_SMALL: writes rows as inputs of predictions, codecs/stages/cross/cross.md, and leaves the
 * tile as it is. The last operation of a run. */
struct kvc_small_op {
    uint64_t to;             /* i8, of the block's row 0 */
    uint64_t numbers;        /* binary32: the means of all channels, then their gains */
    struct kvc_turn_op turn; /* back to before RoPE; pairs is 0 where rows are not rotated */
    uint32_t dtype, stride;  /* of values; bytes of a row */
};

/* One operation of a run. */
enum { KVC_OP_OPERANDS = 14 };
struct kvc_device_op {
    uint32_t kind;
    /* number of the run's first row in the matrix that the operation works on */
    uint32_t row;
    uint32_t heads, dim; /* of that matrix */
    union {
        uint64_t all[KVC_OP_OPERANDS]; /* first, so that an initialiser clears every operand */
        struct kvc_words_op words;
        struct kvc_upper_op upper;
        struct kvc_fast_op fast;
        struct kvc_quant_op quant;
        struct kvc_factors_op factors;
        struct kvc_outliers_op outliers;
        struct kvc_patch_op patch;
        struct kvc_spread_op spread;
        struct kvc_norms_op norms;
        struct kvc_steps_op steps;
        struct kvc_basis_op basis;
        struct kvc_channels_op channels;
        struct kvc_turn_op turn;
        struct kvc_convert_op convert;
        struct kvc_predict_op predict;
        struct kvc_small_op small;
    };
};
static_assert(sizeof(struct kvc_device_op) == 16 + 8 * KVC_OP_OPERANDS,
              "operands of an operation need more room");

/* Rows of a block that the same operations make. */
struct kvc_device_run {
    uint64_t ops; /* address of the first struct kvc_device_op */
    uint32_t n_ops, record;
    uint32_t target;
    uint32_t dim; /* channels of a head as they are written */
    uint64_t row; /* row of the target for the run's first row */
};

enum kvc_device_item_kind { KVC_ITEM_JOB = 1, KVC_ITEM_ROWS, KVC_ITEM_DIGEST };

struct kvc_device_item {
    uint32_t kind;
    uint32_t index;           /* of a job or a run; digest: of the record */
    uint32_t head;            /* rows: the head; digest: the target */
    uint32_t first, rows;     /* rows: of the run; digest: of the target */
    uint32_t column, columns; /* rows: channels of the head */
    uint32_t seed;            /* digest: number in the tensor of the first row */
    uint32_t level;
};

struct kvc_encode_block;

/* One launch. All addresses are of the device's memory. */
struct kvc_device_launch {
    const struct kvc_device_item *item;
    const struct kvc_device_job *job;
    const struct kvc_device_run *run;
    const struct kvc_device_target *target;
    /* of a launch of the encoder (encode_launch.h), which has no jobs and no runs */
    const struct kvc_encode_block *block;
    /* by level, and 0 after the last: items of the level before, all of which must be done first */
    const uint32_t *need;
    /* 0 at first: counter[0] hands out items, counter[1 + i] counts those of level i that are done
     */
    uint32_t *counter;
    uint32_t *status; /* by record: enum kvc_device_fault */
    uint64_t *digest; /* by record */
    uint32_t n_items;
};

#endif

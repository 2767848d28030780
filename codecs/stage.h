/* stage.h: the interface of a coding stage. Not for finding one (registry.h), recipes (recipe.h) or
 * running several stages (pipeline.h).
 *
 * A stage takes a matrix (one block of rows of one tensor; a pair stage takes two layers'), emits
 * typed sections, and either consumes the matrix (a terminal stage) or hands a reduced or residual
 * matrix to the next stage. A stage sees rows, queries and parameters, never a file. Decoding runs
 * the stages of a pipeline backwards. */
#ifndef KVC_STAGE_H
#define KVC_STAGE_H

#include "codecs/ahead.h"
#include "codecs/args.h"
#include "codecs/block.h"

/* Stages of a recipe, and of a pipeline: with `finite` and the default stage. */
#define KVC_MAX_STAGES 16
#define KVC_MAX_STEPS (KVC_MAX_STAGES + 2)

enum kvc_stage_flags {
    KVC_STAGE_TERMINAL = 1, /* consumes the matrix: no stage follows in a pipeline */
    KVC_STAGE_LOSSLESS = 2, /* every bit pattern comes back */
    /* takes finite values only: `finite` is put before the first such stage */
    KVC_STAGE_FINITE = 4,
    KVC_STAGE_FLOAT = 8, /* takes and hands on binary32, whatever the tensor's dtype */
    /* hands on what it missed; as the last stage of a pipeline it drops that */
    KVC_STAGE_RESIDUAL = 16,
    KVC_STAGE_LOOKS = 32,       /* sees a whole segment before it encodes the first block */
    KVC_STAGE_PAIR = 64,        /* takes two layers' matrices at once */
    KVC_STAGE_TAKES = 128,      /* takes rows out of the matrix */
    KVC_STAGE_REBUILDS = 256,   /* asks for the rows' hidden states and for weights */
    KVC_STAGE_HEADS = 512,      /* works head by head: the number of heads must be known */
    KVC_STAGE_POSITIONS = 1024, /* asks for positions of rows: no later stage takes rows out */
    KVC_STAGE_PROFILE = 2048,   /* may need a profile to decode */
    KVC_STAGE_SAMPLES = 4096,   /* may look at a sample of a long segment's blocks */
    KVC_STAGE_QUERIES = 8192,   /* encodes by a profile's queries, where there are some */
    KVC_STAGE_AHEAD = 16384,    /* may predict rows from tensors of earlier layers */
    KVC_STAGE_SIDE = 32768,     /* may have side data of a segment */
    KVC_STAGE_UNKNOWN = 65536, /* of a newer kvc: its sections tell nothing, and decode() says so */
    KVC_STAGE_MARKS = 131072,  /* marks tokens: decoders refuse a second one, which marks anew */
    /* leaves channels out: no later stage counts them by a rotation or a profile */
    KVC_STAGE_NARROWS = 262144,
    KVC_STAGE_LAST = 524288 /* codes the last rows of a cache otherwise than if more followed */
};

/* What a stage needs a profile for, bits. */
enum kvc_profile_need {
    KVC_PROFILE_DECODES = 1, /* rows that were coded with it cannot be decoded without it */
    KVC_PROFILE_ENCODES = 2  /* its bases or queries choose how rows are coded */
};

struct kvc_program;

/* What stages did to a tensor, in words. NULL: no stage changed it. */
struct kvc_description {
    int turned; /* set by the caller, 1: the engine rotated the rows */
    /* what the values are, to be read after the name of the part: " before RoPE" */
    const char *values;
    const char *coordinates; /* what they are coded in: "a basis of its own" */
};

/* Consecutive rows of a block in binary32, on their way back through stages that decode each row
 * alone. */
struct kvc_row_run {
    size_t first, n; /* its rows in the block */
    /* the rows, and room for as many: a stage that fills `spare` exchanges the two */
    float *rows, *spare;
};

struct kvc_stage {
    uint16_t id;         /* stands for the arithmetic for ever: new arithmetic needs a new id */
    const char *name;    /* as recipes spell it */
    const char *summary; /* one line for --help and man pages */
    unsigned flags;

    const struct kvc_arg *args; /* its arguments, n_args of them */
    unsigned n_args;
    /* Refuses arguments that exclude each other. NULL: none do. */
    int (*check)(const struct kvc_stage_args *args, struct kvc_error *e);
    /* Returns 1 when the stage can take a tensor of this shape, else 0. NULL: it takes all. */
    int (*accepts)(const struct kvc_stage_args *args, const struct kvc_shape *shape,
                   struct kvc_error *e);
    /* Pair stages: returns 1 when layer `layer` of `layers` may be the first of a pair. */
    int (*pairs)(const struct kvc_stage_args *args, uint32_t layer, uint32_t layers);
    /* Pair stages: returns 1 and sets *tensor to the first tensor of the pair where `stored` is of
     * the second one, 0 where it is of the first, or -1 where it is damaged. */
    int (*first_of)(const struct kvc_stored *stored, uint32_t *tensor, struct kvc_error *e);
    /* Stages that rebuild: returns 1 when layer `layer` of `layers` has hidden states of its own,
     * and 0 when these are rebuilt too. Sets *by to the stage that stores them, with its arguments;
     * NULL: the recipe's stages do. */
    int (*hidden)(const struct kvc_stage_args *args, uint32_t layer, uint32_t layers,
                  const struct kvc_stage **by, struct kvc_stage_args *by_args);

    /* Returns 1 when the stage uses queries of the cache where there are some. NULL: it does not.
     */
    int (*asks)(const struct kvc_stage_args *args);

    /* Stages with one quantisation step, which packing can choose: step() returns the step of the
     * arguments, or 0, and sets *kld to the KL divergence per token (nats) that they ask for, or 0;
     * set_step() sets the step alone, to few digits. */
    double (*step)(const struct kvc_stage_args *args, double *kld);
    void (*set_step)(struct kvc_stage_args *args, double step);

    /* Stages that predict: reads which tensors a segment is predicted from. Returns 1, 0 where it
     * is from none, or -1. */
    int (*inputs)(const struct kvc_stored *stored, struct kvc_ahead_inputs *to,
                  struct kvc_error *e);

    /* Stages that look: begin() makes the state for a segment, look() gets each of its blocks in
     * order, as the stages before hand it on, and leaves it as it is, settle() adds the segment's
     * side sections, and end() frees the state (NULL too). When begin() makes no state, look() is
     * not called. */
    int (*begin)(const struct kvc_stage_args *args, const struct kvc_encoding *encoding,
                 const struct kvc_block *like, void **state, struct kvc_error *e);
    int (*look)(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                struct kvc_error *e);
    int (*settle)(const struct kvc_stage_args *args, void *state, uint8_t stage,
                  struct kvc_sections *side, struct kvc_error *e);
    /* In place of look() and settle(), where blocks are added to a segment that was encoded before:
     * takes what the stage's stored side sections say, so that the blocks are encoded as those of
     * the segment were. NULL: begin() finds the same again, unless there is a look(). */
    int (*adopt)(const struct kvc_stage_args *args, void *state, const struct kvc_stored *stored,
                 struct kvc_error *e);
    void (*end)(void *state);
    /* Adds the stage's sections of one block, `stage` being its position in the pipeline, and makes
     * the block what it hands on. A stage that is a lossless recipe by itself leaves block->rows as
     * they are. */
    int (*encode)(const struct kvc_stage_args *args, void *state, struct kvc_block *block,
                  uint8_t stage, struct kvc_sections *out, struct kvc_error *e);

    /* Says what the stage did to a tensor of this role (enum kvc_select), from its side sections,
     * which nobody has checked. NULL: nothing worth saying. */
    void (*describe)(const struct kvc_stored *stored, unsigned role,
                     struct kvc_description *description);

    /* Decoding, first stage first: makes block->shape (and its marks) what the stage handed on.
     * NULL: as it came. */
    int (*open)(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                struct kvc_block *block, struct kvc_error *e);
    /* Decoding, last stage first: rebuilds block->rows from the matrix that the stage handed on,
     * which is in rows, and from its sections, whose hashes are checked. */
    int (*decode)(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                  struct kvc_block *block, struct kvc_error *e);
    /* Decodes two blocks of a tensor at once: stored[i] and block[i] are as decode() takes them.
     * Returns 0, or 1 where one of them can be decoded alone only or is damaged: decode() of each
     * then says so. Called where kernels have rans_decode_two. NULL: no faster. */
    int (*decode_two)(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                      struct kvc_block *block);
    /* In place of decode(), of a stage of binary32 that rebuilds each row alone: a run of rows then
     * passes several stages while it is in the core's caches. rows_begin() is called as decode()
     * is, but block->rows is unset; it may make a state, and keep `block`, whose shape, profile and
     * step may be others afterwards. rows_next() gets all rows in order, run after run. rows_end()
     * frees the state (NULL too); where `done`, it refuses sections with more than the rows. NULL:
     * free(). */
    int (*rows_begin)(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                      const struct kvc_block *block, void **state, struct kvc_error *e);
    int (*rows_next)(void *state, struct kvc_row_run *run, struct kvc_error *e);
    /* The same for a run of as many rows of each of two blocks. Called where kernels have
     * rans_decode_two. NULL: no faster. */
    int (*rows_next_two)(void *const state[2], struct kvc_row_run run[2], struct kvc_error *e);
    int (*rows_end)(void *state, int done, struct kvc_error *e);
    /* The same as a program of the device decoder (program.h): returns 0, 1 when a device cannot do
     * it, or -1 when the sections are damaged. block->rows is unset. NULL: the CPU decodes the
     * blocks of this stage. */
    int (*lower)(const struct kvc_stage_args *args, const struct kvc_stored *stored,
                 struct kvc_block *block, struct kvc_program *program, struct kvc_error *e);
};

/* Reads `text` ("level=1:x", may be empty, no stage name) into *args, with the fallbacks of what it
 * does not give. */
int kvc_stage_parse(const struct kvc_stage *stage, const char *text, struct kvc_stage_args *args,
                    struct kvc_error *e);
/* Appends `name` or `name:arguments` to a text of `size` bytes, NUL included. Returns -1 when it
 * does not fit. */
int kvc_stage_append(char *text, size_t size, const struct kvc_stage *stage,
                     const struct kvc_stage_args *args);

/* Returns what a stage needs a profile for (enum kvc_profile_need bits), where the profile does, or
 * does not, predict. */
unsigned kvc_stage_profile_need(const struct kvc_stage *stage, int predicts);

/* All stages: kvc_stage_split, ... */
#define STAGE(name) extern const struct kvc_stage kvc_stage_##name;
#include "codecs/stages.def"
#undef STAGE

#endif

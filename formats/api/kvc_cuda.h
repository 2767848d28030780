/* kvc_cuda.h: libkvc_cuda's public interface: .kvc files into a GPU's memory, in an engine's own
 * layout, and out of it. Compressed bytes cross the bus, the device decodes and encodes. Used
 * beside kvc.h, whose struct kvc_error it fills; not needed by anything else of kvc.
 *
 * A plan is made once per file and destination: it opens the file, checks all but the blocks,
 * allocates whatever loading will need. kvc_cuda_load() then reads the blocks, checks each one's
 * hash on the CPU, and queues copies and decoding on streams of its own, after what the caller's
 * stream has queued: it returns once everything is queued, and blocks only while every slot of its
 * ring is busy. What is queued later on the caller's stream sees the rows. kvc_cuda_finish() waits
 * for the device and says whether all of it was decoded: until it returned 0 nothing counts as
 * loaded.
 *
 *   struct kvc_cuda_plan *p = kvc_cuda_plan_new("prefix.kvc", &options, &destination, e);
 *   if (p && !kvc_cuda_load(p, stream, e) && !kvc_cuda_finish(p, e)) ...
 *   kvc_cuda_plan_free(p);
 *
 * Functions return NULL or -1 with *e filled when they fail, with CUDA's own words where CUDA
 * failed. One plan is used by one thread at a time, but for kvc_cuda_cancel(). */
#ifndef KVC_CUDA_H
#define KVC_CUDA_H

#include "kvc.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVC_CUDA_API __attribute__((visibility("default")))

struct kvc_cuda_plan;

KVC_CUDA_API const char *kvc_cuda_version(void); /* that of libkvc */
/* What this library was built for: "sm_80 sm_90 sm_100 PTX compute_100, CUDA 13.0". */
KVC_CUDA_API const char *kvc_cuda_build(void);

/* --- devices --- */

/* How many CUDA devices there are; -1 and why where CUDA cannot be used. */
KVC_CUDA_API int kvc_cuda_devices(struct kvc_error *e);
/* "NVIDIA H200, 139 GiB, sm_90" into a caller's buffer. */
KVC_CUDA_API int kvc_cuda_device_text(int device, char *text, size_t size, struct kvc_error *e);

/* --- destinations --- */

/* An engine's memory. Layouts, pools and strides are those of kvc.h; a layout in which K is
 * transposed is for CPUs. */
struct kvc_cuda_destination {
    size_t size; /* of this struct (kvc.h) */
    /* name of a known layout, or NULL: `strides` are given, and bases as below */
    const char *layout;
    struct kvc_pool pool;
    struct kvc_pool_strides strides;
    uint64_t const
        *bases; /* device addresses. 1: everything lies at strides from it; as many as layers:
                   .layer does not count; twice as many: .kv does not count either */
    uint64_t n_bases;
    /* Of the destination: "f16", "bf16", "f32", "f8e4m3", "f8e5m2"; NULL: as the file has it.
     * Values of 8 bits become those of another dtype only if the file says that their scales are 1.
     */
    const char *dtype;
    const uint32_t *table; /* numbers of the pages, in the order of tokens; NULL: 0, 1, 2, ... */
    uint64_t n_table;
    uint64_t first;       /* slot of the first token: offset in the first page */
    uint32_t first_layer; /* layer of the file that goes to layer 0 of the destination */
};

/* --- plans --- */

struct kvc_cuda_options {
    size_t size; /* of this struct (kvc.h) */
    int device;
    unsigned threads; /* that read; 0: 8 */
    unsigned slots;   /* of the ring; 0: 8 */
    /* 0: 8 to 32 MiB; at least what the largest record takes. One launch for each slot's blocks. */
    uint64_t slot_bytes;
    unsigned multiprocessors; /* most that decoding holds; 0: all */
    int verify;               /* compute the digests on the device and compare them */
    uint64_t first, end;      /* positions [first, end) only; end 0: to the last */
    const uint8_t *layers;    /* layers[i] != 0: layer i is loaded; NULL: all */
    uint32_t n_layers;
    const char *profile; /* these three as in struct kvc_open_options */
    const char *model;
    const char *weights;
    int direct;                  /* read past the page cache, where the file is one that can be */
    const char *profile_folders; /* as in struct kvc_open_options */
};

/* Opens and plans. Without a destination the plan allocates memory of its own, tensor by tensor,
 * [token][head][channel]. Destinations that are not memory of that device are refused. `path` "-":
 * standard input. */
KVC_CUDA_API struct kvc_cuda_plan *kvc_cuda_plan_new(const char *path,
                                                     const struct kvc_cuda_options *options,
                                                     const struct kvc_cuda_destination *destination,
                                                     struct kvc_error *e);
/* Waits for what is queued, then frees all, memory of its own too. NULL is legal. */
KVC_CUDA_API void kvc_cuda_plan_free(struct kvc_cuda_plan *p);

struct kvc_cuda_plan_info {
    size_t size;           /* of this struct; set by the caller */
    uint64_t stored;       /* bytes that are read and copied */
    uint64_t decoded;      /* bytes that are written to the destination */
    uint64_t on_host;      /* bytes of those that the CPU decodes, as no kernel does */
    uint64_t device_bytes; /* that the plan has allocated, the destination not counted */
    uint32_t tensors;
    /* from the first byte read to the last decoded; only of kvc_cuda_file_open(), whose bytes count
     * what the CPU decodes when it is read, too */
    double seconds;
};
/* -1 when info->size is not set. */
KVC_CUDA_API int kvc_cuda_plan_describe(const struct kvc_cuda_plan *p,
                                        struct kvc_cuda_plan_info *info);

/* One tensor where it was, or will be, decoded. Strides in bytes. */
struct kvc_cuda_tensor {
    size_t size;     /* of this struct; set by the caller */
    uint32_t tensor; /* its number in the file (kvc_file_tensor()) */
    uint32_t layer;
    const char *role; /* "K", "V", "latent" */
    const char *dtype;
    uint64_t address; /* of token 0 of those loaded; with pages, of page 0 */
    uint64_t tokens, heads, dim;
    int64_t token, head; /* strides; channels follow one another in memory of the plan's own */
    int64_t position;    /* of the first token */
};
/* -1 when there is no tensor i, or tensor->size is not set. */
KVC_CUDA_API int kvc_cuda_plan_tensor(const struct kvc_cuda_plan *p, uint32_t i,
                                      struct kvc_cuda_tensor *tensor);

/* Reads, checks, copies, decodes; see above. `stream`: a cudaStream_t, not cudaStreamPerThread; or
 * NULL: the default stream. May be called again once finished. After a failure the destination
 * holds no more than rubbish. */
KVC_CUDA_API int kvc_cuda_load(struct kvc_cuda_plan *p, void *stream, struct kvc_error *e);
/* Waits until all that was queued is done; 0 when every block was decoded and, with verify, has the
 * digest it should. */
KVC_CUDA_API int kvc_cuda_finish(struct kvc_cuda_plan *p, struct kvc_error *e);
/* From any thread: the kvc_cuda_load() that is under way, or else the next, stops as soon as it can
 * and fails. NULL is legal. */
KVC_CUDA_API void kvc_cuda_cancel(struct kvc_cuda_plan *p);
/* Rows [first, first + n) of tensor i back to host memory, dense, into dst, which has `size` bytes;
 * waits. For memory of the plan's own, once finished. */
KVC_CUDA_API int kvc_cuda_read(struct kvc_cuda_plan *p, uint32_t i, uint64_t first, uint64_t n,
                               void *dst, size_t size, struct kvc_error *e);

/* --- files whose rows come from a device --- */

/* Returns 0 if kvc_cuda_file_open() takes a handle: of a whole .kvc that is a file; else -1 and the
 * reason. */
KVC_CUDA_API int kvc_cuda_file_takes(const struct kvc_file *f, struct kvc_error *e);
/* Loads f onto the device, and returns a handle of it whose K, V and latents are read back from
 * there: to be unpacked, compared and so on. kvc_file_check() of it checks what was not loaded;
 * load with `verify`. f must stay open. `info` may be NULL. */
KVC_CUDA_API struct kvc_file *kvc_cuda_file_open(const struct kvc_file *f,
                                                 const struct kvc_cuda_options *options,
                                                 struct kvc_cuda_plan_info *info,
                                                 struct kvc_error *e);

/* --- packing: out of a GPU's memory --- */

struct kvc_cuda_pack_options {
    size_t size; /* of this struct (kvc.h) */
    int device;
    unsigned multiprocessors; /* most that encoding holds; 0: all */
    /* a cudaStream_t, not cudaStreamPerThread; or NULL: the default stream. Its queued work comes
     * first */
    void *stream;
};

struct kvc_cuda_packed {
    size_t size;    /* of this struct; set by the caller */
    uint64_t bytes; /* of K and V */
    /* Of these, copied to the host as they are: rows that `tail` keeps, blocks that `fast` does not
     * make smaller, blocks with values that are not finite, values of 8 bits. */
    uint64_t raw;
};

/* Packs K, V and latents that lie in memory of a device. Addresses in `m` are of that memory, and
 * multiples of the size of a value, as strides are; the tables of pages, positions, token ids and
 * facts are in memory of the host. kvc_pool_arrays() describes an engine's pool. The device
 * encodes; encoded bytes are copied to the host, which writes them: the same file as
 * kvc_file_pack() makes of the same values, byte for byte. Recipes that a device encodes: `fast`;
 * `quant`, also after `tail`, without `zip` and `clip` (so `kivi2`, `kivi4`, `kcvt4`). Refused are
 * other recipes, the default too, block types, queries and hidden states, and positions that do not
 * ascend. `options` has the recipe, threads (0: 8, each with memory and a stream of its own on the
 * device), alignment and progress. What the device encodes is not decoded to verify it. Returns
 * when the file is written. The rows must not change until then. `packed` may be NULL. */
KVC_CUDA_API int kvc_cuda_pack(const struct kvc_memory *m, const struct kvc_cuda_pack_options *cuda,
                               const struct kvc_write_options *options, kvc_write_fn *write,
                               void *state, struct kvc_cuda_packed *packed, struct kvc_error *e);

/* --- other processes --- */

#define KVC_CUDA_HANDLE 64
/* A cudaIpcMemHandle_t of the allocation that tensor i lies in, and its offset there. */
KVC_CUDA_API int kvc_cuda_export(struct kvc_cuda_plan *p, uint32_t i,
                                 uint8_t handle[KVC_CUDA_HANDLE], uint64_t *offset,
                                 struct kvc_error *e);
/* Opens what another process exported; its address in this one. Memory of expandable segments
 * (PyTorch) and of sleep mode (vLLM) cannot be opened, and the message says so. */
KVC_CUDA_API int kvc_cuda_open_handle(int device, const uint8_t handle[KVC_CUDA_HANDLE],
                                      uint64_t *address, struct kvc_error *e);
KVC_CUDA_API int kvc_cuda_close_handle(int device, uint64_t address, struct kvc_error *e);

#ifdef __cplusplus
}
#endif

#endif

/* npy.h: reading and writing the header of a .npy file. Not for npz files, which are zips of .npy
 * files. */
#ifndef KVC_NPY_H
#define KVC_NPY_H

#include "formats/engines/arrays_write.h"
#include "formats/engines/arrays_read.h"

/* Reads the .npy file of `size` bytes at byte `at` of an input into *a, whose name is set. The
 * header must be exactly as numpy writes it for one plain type, and the size of the data must match
 * the header. */
int kvc_npy_read(struct kvc_array *a, const struct kvc_input *in, uint64_t at, uint64_t size,
                 struct kvc_error *e);

/* Writes the header of an array, padded with spaces to a multiple of 64 bytes. Returns its size,
 * which is at most 256 bytes. */
size_t kvc_npy_print(const struct kvc_arrays_item *item, char *text, size_t size);

#endif

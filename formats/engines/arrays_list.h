/* arrays_list.h: the arrays of a cache of one file or of several, for formats that are collections
 * of arrays: their names by member, arrays of all layers taken apart, and the source. Not for the
 * meaning of names (arrays_read.h). */
#ifndef KVC_ARRAYS_LIST_H
#define KVC_ARRAYS_LIST_H

#include "formats/engines/arrays_read.h"
#include "formats/io/zip_members.h"

struct kvc_array_list {
    struct kvc_array *array; /* in the order of the members, and of their bytes */
    size_t n;
    char **text; /* names that belong to the list */
    size_t n_texts;
};

/* Appends an array. A copy of its name is made. */
int kvc_arrays_add(struct kvc_array_list *list, const struct kvc_array *a, struct kvc_error *e);
void kvc_arrays_clear(struct kvc_array_list *list);

/* Tells arrays of several members apart: where two members have arrays of one name without a
 * meaning, the name of the file goes before it ("layer_0.k"), as "keys" or "values" where the file
 * is named key, keys, k, value, values or v. An array without a name gets that of its file, or
 * "tensor" where the cache is one file. */
int kvc_arrays_name_members(struct kvc_array_list *list, const struct kvc_bundle *b,
                            const struct kvc_import_options *o, struct kvc_error *e);

/* Does what the option `map` says of K and V: takes integers as bits of another type, and replaces
 * arrays of other axes by one array of each layer, [1, heads, tokens, head dim]. Refuses 16-bit
 * integers of which nothing says what they are. */
int kvc_arrays_split(struct kvc_array_list *list, const struct kvc_import_options *o,
                     struct kvc_error *e);

/* Adds the extents of all members. Adds none where a tensor lies in another input than its member
 * (a decompressed one). */
int kvc_arrays_source(struct kvc_cache *c, const struct kvc_array_list *list,
                      const struct kvc_bundle *b, struct kvc_error *e);

/* Reads the arrays of a format whose files are zips: zip[i] is room for that of member i. The cache
 * owns them. */
typedef int kvc_arrays_zip_read(struct kvc_array_list *list, struct kvc_zip_members *zip,
                                const struct kvc_bundle *b, const struct kvc_import_options *o,
                                struct kvc_error *e);
/* Makes the cache of the arrays: parts, metadata and extents, to kvc_cache_finish(). */
typedef int kvc_arrays_build(struct kvc_cache *c, struct kvc_array_list *list,
                             const struct kvc_bundle *b, const struct kvc_import_options *o,
                             struct kvc_error *e);
/* Imports the members of a bundle by these two. */
struct kvc_cache *kvc_arrays_of_zips(const struct kvc_bundle *b, const struct kvc_import_options *o,
                                     kvc_arrays_zip_read *read, kvc_arrays_build *build,
                                     struct kvc_error *e);

#endif

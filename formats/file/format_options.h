/* format_options.h: parses options of formats, "KEY=VALUE". Not for their meaning (the formats'
 * files). */
#ifndef KVC_FORMAT_OPTIONS_H
#define KVC_FORMAT_OPTIONS_H

#include "formats/cache/format.h"

/* The values of one row's options, and their texts. */
struct kvc_option_values {
    struct kvc_option_value value[KVC_MAX_FORMAT_OPTIONS];
    char **text;       /* copies that the values point to, NULL-terminated */
    const char **list; /* of all list options, one after another */
};

/* Reads options by a row's table (NULL: it has none). `own` is "KEY=VALUE,KEY=VALUE" as it stands
 * after a format's name and a colon, or NULL; keys that the table does not have are refused there,
 * and passed over in `set`. Messages begin with the format's `name`. On failure *v is empty. */
int kvc_options_read(struct kvc_option_values *v, const struct kvc_format_option *table,
                     const char *name, const char *own, const char *const *set,
                     struct kvc_error *e);
void kvc_options_free(struct kvc_option_values *v);

#endif

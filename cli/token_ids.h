/* token_ids.h: a list of token ids that the user gives: kvc-dump --match, kvc-pack --token-ids. Not
 * for matching (dump_match.c), nor for giving ids to a cache (formats/cache/prefix.h). */
#ifndef KVC_CLI_TOKEN_IDS_H
#define KVC_CLI_TOKEN_IDS_H

#include "formats/cache/format.h"

struct cli_token_ids {
    int32_t *id; /* the caller frees them, also after a failure */
    uint64_t n;
};

/* Reads token ids from a file ("-": standard input) in the JSON of engines, as a list, or of a
 * cache file, which is read with `import`. No ids are an error. */
int cli_token_ids(struct cli_token_ids *ids, const char *path,
                  const struct kvc_import_options *import, struct kvc_error *e);

#endif

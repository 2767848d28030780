/* s3_setup.h: what the text of an S3 tier, the environment and files of credentials say. Not for
 * what is done with it. */
#ifndef KVC_S3_SETUP_H
#define KVC_S3_SETUP_H

#include "formats/store/url.h"

#include <stddef.h>
#include <stdint.h>

/* The secrets are never printed. */
struct kvc_s3_key {
    char id[160], secret[160], token[4096]; /* id "": requests are not signed */
};

struct kvc_s3_setup {
    char bucket[128];
    char prefix[512]; /* of names: "" or "a/b/" */
    char base[320];   /* scheme, host and port: "https://b.s3.eu-west-1.amazonaws.com" */
    char path[448];   /* what paths begin with, encoded: "" or "/bucket" */
    char region[64];
    char *ca_file; /* NULL: the system's */
    struct kvc_s3_key key;
    int tls;
    int delete_bad;   /* damaged objects are deleted */
    int head_first;   /* the server does not know If-None-Match for PUT */
    int sign_payload; /* bodies are hashed and the hash is signed */
    int hedge;        /* a second request may follow a slow one */
    unsigned connections, tries;
    uint64_t max_object, part, range, window; /* bytes */
    int64_t remember, stall, connect;         /* microseconds */
};

int kvc_s3_setup(struct kvc_s3_setup *s, struct kvc_url *u, struct kvc_error *e);
void kvc_s3_setup_free(struct kvc_s3_setup *s);

/* Reads a profile of a file of credentials. 1: there is no such file; -1: it is unfit. */
int kvc_s3_key_file(struct kvc_s3_key *k, const char *path, const char *profile,
                    struct kvc_error *e);

#endif

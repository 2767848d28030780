/* conf.h: the file kvc-store.conf of a directory store, whose limits bind all processes that use
 * it. Not for options of one process (url.h). STORE.md, "Directory". */
#ifndef KVC_STORE_CONF_H
#define KVC_STORE_CONF_H

#include "formats/store/url.h"

#define KVC_CONF_NAME "kvc-store.conf"

enum kvc_durability {
    KVC_DURABLE_NONE, /* checks find what a crash of the machine leaves */
    KVC_DURABLE_DATA, /* bytes are on the disk before an object gets its name */
    KVC_DURABLE_FULL  /* so is the name */
};

struct kvc_conf {
    uint64_t max_size;           /* bytes of objects; 0: no limit */
    double min_free;             /* per cent of the file system that stay free */
    int64_t max_age;             /* seconds since the last use; 0: no limit */
    uint64_t max_namespace_size; /* bytes of objects of a namespace; 0: no limit */
    int64_t grace;               /* seconds that evicted objects can still be read */
    enum kvc_durability durability;
    int indexed; /* keep an index */
    int shared;  /* others may own or write the folder */
};

extern const struct kvc_conf kvc_conf_default;

/* Reads the file's text. Names the line that is wrong. */
int kvc_conf_parse(struct kvc_conf *c, const char *text, struct kvc_error *e);
/* Writes the text that parses to *c into a buffer. */
void kvc_conf_print(const struct kvc_conf *c, char *text, size_t size);
/* Takes the keys of the file from options of a URL. Returns 1 if there was any, 0, -1. */
int kvc_conf_take(struct kvc_conf *c, struct kvc_url *url, struct kvc_error *e);
int kvc_conf_equal(const struct kvc_conf *a, const struct kvc_conf *b);
/* Returns key i of the file; NULL past the end. */
const char *kvc_conf_key(size_t i);

#endif

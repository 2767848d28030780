/* url.h: the text that names a tier: "dir:/var/cache/kvc?max-size=20G",
 * "redis://h1:7000,h2/?prefix=kvc". Not for what the words mean, which is each backend's own.
 * STORE.md, "Tiers". */
#ifndef KVC_STORE_URL_H
#define KVC_STORE_URL_H

#include "codecs/error.h"

#include <stddef.h>
#include <stdint.h>

struct kvc_url {
    char *text; /* owns all of the strings below */
    const char *scheme;
    const char *place; /* what stands between the scheme (and "//") and '?' */
    struct kvc_url_option {
        const char *key, *value; /* percent-decoded; value "" if there is no '=' */
        int taken;
    } option[32];
    size_t n;
    const char *known[40]; /* keys that were asked for: what the backend has */
    size_t n_known;
};

/* Reads one tier. A text without a scheme is a path, of scheme "dir". Refuses user names and
 * passwords in it: URLs end up in logs. */
int kvc_url_parse(struct kvc_url *u, const char *text, struct kvc_error *e);
void kvc_url_free(struct kvc_url *u);

/* Take an option's value; without it the default. Keys live as long as the program. Numbers may end
 * with K, M, G or T, or KiB, MiB, GiB or TiB (powers of 1024); times are in s, or end with ms, s,
 * m, h or d, and are returned in microseconds. */
const char *kvc_url_text(struct kvc_url *u, const char *key, const char *otherwise);
int kvc_url_bytes(struct kvc_url *u, const char *key, uint64_t *value, struct kvc_error *e);
int kvc_url_time(struct kvc_url *u, const char *key, int64_t *microseconds, struct kvc_error *e);
/* "yes" or "no". */
int kvc_url_flag(struct kvc_url *u, const char *key, int *value, struct kvc_error *e);
/* Refuses options that nobody took, and what looks like options after a comma, once all keys were
 * asked for: messages list these. */
int kvc_url_rest(const struct kvc_url *u, struct kvc_error *e);

/* Cuts a chain of tiers at the commas before a scheme. Returns the number of tiers, whose texts
 * *list points to; the caller frees *list, which is one piece of memory. -1: none, or out of
 * memory. */
int kvc_url_split(const char *chain, char ***list, struct kvc_error *e);

#endif

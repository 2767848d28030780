/* s3_url.c: writes the URL of a request. Spec: "AWS Signature Version 4 for API requests" and, for
 * the encoding of paths, the pages of Amazon S3 about it. */
#include "formats/store/s3/s3_url.h"

#include <string.h>

/* Text in room of a fixed size. `used` grows past the room, so that one check at the end suffices.
 */
struct text {
    char *at;
    size_t used, room;
};

static void s3_url_add(struct text *t, const char *from, size_t n) {
    if (t->used < t->room && n < t->room - t->used) memcpy(t->at + t->used, from, n);
    t->used += n;
}

/* Encodes all bytes but letters, digits and "-._~", and those of `kept`. */
static void add_encoded(struct text *t, const char *text, const char *kept) {
    static const char digit[] = "0123456789ABCDEF";
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        const int plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                          (c >= '0' && c <= '9');
        const char code[3] = {'%', digit[c >> 4], digit[c & 15]};
        if (plain || strchr("-._~", c) || strchr(kept, c)) s3_url_add(t, text, 1);
        else s3_url_add(t, code, 3);
    }
}

int kvc_s3_url(const struct kvc_s3_setup *s, const struct kvc_s3_request *r, char *to,
               size_t room) {
    struct text t = {to, 0, room};
    const char *between = "?";
    s3_url_add(&t, s->base, strlen(s->base));
    s3_url_add(&t, s->path, strlen(s->path));
    if (r->name || !*s->path) s3_url_add(&t, "/", 1);
    if (r->name) add_encoded(&t, s->prefix, "/");
    if (r->name) add_encoded(&t, r->name, "/");
    for (size_t i = 0; i < KVC_S3_QUERY; i++) {
        if (!r->query[i].value) continue;
        s3_url_add(&t, between, 1);
        add_encoded(&t, r->query[i].name, "");
        s3_url_add(&t, "=", 1);
        add_encoded(&t, r->query[i].value, "");
        between = "&";
    }
    if (t.used >= t.room) return -1;
    to[t.used] = '\0';
    return 0;
}

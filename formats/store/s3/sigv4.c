/* sigv4.c: signs requests. Spec: "AWS Signature Version 4 for API requests" and, for the encoding of paths, the pages of Amazon S3
 * about it. */
#include "formats/store/s3/sigv4.h"

#include "formats/io/hash.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Text in room of a fixed size. `used` grows past the room, so that one check at the end suffices. */
struct text {
    char *at;
    size_t used, room;
};

static void add(struct text *t, const char *from, size_t n) {
    if (t->used < t->room && n < t->room - t->used) {
        memcpy(t->at + t->used, from, n);
        t->at[t->used + n] = '\0';
    }
    t->used += n;
}

__attribute__((format(printf, 2, 3))) static void print(struct text *t, const char *format, ...) {
    va_list list;
    va_start(list, format);
    const size_t left = t->used < t->room ? t->room - t->used : 0;
    const int n = vsnprintf(left ? t->at + t->used : NULL, left, format, list);
    va_end(list);
    t->used = n < 0 ? t->room : t->used + (size_t)n;
}

static int length(const struct text *t) {
    return t->used < t->room ? (int)t->used : -1;
}

static void add_encoded(struct text *t, const char *text, int slash) {
    static const char digit[] = "0123456789ABCDEF";
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        const int plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || strchr("-._~", c) != NULL;
        const char code[3] = {'%', digit[c >> 4], digit[c & 15]};
        if (plain || (slash && c == '/')) add(t, text, 1);
        else add(t, code, 3);
    }
}

int kvc_sigv4_encode(const char *text, int slash, char *to, size_t room) {
    struct text t = {to, 0, room};
    add(&t, "", 0);
    add_encoded(&t, text, slash);
    return length(&t);
}

/* Names are sorted by their bytes, equal ones by their values. */
static int by_name(const void *a, const void *b) {
    const struct kvc_sigv4_pair *x = a, *y = b;
    const int names = strcmp(x->name, y->name);
    return names ? names : strcmp(x->value, y->value);
}

int kvc_sigv4_query(const struct kvc_sigv4_pair *pair, size_t n, char *to, size_t room) {
    struct kvc_sigv4_pair sorted[KVC_SIGV4_PAIRS];
    struct text t = {to, 0, room};
    if (n > KVC_SIGV4_PAIRS) return -1;
    add(&t, "", 0);
    /* Values are sorted before they are encoded. The order after it differs only for names that hold other than plain characters,
     * which no parameter of S3 has, and for values of one name. */
    for (size_t i = 0; i < n; i++) sorted[i] = pair[i];
    qsort(sorted, n, sizeof *sorted, by_name);
    for (size_t i = 0; i < n; i++) {
        if (i) add(&t, "&", 1);
        add_encoded(&t, sorted[i].name, 0);
        add(&t, "=", 1);
        add_encoded(&t, sorted[i].value, 0);
    }
    return length(&t);
}

void kvc_sigv4_date(time_t t, char to[KVC_SIGV4_DATE]) {
    struct tm tm;
    if (!gmtime_r(&t, &tm) || strftime(to, KVC_SIGV4_DATE, "%Y%m%dT%H%M%SZ", &tm) != KVC_SIGV4_DATE - 1)
        memcpy(to, "19700101T000000Z", KVC_SIGV4_DATE);
}

int kvc_sigv4_hash(const void *data, size_t size, char to[KVC_SIGV4_HEX]) {
    uint8_t hash[KVC_SHA256_BYTES];
    if (kvc_sha256(data, size, hash, NULL)) return -1;
    kvc_hex(hash, sizeof hash, to);
    return KVC_SIGV4_HEX - 1;
}

/* Adds a header's value without blanks at its ends, and with single ones within. */
static void add_value(struct text *t, const char *value) {
    int blank = 0, begun = 0;
    for (; *value; value++) {
        if (*value == ' ' || *value == '\t') {
            blank = begun;
            continue;
        }
        if (blank) add(t, " ", 1);
        blank = 0;
        begun = 1;
        add(t, value, 1);
    }
}

int kvc_sigv4_canonical(const struct kvc_sigv4_request *r, char *to, size_t room, char *names, size_t names_room) {
    struct kvc_sigv4_pair sorted[KVC_SIGV4_PAIRS];
    struct text t = {to, 0, room}, list = {names, 0, names_room};
    if (r->headers > KVC_SIGV4_PAIRS) return -1;
    for (size_t i = 0; i < r->headers; i++) sorted[i] = r->header[i];
    qsort(sorted, r->headers, sizeof *sorted, by_name);
    print(&t, "%s\n%s\n%s\n", r->method, r->path, r->query);
    for (size_t i = 0; i < r->headers; i++) {
        print(&t, "%s:", sorted[i].name);
        add_value(&t, sorted[i].value);
        add(&t, "\n", 1);
        print(&list, "%s%s", i ? ";" : "", sorted[i].name);
    }
    if (length(&list) < 0) return -1;
    print(&t, "\n%s\n%s", names, r->hash);
    return length(&t);
}

#define HASH 32

static int hmac(const void *key, size_t size, const char *text, unsigned char to[HASH]) {
    unsigned n = HASH;
    return HMAC(EVP_sha256(), key, (int)size, (const unsigned char *)text, strlen(text), to, &n) ? 0 : -1;
}

/* Derives the key of a day, a region and a service from the secret. */
static int derive(const struct kvc_sigv4_key *k, const char *day, unsigned char to[HASH]) {
    char first[256];
    const int n = snprintf(first, sizeof first, "AWS4%s", k->secret);
    const int status = n < 0 || (size_t)n >= sizeof first || hmac(first, (size_t)n, day, to) || hmac(to, HASH, k->region, to) ||
                       hmac(to, HASH, k->service, to) || hmac(to, HASH, "aws4_request", to);
    OPENSSL_cleanse(first, sizeof first);
    return status ? -1 : 0;
}

int kvc_sigv4_sign(const struct kvc_sigv4_request *r, const struct kvc_sigv4_key *key, char *to, size_t room) {
    char canonical[KVC_SIGV4_ROOM], names[512], hash[KVC_SIGV4_HEX], scope[256], text[512], hex[KVC_SIGV4_HEX];
    unsigned char derived[HASH], signature[HASH];
    const int size = kvc_sigv4_canonical(r, canonical, sizeof canonical, names, sizeof names);
    if (size < 0 || kvc_sigv4_hash(canonical, (size_t)size, hash) < 0) return -1;
    int n = snprintf(scope, sizeof scope, "%.8s/%s/%s/aws4_request", r->date, key->region, key->service);
    if (n < 0 || (size_t)n >= sizeof scope) return -1;
    n = snprintf(text, sizeof text, "AWS4-HMAC-SHA256\n%s\n%s\n%s", r->date, scope, hash);
    if (n < 0 || (size_t)n >= sizeof text) return -1;
    char day[9];
    memcpy(day, scope, 8);
    day[8] = '\0';
    const int status = derive(key, day, derived) || hmac(derived, sizeof derived, text, signature);
    OPENSSL_cleanse(derived, sizeof derived);
    if (status) return -1;
    kvc_hex(signature, sizeof signature, hex);
    struct text t = {to, 0, room};
    print(&t, "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s", key->id, scope, names, hex);
    return length(&t);
}

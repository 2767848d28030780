/* s3_try.c: gives a request to libcurl: its URL, headers, signature and body. Spec of URLs: "AWS
 * Signature Version 4 for API requests" and, for the encoding of paths, the pages of Amazon S3. */
#include "formats/store/s3/s3_state.h"

#include "codecs/memory.h"
#include "formats/io/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* --- URLs --- */

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

/* --- transfers --- */

/* Bytes of an answer that is text: lists are the longest. */
#define MAX_ANSWER (4u << 20)
/* Bytes of an answer for which huge pages pay. */
#define HUGE_ANSWER (2 << 20)
/* Bytes a second below which a transfer counts as standing still. */
#define LEAST_RATE 1024L
#define SECOND INT64_C(1000000)

/* --- what libcurl calls --- */

static size_t on_header(char *line, size_t size, size_t n, void *state) {
    struct kvc_s3_try *t = state;
    t->moved = kvc_now();
    if (!t->answered) t->answered = t->moved;
    kvc_s3_answer_line(&t->answer, line, size * n);
    return size * n;
}

/* Asks for huge pages: faults of small ones take longer than the network. */
static void advise(uint8_t *p, uint64_t n) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE),
                    skip = (page - (uintptr_t)p % page) % page;
    if (n > skip) madvise(p + skip, (size_t)((n - skip) / page * page), MADV_HUGEPAGE);
}

static size_t on_body(char *data, size_t size, size_t n, void *state) {
    struct kvc_s3_try *t = state;
    n *= size;
    t->moved = kvc_now();
    if (t->to && (t->answer.status == 200 || t->answer.status == 206)) {
        if (n > t->r->bytes - t->got) {
            t->too_much = 1;
            return 0;
        }
        if (!t->got && t->answer.length >= HUGE_ANSWER) advise(t->to, t->r->bytes);
        memcpy(t->to + t->got, data, n);
        t->got += n;
        return n;
    }
    if (n > MAX_ANSWER - t->length) {
        t->too_much = 1;
        return 0;
    }
    char *grown = kvc_realloc(t->text, t->length + n + 1, 1);
    if (!grown) return 0;
    memcpy(grown + t->length, data, n);
    t->text = grown;
    t->length += n;
    t->text[t->length] = '\0';
    return n;
}

static size_t on_read(char *to, size_t size, size_t n, void *state) {
    struct kvc_s3_try *t = state;
    n *= size;
    if (n > t->r->size - t->sent) n = t->r->size - t->sent;
    memcpy(to, (const char *)t->r->body + t->sent, n);
    t->sent += n;
    t->moved = kvc_now();
    return n;
}

static int on_seek(void *state, curl_off_t offset, int origin) {
    struct kvc_s3_try *t = state;
    if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > t->r->size)
        return CURL_SEEKFUNC_FAIL;
    t->sent = (size_t)offset;
    return CURL_SEEKFUNC_OK;
}

/* --- the request --- */

/* Adds a header. Values are shorter than a session token. */
static int s3_try_add(struct kvc_s3_try *t, const char *name, const char *value) {
    char line[sizeof((struct kvc_s3_key *)0)->token + 64];
    const int n = snprintf(line, sizeof line, "%s: %s", name, value);
    if (n < 0 || (size_t)n >= sizeof line) return -1;
    struct curl_slist *longer = curl_slist_append(t->headers, line);
    if (longer) t->headers = longer;
    return longer ? 0 : -1;
}

/* Writes the hash of the body that is signed, or the word that there is none. */
static int hash_body(struct kvc_s3_request *r, const struct kvc_s3_setup *s) {
    uint8_t hash[KVC_SHA256_BYTES];
    if (*r->hash) return 0;
    if (r->size && !s->sign_payload) {
        snprintf(r->hash, sizeof r->hash, "UNSIGNED-PAYLOAD");
        return 0;
    }
    if (kvc_sha256(r->size ? r->body : "", r->size, hash, NULL)) return -1;
    kvc_hex(hash, sizeof hash, r->hash);
    return 0;
}

/* Gives libcurl the URL and the headers, all of which it signs. It adds x-amz-date itself: 7.88
 * would send another one twice. */
static int address(struct kvc_s3_try *t, const struct kvc_s3_setup *s) {
    struct kvc_s3_request *r = t->r;
    char url[6144], range[64];
    snprintf(range, sizeof range, "bytes=%" PRIu64 "-%" PRIu64, r->first, r->first + r->bytes - 1);
    if (r->bytes && s3_try_add(t, "range", range)) return -1;
    if (r->if_match && s3_try_add(t, "if-match", r->if_match)) return -1;
    if (r->if_none_match && s3_try_add(t, "if-none-match", r->if_none_match)) return -1;
    /* an empty header in the place of libcurl's, which is for forms, would be signed but not sent
     */
    if (strcmp(r->method, "POST") == 0 && s3_try_add(t, "content-type", "application/xml"))
        return -1;
    if (*s->key.id && (hash_body(r, s) || s3_try_add(t, "x-amz-content-sha256", r->hash)))
        return -1;
    if (*s->key.token && s3_try_add(t, "x-amz-security-token", s->key.token)) return -1;
    if (kvc_s3_url(s, r, url, sizeof url)) return -1;
    if (curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->headers) != CURLE_OK) return -1;
    return curl_easy_setopt(t->easy, CURLOPT_URL, url) == CURLE_OK ? 0 : -1;
}

/* Options that a handle keeps while it is used again and again. */
static CURL *new_handle(const struct kvc_s3_setup *s) {
    CURL *easy = curl_easy_init();
    char provider[sizeof s->region + 16];
    if (!easy) return NULL;
    int bad = 0;
#define SET(option, value) bad |= curl_easy_setopt(easy, option, value) != CURLE_OK
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_QUICK_EXIT, 1L); /* a resolver that hangs is not waited for */
    SET(CURLOPT_PROTOCOLS_STR, s->tls ? "https" : "http");
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_FOLLOWLOCATION, 0L);
    SET(CURLOPT_EXPECT_100_TIMEOUT_MS, 1L); /* "100 Continue" is not waited for */
    SET(CURLOPT_TCP_KEEPALIVE, 1L);
    SET(CURLOPT_USERAGENT, "kvc");
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_READFUNCTION, on_read);
    SET(CURLOPT_SEEKFUNCTION, on_seek);
    if (s->ca_file) SET(CURLOPT_CAINFO, s->ca_file);
    if (*s->key.id) {
        snprintf(provider, sizeof provider, "aws:amz:%s:s3", s->region);
        SET(CURLOPT_AWS_SIGV4, provider);
        SET(CURLOPT_USERNAME, s->key.id);
        SET(CURLOPT_PASSWORD, s->key.secret);
    }
    if (bad) {
        curl_easy_cleanup(easy);
        return NULL;
    }
    return easy;
}

static int set_transfer(struct kvc_s3_try *t, const struct kvc_s3_setup *s, kvc_instant now,
                        kvc_instant deadline) {
    CURL *easy = t->easy;
    const struct kvc_s3_request *r = t->r;
    const int64_t left = deadline - now < s->connect ? deadline - now : s->connect;
    /* a server sends blanks while it joins the parts of an object */
    const int is_post = strcmp(r->method, "POST") == 0;
    int bad = 0;
    SET(CURLOPT_LOW_SPEED_LIMIT, is_post ? 0L : LEAST_RATE);
    SET(CURLOPT_LOW_SPEED_TIME, (long)((s->stall + SECOND - 1) / SECOND));
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)(left / 1000 + 1));
    SET(CURLOPT_ERRORBUFFER, t->error);
    SET(CURLOPT_HEADERDATA, t);
    SET(CURLOPT_WRITEDATA, t);
    SET(CURLOPT_READDATA, t);
    SET(CURLOPT_SEEKDATA, t);
    SET(CURLOPT_PRIVATE, t);
    /* refused by a handle whose last transfer failed early: it keeps its buffer then, which is good
     * for this one too */
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, r->bytes > 65536 ? 262144L : 16384L);
    SET(CURLOPT_HTTPGET, 1L); /* undoes what another method left */
    SET(CURLOPT_CUSTOMREQUEST, NULL);
    if (strcmp(r->method, "HEAD") == 0) {
        SET(CURLOPT_NOBODY, 1L);
    } else if (strcmp(r->method, "PUT") == 0) {
        SET(CURLOPT_UPLOAD, 1L);
        SET(CURLOPT_INFILESIZE_LARGE, (curl_off_t)r->size);
        SET(CURLOPT_UPLOAD_BUFFERSIZE, r->size > 65536 ? 1048576L : 65536L);
    } else if (is_post) {
        SET(CURLOPT_POSTFIELDS, r->size ? r->body : "");
        SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)r->size);
    } else if (strcmp(r->method, "DELETE") == 0) {
        SET(CURLOPT_CUSTOMREQUEST, "DELETE");
    }
#undef SET
    return bad ? -1 : 0;
}

int kvc_s3_try_begin(struct kvc_s3_try *t, struct kvc_s3 *l, struct kvc_s3_channel *channel,
                     kvc_instant now, kvc_instant deadline) {
    kvc_s3_answer_begin(&t->answer);
    t->started = t->moved = now;
    t->easy = channel->n ? channel->idle[--channel->n] : new_handle(&l->setup);
    if (!t->easy) return -1;
    if (set_transfer(t, &l->setup, now, deadline) || address(t, &l->setup)) return -1;
    return curl_multi_add_handle(channel->multi, t->easy) == CURLM_OK ? 0 : -1;
}

void kvc_s3_try_end(struct kvc_s3_try *t, struct kvc_s3_channel *channel) {
    if (t->easy) {
        curl_multi_remove_handle(channel->multi, t->easy);
        curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, NULL);
        curl_easy_setopt(t->easy, CURLOPT_ERRORBUFFER, NULL);
        if (channel->n < KVC_S3_IDLE) channel->idle[channel->n++] = t->easy;
        else curl_easy_cleanup(t->easy);
    }
    curl_slist_free_all(t->headers);
    free(t->own);
    free(t->text);
    free(t);
}

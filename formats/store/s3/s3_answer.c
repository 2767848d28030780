/* s3_answer.c: reads what S3 answers: headers and dates (RFC 9110), and XML by expat, within
 * limits. */
#include "formats/store/s3/s3_state.h"

#include "codecs/memory.h"
#include "formats/io/hash.h"

#include <expat.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* --- headers --- */

void kvc_s3_answer_begin(struct kvc_s3_answer *a) {
    *a = (struct kvc_s3_answer){
        .length = -1, .first = -1, .last = -1, .total = -1, .date = -1, .retry = -1};
}

/* Reads digits, 18 at most, and returns what follows; NULL: there are none. */
static const char *number(const char *p, int64_t *value) {
    int64_t v = 0;
    int n = 0;
    for (; p[n] >= '0' && p[n] <= '9'; n++) {
        if (n == 18) return NULL;
        v = 10 * v + (p[n] - '0');
    }
    *value = v;
    return n ? p + n : NULL;
}

int64_t kvc_s3_date_iso(const char *text) {
    struct tm tm = {0};
    const int64_t t = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) ? (int64_t)timegm(&tm) : -1;
    return t < 0 ? -1 : t;
}

/* "bytes 0-9/1000". What contradicts itself counts as none. */
static void read_range(struct kvc_s3_answer *a, const char *value) {
    int64_t first, last, total;
    if (strncasecmp(value, "bytes ", 6) != 0) return;
    const char *p = number(value + 6, &first);
    if (!p || *p != '-' || !(p = number(p + 1, &last)) || *p != '/' ||
        !(p = number(p + 1, &total)) || *p)
        return;
    if (first > last || last >= total) return;
    a->first = first;
    a->last = last;
    a->total = total;
}

/* Copies a text for messages: other characters than printable ones become `other`; 0: they go. */
static void copy_plain(char *to, size_t room, const char *from, char other) {
    size_t n = 0;
    for (; *from && n + 1 < room; from++)
        if (*from >= ' ' && *from <= '~') to[n++] = *from;
        else if (other) to[n++] = other;
    to[n] = '\0';
}

static void s3_answer_read_header(struct kvc_s3_answer *a, const char *name, const char *value) {
    const char *end;
    int64_t v;
    if (strcasecmp(name, "content-length") == 0) {
        if ((end = number(value, &v)) != NULL && !*end) a->length = v;
    } else if (strcasecmp(name, "transfer-encoding") == 0) {
        a->chunked = strcasecmp(value, "chunked") == 0;
    } else if (strcasecmp(name, "content-range") == 0) {
        read_range(a, value);
    } else if (strcasecmp(name, "etag") == 0) {
        copy_plain(a->etag, sizeof a->etag, strlen(value) < sizeof a->etag ? value : "", 0);
    } else if (strcasecmp(name, "date") == 0) {
        a->date = curl_getdate(value, NULL);
    } else if (strcasecmp(name, "retry-after") == 0) {
        if ((end = number(value, &v)) != NULL && !*end) a->retry = v;
    } else if (strcasecmp(name, "server") == 0) {
        copy_plain(a->server, sizeof a->server, value, 0);
    } else if (strcasecmp(name, "x-amz-bucket-region") == 0) {
        copy_plain(a->region, sizeof a->region, value, 0);
    }
}

void kvc_s3_answer_line(struct kvc_s3_answer *a, const char *line, size_t n) {
    char text[512];
    while (n && (line[n - 1] == '\n' || line[n - 1] == '\r' || line[n - 1] == ' ' ||
                 line[n - 1] == '\t'))
        n--;
    if (n >= sizeof text || memchr(line, '\0', n)) return; /* of no interest here */
    memcpy(text, line, n);
    text[n] = '\0';
    if (strncmp(text, "HTTP/", 5) == 0) {
        const char *blank = strchr(text, ' ');
        int64_t status = 0;
        kvc_s3_answer_begin(a);
        if (blank && number(blank + 1, &status) == blank + 4) a->status = (int)status;
        return;
    }
    char *colon = strchr(text, ':');
    if (!colon) return;
    *colon++ = '\0';
    while (*colon == ' ' || *colon == '\t') colon++;
    s3_answer_read_header(a, text, colon);
}

/* --- XML --- */

#define MAX_DEPTH 8
#define MAX_TEXT 4096
#define MAX_ENTRIES 10000 /* S3 gives 1 000 */

/* Gets an element at its end: its names from the root on ("ListBucketResult/Contents/Key"), and the
 * text right within it. */
typedef int element(void *state, const char *path, const char *text);

struct reader {
    XML_Parser parser;
    element *end;
    void *state;
    struct kvc_error *e;
    int status;
    char path[512];
    size_t cut[MAX_DEPTH]; /* length of the path before each open element */
    unsigned depth;
    char text[MAX_TEXT + 1];
    size_t n;
};

static void stop(struct reader *r, const char *why) {
    if (!r->status) r->status = kvc_fail(r->e, KVC_ERR_DAMAGED, "the server's XML %s", why);
    XML_StopParser(r->parser, XML_FALSE);
}

static void on_begin(void *state, const XML_Char *name, const XML_Char **attributes) {
    struct reader *r = state;
    (void)attributes;
    if (r->status) return;
    const char *colon = strrchr(name, ':');
    if (colon) name = colon + 1;
    const size_t used = strlen(r->path), n = strlen(name);
    if (r->depth == MAX_DEPTH || used + n + 2 > sizeof r->path) {
        stop(r, "is nested too deep");
        return;
    }
    r->cut[r->depth++] = used;
    if (used) r->path[used] = '/';
    memcpy(r->path + used + (used ? 1 : 0), name, n + 1);
    r->n = 0;
}

static void on_text(void *state, const XML_Char *text, int n) {
    struct reader *r = state;
    if (r->status || n < 0) return;
    if ((size_t)n > MAX_TEXT - r->n) {
        stop(r, "has a text of more than 4096 bytes");
        return;
    }
    memcpy(r->text + r->n, text, (size_t)n);
    r->n += (size_t)n;
}

static void on_end(void *state, const XML_Char *name) {
    struct reader *r = state;
    (void)name;
    if (r->status || !r->depth) return;
    r->text[r->n] = '\0';
    if (r->end(r->state, r->path, r->text)) {
        r->status = -1;
        XML_StopParser(r->parser, XML_FALSE);
    }
    r->path[r->cut[--r->depth]] = '\0';
    r->n = 0;
}

static void on_doctype(void *state, const XML_Char *name, const XML_Char *system,
                       const XML_Char *public, int internal) {
    (void)name;
    (void)system;
    (void)public;
    (void)internal;
    stop(state, "has a document type, which S3's never has");
}

static int read_document(const char *text, size_t size, element *end, void *state,
                         struct kvc_error *e) {
    if (size > KVC_S3_XML_LIMIT)
        return kvc_fail(e, KVC_ERR_DAMAGED, "the server's XML has %zu bytes: more than S3 sends",
                        size);
    struct reader *r = calloc(1, sizeof *r);
    if (!r) return kvc_fail_memory(e, "a server's answer");
    *r = (struct reader){.parser = XML_ParserCreate(NULL), .end = end, .state = state, .e = e};
    int status = r->parser ? 0 : kvc_fail_memory(e, "a server's answer");
    if (!status) {
        XML_SetUserData(r->parser, r);
        XML_SetElementHandler(r->parser, on_begin, on_end);
        XML_SetCharacterDataHandler(r->parser, on_text);
        XML_SetStartDoctypeDeclHandler(r->parser, on_doctype);
        const enum XML_Status parsed = XML_Parse(r->parser, text, (int)size, 1);
        status = r->status;
        if (!status && parsed != XML_STATUS_OK)
            status = kvc_fail(e, KVC_ERR_DAMAGED, "the server's XML cannot be read: %s in line %lu",
                              XML_ErrorString(XML_GetErrorCode(r->parser)),
                              (unsigned long)XML_GetCurrentLineNumber(r->parser));
        XML_ParserFree(r->parser);
    }
    free(r);
    return status;
}

/* --- lists --- */

struct listing {
    struct kvc_s3_listing *l;
    struct kvc_s3_entry now;
    int encoded, root;
    struct kvc_error *e;
};

static int on_listing(void *state, const char *path, const char *text) {
    struct listing *s = state;
    struct kvc_s3_listing *l = s->l;
    if (strcmp(path, "ListBucketResult") == 0) s->root = 1;
    if (strncmp(path, "ListBucketResult/", 17) != 0) return 0;
    path += 17;
    char **string = strcmp(path, "Contents/Key") == 0            ? &s->now.key
                    : strcmp(path, "NextContinuationToken") == 0 ? &l->next
                                                                 : NULL;
    if (string) {
        free(*string);
        *string = strdup(text);
        return *string ? 0 : kvc_fail_memory(s->e, "a list of objects");
    }
    if (strcmp(path, "IsTruncated") == 0) l->more = strcmp(text, "true") == 0;
    else if (strcmp(path, "EncodingType") == 0) s->encoded = strcmp(text, "url") == 0;
    else if (strcmp(path, "Contents/LastModified") == 0) s->now.modified = kvc_s3_date_iso(text);
    else if (strcmp(path, "Contents/Size") == 0) {
        char *end;
        s->now.size = strtoull(text, &end, 10);
        if (*text < '0' || *text > '9' || *end)
            return kvc_fail(s->e, KVC_ERR_DAMAGED, "the server lists an object without a size");
    } else if (strcmp(path, "Contents") == 0 && s->now.key) {
        struct kvc_s3_entry *grown = kvc_room_for_one(l->entry, l->n, sizeof *grown);
        if (!grown) return kvc_fail_memory(s->e, "a list of objects");
        l->entry = grown;
        if (l->n == MAX_ENTRIES)
            return kvc_fail(s->e, KVC_ERR_DAMAGED,
                            "the server lists more objects at once than S3 does");
        if (s->now.modified < 0) s->now.modified = 0;
        l->entry[l->n++] = s->now;
        s->now = (struct kvc_s3_entry){0};
    }
    return 0;
}

/* Decodes %XX and '+' in place; what is no code stays as it is. */
static void s3_xml_decode(char *text) {
    char *to = text;
    for (const char *p = text; *p; p++) {
        const int high = *p == '%' ? kvc_hex_digit(p[1]) : -1,
                  low = high < 0 ? -1 : kvc_hex_digit(p[2]);
        if (low >= 0 && (high | low)) {
            *to++ = (char)(high << 4 | low);
            p += 2;
        } else {
            *to++ = *p == '+' ? ' ' : *p;
        }
    }
    *to = '\0';
}

int kvc_s3_read_listing(struct kvc_s3_listing *l, const char *text, size_t size,
                        struct kvc_error *e) {
    *l = (struct kvc_s3_listing){0};
    struct listing s = {.l = l, .e = e};
    int status = read_document(text, size, on_listing, &s, e);
    if (!status && !s.root)
        status = kvc_fail(e, KVC_ERR_DAMAGED, "the server sent no list of objects");
    if (!status && l->more && !l->next)
        status = kvc_fail(e, KVC_ERR_DAMAGED, "the server cut a list of objects short");
    for (size_t i = 0; s.encoded && i < l->n; i++) s3_xml_decode(l->entry[i].key);
    free(s.now.key);
    if (status) kvc_s3_listing_free(l);
    return status;
}

void kvc_s3_listing_free(struct kvc_s3_listing *l) {
    for (size_t i = 0; i < l->n; i++) free(l->entry[i].key);
    free(l->entry);
    free(l->next);
    *l = (struct kvc_s3_listing){0};
}

/* --- uploads and errors --- */

static int on_upload(void *state, const char *path, const char *text) {
    if (strcmp(path, "InitiateMultipartUploadResult/UploadId") == 0 && strlen(text) < 1024)
        copy_plain(state, 1024, text, '?');
    return 0;
}

int kvc_s3_read_upload(char id[1024], const char *text, size_t size, struct kvc_error *e) {
    id[0] = '\0';
    if (read_document(text, size, on_upload, id, e)) return -1;
    return id[0] ? 0 : kvc_fail(e, KVC_ERR_DAMAGED, "the server began an upload without an id");
}

struct error_text {
    char *code, *message;
    int root;
};

static int on_error(void *state, const char *path, const char *text) {
    struct error_text *t = state;
    if (strcmp(path, "Error") == 0) t->root = 1;
    else if (strcmp(path, "Error/Code") == 0) copy_plain(t->code, 64, text, '?');
    else if (strcmp(path, "Error/Message") == 0) copy_plain(t->message, 256, text, '?');
    return 0;
}

int kvc_s3_read_error(char code[64], char message[256], const char *text, size_t size) {
    struct error_text t = {code, message, 0};
    code[0] = message[0] = '\0';
    if (!size || read_document(text, size, on_error, &t, NULL)) return -1;
    return t.root;
}

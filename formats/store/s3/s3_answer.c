/* s3_answer.c: reads headers. Spec: RFC 9110. */
#include "formats/store/s3/s3_answer.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

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

static void copy_plain(char *to, size_t room, const char *from) {
    size_t n = 0;
    for (; *from && n + 1 < room; from++)
        if (*from >= ' ' && *from <= '~') to[n++] = *from;
    to[n] = '\0';
}

static void s3_answer_read_header(struct kvc_s3_answer *a, const char *name, const char *value) {
    const char *end;
    int64_t v;
    if (strcasecmp(name, "content-length") == 0) {
        if ((end = number(value, &v)) != NULL && !*end) a->length = v;
    } else if (strcasecmp(name, "content-range") == 0) {
        read_range(a, value);
    } else if (strcasecmp(name, "etag") == 0) {
        copy_plain(a->etag, sizeof a->etag, strlen(value) < sizeof a->etag ? value : "");
    } else if (strcasecmp(name, "date") == 0) {
        a->date = curl_getdate(value, NULL);
    } else if (strcasecmp(name, "retry-after") == 0) {
        if ((end = number(value, &v)) != NULL && !*end) a->retry = v;
    } else if (strcasecmp(name, "server") == 0) {
        copy_plain(a->server, sizeof a->server, value);
    } else if (strcasecmp(name, "x-amz-bucket-region") == 0) {
        copy_plain(a->region, sizeof a->region, value);
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

/* s3_answer.c: reads headers. Spec: RFC 9110. */
#include "formats/store/s3/s3_answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

void kvc_s3_answer_begin(struct kvc_s3_answer *a) {
    *a = (struct kvc_s3_answer){.length = -1, .first = -1, .last = -1, .total = -1, .date = -1, .retry = -1};
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

static int64_t seconds(int year, int month, int day, int hour, int minute, int second) {
    if (year < 1970 || year > 9999 || month < 0 || month > 11 || day < 1 || day > 31 || hour > 23 || minute > 59 || second > 60)
        return -1;
    struct tm tm = {.tm_year = year - 1900, .tm_mon = month, .tm_mday = day, .tm_hour = hour, .tm_min = minute, .tm_sec = second};
    return (int64_t)timegm(&tm);
}

int64_t kvc_s3_date(const char *text) {
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    char name[4], zone[4];
    unsigned day, year, hour, minute, second;
    if (sscanf(text, "%*3s, %2u %3s %4u %2u:%2u:%2u %3s", &day, name, &year, &hour, &minute, &second, zone) != 7) return -1;
    const char *month = strlen(name) == 3 ? strstr(months, name) : NULL;
    if (!month || (month - months) % 3 || strcmp(zone, "GMT") != 0) return -1;
    return seconds((int)year, (int)(month - months) / 3, (int)day, (int)hour, (int)minute, (int)second);
}

int64_t kvc_s3_date_iso(const char *text) {
    unsigned year, month, day, hour, minute, second;
    if (sscanf(text, "%4u-%2u-%2uT%2u:%2u:%2u", &year, &month, &day, &hour, &minute, &second) != 6 || !month) return -1;
    return seconds((int)year, (int)month - 1, (int)day, (int)hour, (int)minute, (int)second);
}

/* "bytes 0-9/1000". What contradicts itself counts as none. */
static void read_range(struct kvc_s3_answer *a, const char *value) {
    int64_t first, last, total;
    if (strncasecmp(value, "bytes ", 6) != 0) return;
    const char *p = number(value + 6, &first);
    if (!p || *p != '-' || !(p = number(p + 1, &last)) || *p != '/' || !(p = number(p + 1, &total)) || *p) return;
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

static void read_header(struct kvc_s3_answer *a, const char *name, const char *value) {
    const char *end;
    int64_t v;
    if (strcasecmp(name, "content-length") == 0) {
        if ((end = number(value, &v)) != NULL && !*end) a->length = v;
    } else if (strcasecmp(name, "content-range") == 0) {
        read_range(a, value);
    } else if (strcasecmp(name, "etag") == 0) {
        copy_plain(a->etag, sizeof a->etag, strlen(value) < sizeof a->etag ? value : "");
    } else if (strcasecmp(name, "date") == 0) {
        a->date = kvc_s3_date(value);
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
    while (n && (line[n - 1] == '\n' || line[n - 1] == '\r' || line[n - 1] == ' ' || line[n - 1] == '\t')) n--;
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
    read_header(a, text, colon);
}

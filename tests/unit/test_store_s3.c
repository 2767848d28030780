/* test_store_s3.c: what the S3 backend does without a server: URLs, XML, headers, search, memory.
 */
#include "formats/store/s3/s3_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N(a) (sizeof(a) / sizeof *(a))

/* --- URLs --- */

static void test_urls(void **state) {
    (void)state;
    struct kvc_s3_setup s = {.base = "http://host:9000",
                             .path = "/bucket",
                             .prefix = "a/b c+\xc3\xa9~=&%/"};
    const struct kvc_s3_request bucket = {.method = "GET"}, object = {.name = "1-2.kv"},
                                some = {.query = {{"continuation-token", "a+/="},
                                                  {"list-type", "2"},
                                                  {"none", NULL},
                                                  {"uploads", ""}}};
    static const struct kvc_s3_setup whole = {.base = "https://bucket.host"};
    char text[128];
    assert_int_equal(kvc_s3_url(&s, &bucket, text, sizeof text), 0);
    assert_string_equal(text, "http://host:9000/bucket");
    assert_int_equal(kvc_s3_url(&whole, &bucket, text, sizeof text), 0);
    assert_string_equal(text, "https://bucket.host/");
    assert_int_equal(kvc_s3_url(&s, &some, text, sizeof text), 0);
    assert_string_equal(
        text, "http://host:9000/bucket?continuation-token=a%2B%2F%3D&list-type=2&uploads=");
    static const char expected[] = "http://host:9000/bucket/a/b%20c%2B%C3%A9~%3D%26%25/1-2.kv";
    assert_int_equal(kvc_s3_url(&s, &object, text, sizeof text), 0);
    assert_string_equal(text, expected);
    for (size_t room = 0; room < sizeof expected; room++)
        assert_int_equal(kvc_s3_url(&s, &object, text, room), -1);
}

/* --- headers --- */

static void take(struct kvc_s3_answer *a, const char *line) {
    kvc_s3_answer_line(a, line, strlen(line));
}

static void test_headers(void **state) {
    (void)state;
    struct kvc_s3_answer a;
    kvc_s3_answer_begin(&a);
    take(&a, "HTTP/1.1 100 Continue\r\n");
    take(&a, "ETag: \"interim\"\r\n");
    take(&a, "HTTP/1.1 206 Partial Content\r\n");
    assert_int_equal(a.status, 206);
    assert_string_equal(a.etag, "");
    take(&a, "ETag:\"abc-3\"\r\n");
    take(&a, "content-LENGTH:  10 \r\n");
    take(&a, "Content-Range: bytes 5-14/1000\r\n");
    take(&a, "Date: Fri, 24 May 2013 00:00:00 GMT\r\n");
    take(&a, "Retry-After: 7\r\n");
    take(&a, "Server: Any\x1b[31m thing\r\n");
    take(&a, "x-amz-bucket-region: eu-west-1\r\n");
    take(&a, "\r\n");
    assert_string_equal(a.etag, "\"abc-3\"");
    assert_int_equal(a.length, 10);
    assert_false(a.chunked);
    assert_int_equal(a.first, 5);
    assert_int_equal(a.last, 14);
    assert_int_equal(a.total, 1000);
    assert_int_equal(a.date, 1369353600);
    assert_int_equal(a.retry, 7);
    assert_string_equal(a.server, "Any[31m thing");
    assert_string_equal(a.region, "eu-west-1");
}

static void test_bad_headers(void **state) {
    (void)state;
    static const char *const range[] = {"bytes 5-4/10",
                                        "bytes 0-10/10",
                                        "bytes */10",
                                        "bytes 0-9/*",
                                        "bytes 0-9/10x",
                                        "items 0-9/10",
                                        "bytes -1-9/10",
                                        "bytes 0-9",
                                        "",
                                        "bytes 0-9/",
                                        "bytes 0-9/9999999999999999999"};
    struct kvc_s3_answer a;
    kvc_s3_answer_begin(&a);
    for (size_t i = 0; i < N(range); i++) {
        char line[128];
        snprintf(line, sizeof line, "Content-Range: %s\r\n", range[i]);
        take(&a, line);
        assert_int_equal(a.total, -1);
    }
    take(&a, "Content-Length: 12345678901234567890\r\n");
    take(&a, "Content-Length: -1\r\n");
    take(&a, "Content-Length: 1a\r\n");
    assert_int_equal(a.length, -1);
    static const char *const date[] = {"Fri, 24 Foo 2013 00:00:00 GMT",
                                       "Fri, 24 anF 2013 00:00:00 GMT", "yesterday", ""};
    for (size_t i = 0; i < N(date); i++) {
        char line[128];
        snprintf(line, sizeof line, "Date: %s\r\n", date[i]);
        take(&a, line);
        assert_int_equal(a.date, -1);
    }
    take(&a, "Transfer-Encoding: chunked\r\n");
    assert_true(a.chunked);
    take(&a, "HTTP/1.1 20 OK\r\n");
    assert_false(a.chunked);
    assert_int_equal(a.status, 0);
    assert_int_equal(kvc_s3_date_iso("2013-05-24T00:00:00.000Z"), 1369353600);
    assert_int_equal(kvc_s3_date_iso("2013-00-24T00:00:00Z"), -1);
    assert_int_equal(kvc_s3_date_iso(""), -1);
}

/* --- XML --- */

static int listing(struct kvc_s3_listing *l, const char *text, struct kvc_error *e) {
    return kvc_s3_read_listing(l, text, strlen(text), e);
}

static void test_listing(void **state) {
    (void)state;
    struct kvc_s3_listing l;
    struct kvc_error e;
    assert_int_equal(
        listing(
            &l,
            "<?xml version=\"1.0\"?><ListBucketResult "
            "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name>"
            "<Contents><Key>p%2Fone+x</Key><LastModified>2013-05-24T00:00:00.000Z</"
            "LastModified><Size>12</Size>"
            "<Owner><ID>Key</ID></Owner></Contents>"
            "<Contents><Size>0</Size><Key>a&amp;b</Key></Contents><EncodingType>url</EncodingType>"
            "<IsTruncated>true</IsTruncated><NextContinuationToken>n&lt;</NextContinuationToken></"
            "ListBucketResult>",
            &e),
        0);
    assert_int_equal(l.n, 2);
    assert_string_equal(l.entry[0].key, "p/one x");
    assert_int_equal(l.entry[0].size, 12);
    assert_int_equal(l.entry[0].modified, 1369353600);
    assert_string_equal(l.entry[1].key, "a&b");
    assert_int_equal(l.entry[1].modified, 0);
    assert_true(l.more);
    assert_string_equal(l.next, "n<");
    kvc_s3_listing_free(&l);
    assert_int_equal(
        listing(&l, "<ListBucketResult><Contents><Key>a%2Fb</Key></Contents></ListBucketResult>",
                &e),
        0);
    assert_string_equal(l.entry[0].key, "a%2Fb");
    kvc_s3_listing_free(&l);
}

static void test_bad_xml(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",
        "<",
        "<ListBucketResult>",
        "<Other/>",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>x</Size></Contents></ListBucketResult>",
        "<!DOCTYPE a [<!ENTITY x \"y\">]><ListBucketResult>&x;</ListBucketResult>",
        "<a><a><a><a><a><a><a><a><a/></a></a></a></a></a></a></a></a>",
    };
    struct kvc_s3_listing l;
    struct kvc_error e;
    for (size_t i = 0; i < N(bad); i++) assert_int_equal(listing(&l, bad[i], &e), -1);
    char *text = malloc(KVC_S3_XML_LIMIT + 1);
    assert_non_null(text);
    memset(text, ' ', KVC_S3_XML_LIMIT + 1);
    assert_int_equal(kvc_s3_read_listing(&l, text, KVC_S3_XML_LIMIT + 1, &e), -1);
    memcpy(text, "<ListBucketResult><Name>", 24);
    memset(text + 24, 'x', 5000);
    memcpy(text + 5024, "</Name></ListBucketResult>", 26);
    assert_int_equal(kvc_s3_read_listing(&l, text, 5050, &e), -1);
    assert_non_null(strstr(e.message, "4096"));
    free(text);
}

static void test_error_xml(void **state) {
    (void)state;
    char code[64], message[256], id[1024];
    struct kvc_error e;
    const char *text = "<Error><Code>SlowDown</Code><Message>Please\x1b reduce</Message></Error>";
    /* no XML has that character */
    assert_int_equal(kvc_s3_read_error(code, message, text, strlen(text)), -1);
    text = "<Error><Code>SlowDown</Code><Message>Please&#10;reduce</Message></Error>";
    assert_int_equal(kvc_s3_read_error(code, message, text, strlen(text)), 1);
    assert_string_equal(code, "SlowDown");
    assert_string_equal(message, "Please?reduce");
    text = "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>";
    assert_int_equal(kvc_s3_read_error(code, message, text, strlen(text)), 0);
    assert_int_equal(kvc_s3_read_error(code, message, "Bad gateway", 11), -1);
    text = "<InitiateMultipartUploadResult><Bucket>b</Bucket><UploadId>abc</UploadId></"
           "InitiateMultipartUploadResult>";
    assert_int_equal(kvc_s3_read_upload(id, text, strlen(text), &e), 0);
    assert_string_equal(id, "abc");
    assert_int_equal(kvc_s3_read_upload(id, "<a/>", 4, &e), -1);
}

/* --- search and memory --- */

/* Searches among n objects of which the first `there` exist, of which `known` are known. Returns
 * the rounds. */
static unsigned rounds_of(size_t n, size_t there, size_t known) {
    struct kvc_s3_search s = {known, n};
    size_t probe[KVC_S3_PROBES], asked;
    unsigned rounds = 0;
    while ((asked = kvc_s3_probes(&s, probe)) != 0) {
        uint8_t answer[KVC_S3_PROBES];
        assert_true(asked <= KVC_S3_PROBES);
        for (size_t i = 0; i < asked; i++) {
            assert_true(probe[i] >= s.low && probe[i] < s.high && (!i || probe[i] > probe[i - 1]));
            answer[i] = probe[i] < there;
        }
        kvc_s3_narrow(&s, probe, answer, asked);
        rounds++;
    }
    assert_int_equal(s.low, there);
    assert_int_equal(s.high, there);
    return rounds;
}

static void test_search(void **state) {
    (void)state;
    assert_int_equal(rounds_of(0, 0, 0), 0);
    for (size_t n = 1; n < 1200; n += n < 70 ? 1 : 61)
        for (size_t there = 0; there <= n; there++) {
            const unsigned rounds = rounds_of(n, there, 0), most = n <= 31 ? 1 : n <= 1023 ? 2 : 3;
            assert_true(rounds <= most);
        }
    for (size_t there = 0; there <= 1023; there++) assert_true(rounds_of(1023, there, 0) <= 2);
    for (size_t known = 1; known <= 512; known += 7) {
        /* nothing came after what was known */
        assert_int_equal(rounds_of(512, known, known), known < 512);
        for (size_t there = known; there <= 512; there += 13)
            assert_true(rounds_of(512, there, known) <= 2);
    }
    assert_true(rounds_of((size_t)1 << 40, 12345678901, 0) <= 9);
}

static void test_memory(void **state) {
    (void)state;
    struct kvc_s3_memory *m = kvc_s3_memory_new(100);
    assert_non_null(m);
    struct kvc_object o = {KVC_OBJECT_CHUNK, {1}, {2}}, other = {KVC_OBJECT_STATE, {1}, {2}};
    uint64_t size = 0;
    assert_int_equal(kvc_s3_recall(m, &o, &size, 1000), KVC_S3_UNKNOWN);
    kvc_s3_remember(m, &o, KVC_S3_THERE, 77, 1000);
    assert_int_equal(kvc_s3_recall(m, &o, &size, 1099), KVC_S3_THERE);
    assert_int_equal(size, 77);
    assert_int_equal(kvc_s3_recall(m, &other, &size, 1099), KVC_S3_UNKNOWN);
    assert_int_equal(kvc_s3_recall(m, &o, &size, 1100), KVC_S3_UNKNOWN);
    kvc_s3_remember(m, &o, KVC_S3_BAD, 0, 1100);
    assert_int_equal(kvc_s3_recall(m, &o, &size, 999999), KVC_S3_BAD);
    kvc_s3_remember(m, &o, KVC_S3_UNKNOWN, 0, 1100);
    assert_int_equal(kvc_s3_recall(m, &o, &size, 1100), KVC_S3_UNKNOWN);
    /* more of one set than it has places: the oldest go */
    for (uint8_t i = 1; i <= 9; i++) {
        o.key[31] = i;
        kvc_s3_remember(m, &o, KVC_S3_THERE, i, 2000 + i);
    }
    assert_int_equal(kvc_s3_recall(m, &o, &size, 2010), KVC_S3_THERE);
    o.key[31] = 1;
    assert_int_equal(kvc_s3_recall(m, &o, &size, 2010), KVC_S3_UNKNOWN);
    kvc_s3_memory_free(m);
    m = kvc_s3_memory_new(0);
    assert_non_null(m);
    kvc_s3_remember(m, &o, KVC_S3_THERE, 1, 5);
    assert_int_equal(kvc_s3_recall(m, &o, &size, 5), KVC_S3_UNKNOWN);
    kvc_s3_memory_free(m);
}

/* --- names of tiers --- */

static const struct {
    const char *url, *base, *path, *prefix; /* base NULL: refused */
} names[] = {
    {"s3://bucket/a/b", "https://bucket.s3.eu-west-1.amazonaws.com", "", "a/b/"},
    {"s3://bucket", "https://bucket.s3.eu-west-1.amazonaws.com", "", ""},
    {"s3://bucket/?region=us-west-2", "https://bucket.s3.us-west-2.amazonaws.com", "", ""},
    {"s3://with.dot/p/", "https://s3.eu-west-1.amazonaws.com", "/with.dot", "p/"},
    {"s3://bucket/p?endpoint=http://127.0.0.1:9000", "http://127.0.0.1:9000", "/bucket", "p/"},
    {"s3://bucket?endpoint=http://host:80/", "http://host", "/bucket", ""},
    {"s3://bucket?endpoint=https://host:443/base/", "https://host", "/base/bucket", ""},
    {"s3://bucket?endpoint=https://host:80", "https://host:80", "/bucket", ""},
    {"s3://bucket?endpoint=host:9000&style=host", "https://bucket.host:9000", "", ""},
    {"s3://bucket?endpoint=http://[::1]:9000", "http://[::1]:9000", "/bucket", ""},
    {"s3://bucket?endpoint=ftp://host", NULL, NULL, NULL},
    {"s3://bucket?endpoint=http://me:secret%40host", NULL, NULL, NULL},
    {"s3://bucket?endpoint=http://", NULL, NULL, NULL},
    {"s3://bu%63ket", NULL, NULL, NULL},
    {"s3://.bucket", NULL, NULL, NULL},
    {"s3:///prefix", NULL, NULL, NULL},
    {"s3://bucket/a..b/.c/...", "https://bucket.s3.eu-west-1.amazonaws.com", "", "a..b/.c/.../"},
    {"s3://bucket/a/../b", NULL, NULL, NULL},
    {"s3://bucket/a/.", NULL, NULL, NULL},
    {"s3://bucket?endpoint=http://host/./a", NULL, NULL, NULL},
    {"s3://bucket?connections=0", NULL, NULL, NULL},
};

static void test_names(void **state) {
    (void)state;
    static const char *const variables[] = {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL",
                                            "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"};
    for (size_t i = 0; i < N(variables); i++) unsetenv(variables[i]);
    setenv("AWS_REGION", "eu-west-1", 1);
    setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "not to be seen", 1);
    for (size_t i = 0; i < N(names); i++) {
        struct kvc_url u;
        struct kvc_s3_setup s;
        struct kvc_error e;
        assert_int_equal(kvc_url_parse(&u, names[i].url, &e), 0);
        const int status = kvc_s3_setup(&s, &u, &e);
        kvc_url_free(&u);
        assert_int_equal(status, names[i].base ? 0 : -1);
        if (status) {
            assert_null(strstr(e.message, "secret"));
            continue;
        }
        assert_string_equal(s.base, names[i].base);
        assert_string_equal(s.path, names[i].path);
        assert_string_equal(s.prefix, names[i].prefix);
        assert_int_equal(s.tls, strncmp(s.base, "https", 5) == 0);
        assert_int_equal(s.sign_payload, !s.tls);
        assert_string_equal(s.key.id, "AKIDEXAMPLE");
        kvc_s3_setup_free(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_urls),        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_bad_headers), cmocka_unit_test(test_listing),
        cmocka_unit_test(test_bad_xml),     cmocka_unit_test(test_error_xml),
        cmocka_unit_test(test_search),      cmocka_unit_test(test_memory),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

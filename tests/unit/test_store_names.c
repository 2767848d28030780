/* test_store_names.c: texts of a store: names of objects, URLs, chains of tiers, the
 * configuration, the facts of a namespace; and the keys of its chunks beside a computation of the
 * test's own. */
#include "store_support.h"

#include "formats/store/dir/conf.h"
#include "formats/io/hash.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

static void names(void **state) {
    (void)state;
    char text[KVC_OBJECT_NAME], wrong[2 * KVC_OBJECT_NAME];
    struct kvc_object o = {.ns = {1, 0x23, 0xab}}, p;
    for (unsigned i = 0; i < sizeof o.key; i++) o.key[i] = (uint8_t)(i * 37);
    static const char *const end[KVC_OBJECT_KINDS] = {".kv",   ".state", ".space",
                                                      ".kvcp", ".named", ".learnt"};
    for (unsigned kind = 0; kind < KVC_OBJECT_KINDS; kind++) {
        o.kind = (enum kvc_object_kind)kind;
        kvc_object_name(&o, text);
        assert_int_equal(strlen(text), 81 + strlen(end[kind]));
        assert_string_equal(text + 81, end[kind]);
        assert_memory_equal(text, "0123ab0000000000-00254a6f94b9", 29);
        assert_int_equal(kvc_object_parse(text, &p), 0);
        assert_true(kvc_object_equal(&o, &p));
    }
    o.kind = KVC_OBJECT_CHUNK;
    kvc_object_name(&o, text);
    const size_t n = strlen(text);
    for (size_t i = 0; i < n; i++) { /* cut, doubled, and each character another one */
        memcpy(wrong, text, n + 1);
        wrong[i] = '\0';
        assert_int_equal(kvc_object_parse(wrong, &p), -1);
        memcpy(wrong + i, text + i, n - i + 1);
        memmove(wrong + i + 1, wrong + i, n - i + 1);
        assert_int_equal(kvc_object_parse(wrong, &p), -1);
        for (const char *c = "GgxA/. %\n\x80-_"; *c; c++) {
            memcpy(wrong, text, n + 1);
            if (wrong[i] == *c) continue;
            wrong[i] = *c;
            assert_int_equal(kvc_object_parse(wrong, &p), -1);
        }
    }
    for (const char *const *more = (const char *const[]){"x", ".kv", "/", "\n", NULL}; *more;
         more++) {
        snprintf(wrong, sizeof wrong, "%s%s", text, *more);
        assert_int_equal(kvc_object_parse(wrong, &p), -1);
    }
    assert_int_equal(kvc_object_parse("", &p), -1);
    assert_int_equal(kvc_object_parse("../kvc-store.conf", &p), -1);
}

static void refuse_url(const char *text, const char *words) {
    struct kvc_url u;
    struct kvc_error e;
    assert_int_equal(kvc_url_parse(&u, text, &e), -1);
    assert_int_equal(e.code, KVC_ERR_USAGE);
    if (!strstr(e.message, words)) fail_msg("%s", e.message);
}

static void urls(void **state) {
    (void)state;
    struct kvc_url u;
    struct kvc_error e;
    assert_int_equal(kvc_url_parse(&u, "dir:/a/b?max-size=1.5K&grace=90s&x=%41%2fb&flag=no&empty",
                                   &e),
                     0);
    uint64_t bytes = 7;
    int64_t time = 7;
    int flag = 1;
    assert_string_equal(u.scheme, "dir");
    assert_string_equal(u.place, "/a/b");
    assert_int_equal(kvc_url_bytes(&u, "max-size", &bytes, &e), 0);
    assert_int_equal(bytes, 1536);
    assert_int_equal(kvc_url_bytes(&u, "absent", &bytes, &e), 0);
    assert_int_equal(bytes, 1536);
    assert_int_equal(kvc_url_time(&u, "grace", &time, &e), 0);
    assert_int_equal(time, 90000000);
    assert_int_equal(kvc_url_rest(&u, &e), -1);
    assert_non_null(strstr(e.message, "'x'"));
    assert_string_equal(kvc_url_text(&u, "x", NULL), "A/b");
    assert_int_equal(kvc_url_flag(&u, "flag", &flag, &e), 0);
    assert_int_equal(flag, 0);
    assert_string_equal(kvc_url_text(&u, "empty", NULL), "");
    assert_int_equal(kvc_url_rest(&u, &e), 0);
    kvc_url_free(&u);
    assert_int_equal(kvc_url_parse(&u, "a:b/c", &e), 0); /* a path */
    assert_string_equal(u.scheme, "dir");
    assert_string_equal(u.place, "a:b/c");
    kvc_url_free(&u);
    assert_int_equal(kvc_url_parse(&u, "redis://h1:7000,h2", &e), 0);
    assert_string_equal(u.scheme, "redis");
    assert_string_equal(u.place, "h1:7000,h2");
    kvc_url_free(&u);
    refuse_url("", "names no store");
    refuse_url("dir:", "names no store");
    refuse_url("redis://?a=b", "names no store");
    refuse_url("redis://user:secret@h", "user name");
    refuse_url("s3://key:secret@bucket", "user name");
    refuse_url("d?=x", "KEY=VALUE");
    refuse_url("d?a=b,max-size=3", "separated by '&'");
    refuse_url("a,ftp://h", "'ftp:' begins no store");
    refuse_url("dir:a,b,ftp://h", "'ftp:' begins no store");
    refuse_url(",,", "there is no tier");
    refuse_url("dir:,", "there is no tier");
    refuse_url(",a", "there is no tier");
    refuse_url("dir:a,", "there is no tier");
    refuse_url("a,,b?max-size=1G", "there is no tier");
    assert_null(kvc_store_open(",,", NULL, &e));
    assert_int_not_equal(access(",,", F_OK), 0);
    assert_int_equal(kvc_url_parse(&u, "dir:a,b", &e), 0); /* a path */
    kvc_url_free(&u);
    refuse_url("d?a=%4", "KEY=VALUE");
    refuse_url("d?a=%g0", "KEY=VALUE");
    refuse_url("d?a=%00", "KEY=VALUE");
    char many[300] = "d?";
    for (int i = 0; i < 33; i++) strcat(many, "a=b&");
    refuse_url(many, "more than");
    assert_int_equal(kvc_url_parse(&u, "redis://user:secret@h", &e), -1);
    assert_null(strstr(e.message, "secret"));
}

/* Opens a tier's text as a backend with two options does. Returns the message; "": it is good. */
static const char *rest_of(const char *text) {
    static struct kvc_error e;
    struct kvc_url u;
    uint64_t bytes;
    e.message[0] = '\0';
    if (!kvc_url_parse(&u, text, &e)) {
        kvc_url_text(&u, "colour", NULL);
        kvc_url_text(&u, "colour", NULL); /* options are listed once */
        if (!kvc_url_bytes(&u, "max-size", &bytes, &e)) kvc_url_rest(&u, &e);
        kvc_url_free(&u);
    }
    return e.message;
}

/* Options that there are not, and options in the wrong place. */
static void wrong_options(void **state) {
    (void)state;
    assert_string_equal(rest_of("d?max-size=1&colour=red"), "");
    assert_string_equal(rest_of("d?colour=a%2cmax-size=1"), "");
    assert_string_equal(
        rest_of("d?max=1"),
        "dir: there is no option 'max'; did you mean max-size? (options: colour, max-size)");
    assert_string_equal(
        rest_of("d?color=1"),
        "dir: there is no option 'color'; did you mean colour? (options: colour, max-size)");
    assert_string_equal(rest_of("redis://h?x=1"),
                        "redis: there is no option 'x' (options: colour, max-size)");
    static const char *const wrong[] = {
        "d,max-size=1",  "d,max=1", "dir:d,anything=1", "/a/b,c,d,x=y", "redis://h1,h2,colour=red",
        "s3://b/p,max=1"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (!strstr(rest_of(wrong[i]), "not by commas: write "))
            fail_msg("%s: %s", wrong[i], rest_of(wrong[i]));
    assert_null(strstr(rest_of("redis://h,colour=secret"), "secret"));
    static const char *const right[] = {
        "d,e",           "a,b=c/d",    "dir:d,=x",           "dir:d,X=1",
        "redis://h1,h2", "s3://b/p,x", "s3://b/day=1,hour=2"};
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++)
        assert_string_equal(rest_of(right[i]), "");
    char path[200], text[220];
    snprintf(path, sizeof path, "%s/a,seed=3", folder);
    assert_int_equal(mkdir(path, 0700), 0); /* folders have such names */
    snprintf(text, sizeof text, "dir:%s?max-size=1", path);
    assert_string_equal(rest_of(text), "");
}

/* A chain of which a later tier is refused leaves no folder of an earlier one. */
static void refused_chains(void **state) {
    (void)state;
    static const char *const rest[] = {"?max=1",
                                       "?max-size=x",
                                       ",dir:%s/later?max=1",
                                       ",dir:%s/later,max=1",
                                       ",redis://h?x=1",
                                       ",nosuch://h",
                                       ",s3:///x"};
    const struct kvc_store_options unmade = {.size = sizeof unmade, .unmade = 1};
    struct kvc_error e;
    char path[200], text[500], end[250];
    snprintf(path, sizeof path, "%s/never", folder);
    for (size_t i = 0; i < sizeof rest / sizeof rest[0]; i++) {
        const char *hole = strstr(rest[i], "%s");
        snprintf(end, sizeof end, "%.*s%s%s", hole ? (int)(hole - rest[i]) : (int)strlen(rest[i]),
                 rest[i], hole ? folder : "", hole ? hole + 2 : "");
        snprintf(text, sizeof text, "dir:%s%s", path, end);
        if (kvc_store_open(text, NULL, &e)) fail_msg("%s", text);
        if (kvc_store_open(text, &unmade, &e)) fail_msg("%s", text);
        if (!access(path, F_OK)) fail_msg("%s made the folder", text);
    }
    const struct kvc_store_options no_key = {.size = sizeof no_key, .key_file = "/no/such/file"};
    snprintf(text, sizeof text, "dir:%s", path);
    assert_null(kvc_store_open(text, &no_key, &e));
    struct kvc_store *s = kvc_store_open(text, &unmade, &e);
    assert_non_null(s);
    assert_int_equal(access(path, F_OK), -1);
    kvc_store_close(s);
    assert_non_null(s = kvc_store_open(text, NULL, &e));
    kvc_store_close(s);
    assert_int_equal(access(path, F_OK), 0);
}

static void values(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t bytes, time; /* -1: refused */
    } cases[] = {
        {"0", 0, 0},
        {"1", 1, 1000000},
        {"1K", 1024, -1},
        {"2M", 2097152, -1},
        {"1G", 1073741824, -1},
        {"5ms", -1, 5000},
        {"1.5s", -1, 1500000},
        {"2m", -1, 120000000},
        {"1h", -1, 3600000000},
        {"7d", -1, 604800000000},
        {"", -1, -1},
        {"x", -1, -1},
        {"-1", -1, -1},
        {"1KB", -1, -1},
        {"1 K", -1, -1},
        {"nan", -1, -1},
        {"inf", -1, -1},
        {"1e30", -1, -1},
        {"9000000T", -1, -1},
        {"1e300d", -1, -1},
        {"K", -1, -1},
        {"s", -1, -1},
        {"3KiB", 3072, -1},
        {"1.5MiB", 1572864, -1},
        {"1KiBs", -1, -1},
        {"1iB", -1, -1},
        {"1Ki", -1, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct kvc_url u = {.option[0] = {.key = "k", .value = cases[i].text}, .n = 1};
        struct kvc_error e;
        uint64_t bytes = 0;
        int64_t time = 0;
        const int b = kvc_url_bytes(&u, "k", &bytes, &e), t = kvc_url_time(&u, "k", &time, &e);
        if (b != (cases[i].bytes < 0 ? -1 : 0) || t != (cases[i].time < 0 ? -1 : 0))
            fail_msg("'%s'", cases[i].text);
        if (!b) assert_int_equal(bytes, cases[i].bytes);
        if (!t) assert_int_equal(time, cases[i].time);
    }
}

static void chains(void **state) {
    (void)state;
    struct kvc_error e;
    char **list;
    assert_int_equal(kvc_url_split("dir:/a,b,redis://h1,h2:7,s3://b/p,x", &list, &e), 3);
    assert_string_equal(list[0], "dir:/a,b");
    assert_string_equal(list[1], "redis://h1,h2:7");
    assert_string_equal(list[2], "s3://b/p,x");
    free(list);
    assert_int_equal(kvc_url_split("", &list, &e), 1);
    assert_string_equal(list[0], "");
    free(list);
    assert_int_equal(kvc_url_split("/a,dir:/b,", &list, &e), 2);
    assert_string_equal(list[1], "dir:/b,");
    free(list);
}

static void refuse_conf(const char *text, const char *words) {
    struct kvc_conf c;
    struct kvc_error e;
    assert_int_equal(kvc_conf_parse(&c, text, &e), -1);
    if (!strstr(e.message, words)) fail_msg("%s", e.message);
}

static void configuration(void **state) {
    (void)state;
    struct kvc_conf c, d;
    struct kvc_error e;
    char text[2048];
    assert_int_equal(kvc_conf_parse(&c, "", &e), 0);
    assert_true(kvc_conf_equal(&c, &kvc_conf_default));
    assert_int_equal(
        kvc_conf_parse(
            &c,
            "# x\r\n\n version=1 \n max-size =\t3G\r\nmin-free = 2.5%\nmax-age=2d\ngrace = 1m\n"
            "durability = full\nindex = no\nshared = yes\nmax-namespace-size = 7K",
            &e),
        0);
    assert_int_equal(c.max_size, UINT64_C(3) << 30);
    assert_true(c.min_free >= 2.5 && c.min_free <= 2.5);
    assert_int_equal(c.max_age, 172800);
    assert_int_equal(c.grace, 60);
    assert_int_equal(c.durability, KVC_DURABLE_FULL);
    assert_int_equal(c.indexed, 0);
    assert_int_equal(c.shared, 1);
    assert_int_equal(c.max_namespace_size, 7168);
    kvc_conf_print(&c, text, sizeof text);
    assert_int_equal(kvc_conf_parse(&d, text, &e), 0);
    assert_true(kvc_conf_equal(&c, &d));
    for (size_t i = 0; kvc_conf_key(i); i++) assert_non_null(strstr(text, kvc_conf_key(i)));
    refuse_conf("max-size = 1G\nnonsense\n", "line 2");
    refuse_conf("max-size = -1\n", "max-size");
    refuse_conf("min-free = 101\n", "min-free");
    refuse_conf("min-free = 5%%\n", "min-free");
    refuse_conf("durability = some\n", "durability");
    refuse_conf("index = maybe\n", "index");
    refuse_conf("max-sise = 1G\n", "max-sise");
    refuse_conf("version = 2\n", "later");
    refuse_conf("= 3\n", "'");
}

/* --- keys --- */

static void sha256(const void *text, size_t n, uint8_t *out) {
    assert_int_equal(EVP_Digest(text, n, out, NULL, EVP_sha256(), NULL), 1);
}

/* Computes H_j and K_i as the documents say, byte by byte. */
static void keys(void **state) {
    (void)state;
    const uint64_t wide = 2 * CHUNK; /* one chunk of two runs */
    struct made *x = make(4 * CHUNK, 5, NULL);
    struct kvc_store *s = open_store("k", "");
    const struct kvc_store_namespace_options o = {.size = sizeof o, .chunk = wide};
    struct kvc_store_namespace *ns = open_namespace_with(s, x, &o);
    struct kvc_store_hit *hit = find_n(ns, x->ids, 4 * CHUNK + 0);
    uint8_t h[32], text[2048], due[32], hash[32];
    /* H_0 and the form of a step are checked against KEYS.md's examples in test_prefix.c; here only
     * what the store adds */
    for (unsigned i = 0; i < 32; i++) {
        unsigned byte;
        assert_int_equal(sscanf(kvc_store_namespace_name(ns) + 2 * i, "%2x", &byte), 1);
        hash[i] = (uint8_t)byte;
    }
    uint8_t chain[4 * 32];
    struct kvc_error e;
    assert_int_equal(kvc_prefix_chain(ns->identity, x->ids, 4 * CHUNK, NULL, 0, NULL, chain,
                                      sizeof chain, &e),
                     0);
    assert_int_equal(found_of(hit), 0);
    for (unsigned i = 0; i < 2; i++) {
        memcpy(h, chain + (2 * i + 1) * 32, 32);
        memcpy(text, "kvc object 1\n", 13);
        memcpy(text + 13, hash, 32);
        text[45] = 0;
        memcpy(text + 46, h, 32);
        sha256(text, 78, due);
        assert_memory_equal(hit->object[i].key, due, 32);
        assert_memory_equal(hit->object[i].ns, hash, 8);
        assert_int_equal(hit->object[i].kind, KVC_OBJECT_CHUNK);
    }
    kvc_store_hit_free(hit);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

/* The namespace is the hash of the items that its text lists. */
/* The hashes were computed by an independent program, from the CBOR of RFC 8949 and SHA-256. */
static void vllm_hashes(void **state) {
    static const int32_t ids[] = {0, 23, 24, 255, 256, 65535, 65536, INT32_MAX, -1, -257, 5};
    static const char *const want[2] = {
        "1f14d178ea986b4443d140ea43a61860ba5193d75d4fc35ebe7616e30d1dac7a",
        "a90443825a453d396cb9652de634393eea16260092294a6e928f0c934be6cfe0"};
    uint8_t root[KVC_KEY_BYTES], hash[2][KVC_KEY_BYTES];
    struct kvc_error *e = kvc_error_new();
    (void)state;
    assert_non_null(e);
    for (size_t i = 0; i < sizeof root; i++) root[i] = (uint8_t)i;
    /* token 10 fills no block */
    assert_int_equal(kvc_store_vllm_hashes(root, ids, 11, 5, hash[0], sizeof hash, e), 0);
    for (size_t b = 0; b < 2; b++) {
        char text[2 * KVC_KEY_BYTES + 1];
        kvc_hex(hash[b], KVC_KEY_BYTES, text);
        assert_string_equal(text, want[b]);
    }
    assert_int_equal(kvc_store_vllm_hashes(root, ids, 11, 0, hash[0], sizeof hash, e), -1);
    assert_int_equal(kvc_error_code(e), KVC_ERR_USAGE);
    kvc_error_free(e);
}

static void namespaces(void **state) {
    (void)state;
    struct made *x = make(CHUNK, 5, NULL);
    struct kvc_store *s = open_store("n", "");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    struct kvc_namespace_facts facts = {.size = sizeof facts};
    struct kvc_error e;
    const char *text = kvc_store_namespace_facts(ns);
    assert_int_equal(kvc_namespace_read(text, strlen(text), &facts, &e), 0);
    assert_memory_equal(facts.ns, ns->hash, 32);
    assert_int_equal(facts.chunk, CHUNK);
    assert_string_equal(facts.identity, ns->identity);
    char *wrong = strdup(text);
    /* what is changed is refused, is another namespace, or is a comment */
    for (size_t i = 0; text[i]; i++) {
        wrong[i] ^= 1;
        const int status = kvc_namespace_read(wrong, strlen(wrong), &facts, &e);
        const char *line = text + i;
        while (line > text && line[-1] != '\n') line--;
        const int word = *line != '#' && i > (size_t)(strchr(line, ' ') - text) &&
                         text + i < strchr(strchr(line, ' ') + 1, ' ');
        if (!status && *line != '#' && line != text && !word)
            assert_memory_not_equal(facts.ns, ns->hash, 32);
        wrong[i] ^= 1;
    }
    for (size_t i = 0; text[i]; i++) kvc_namespace_read(text, i, &facts, &e);
    free(wrong);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),          cmocka_unit_test(urls),
        cmocka_unit_test(values),         cmocka_unit_test(chains),
        cmocka_unit_test(configuration),  cmocka_unit_test(keys),
        cmocka_unit_test(namespaces),     cmocka_unit_test(wrong_options),
        cmocka_unit_test(refused_chains), cmocka_unit_test(vllm_hashes),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

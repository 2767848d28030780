/* fuzz_store_s3.c: what an S3 server may send: XML and headers; and the texts that name an S3
 * tier. The first byte chooses. */
#include "tests/fuzz/fuzz.h"

#include "formats/store/s3/s3_state.h"

static void headers(const char *text) {
    struct kvc_s3_answer a;
    kvc_s3_answer_begin(&a);
    while (*text) {
        const size_t n = strcspn(text, "\n");
        kvc_s3_answer_line(&a, text, n + (text[n] == '\n'));
        text += n + (text[n] == '\n');
    }
    if (a.status < 0 || a.status > 999 || a.length < -1 || a.retry < -1)
        fuzz_die("a number that no header has", NULL);
    if (a.total >= 0 && (a.first < 0 || a.first > a.last || a.last >= a.total))
        fuzz_die("a range that contradicts itself", NULL);
    for (const char *p = a.server; *p; p++)
        if (*p < ' ' || *p > '~') fuzz_die("a server's name that should not be printed", NULL);
}

static void listing(const char *text, size_t size) {
    struct kvc_s3_listing l;
    struct kvc_error e;
    if (kvc_s3_read_listing(&l, text, size, &e)) return;
    for (size_t i = 0; i < l.n; i++)
        if (!l.entry[i].key || strlen(l.entry[i].key) > 4096 || l.entry[i].modified < 0)
            fuzz_die("an entry that cannot be", NULL);
    if (l.more && !l.next) fuzz_die("a list that goes on nowhere", NULL);
    kvc_s3_listing_free(&l);
}

static void words(const char *text, size_t size) {
    char code[64], message[256], id[1024];
    struct kvc_error e;
    kvc_s3_read_error(code, message, text, size);
    if (strlen(code) >= sizeof code || strlen(message) >= sizeof message)
        fuzz_die("an error that is too long", NULL);
    if (!kvc_s3_read_upload(id, text, size, &e) && (!*id || strlen(id) >= sizeof id))
        fuzz_die("an upload without an id", NULL);
}

static void setup(char *text) {
    struct kvc_url u;
    struct kvc_s3_setup s;
    struct kvc_error e;
    if (kvc_url_parse(&u, text, &e)) return;
    if (!strstr(text, "file") && !strstr(text, "profile") && !kvc_s3_setup(&s, &u, &e)) {
        if (!*s.bucket || strchr(s.base, '@') || !s.connections)
            fuzz_die("a tier that cannot be", NULL);
        kvc_s3_setup_free(&s);
    }
    kvc_url_free(&u);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    char *text = fuzz_alloc(size);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    switch (data[0] & 3) {
    case 0: headers(text); break;
    case 1: listing(text, size - 1); break;
    case 2: words(text, size - 1); break;
    default: setup(text);
    }
    free(text);
    return 0;
}

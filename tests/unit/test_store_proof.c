/* test_store_proof.c: what a store must not deliver: damaged chunks, forged ones, those of other
 * namespaces, tenants and signers. */
#include "store_support.h"

#include "formats/store/dir/dir.h"

/* --- damage --- */

/* Flips a byte of chunk 1 of 3: one token chunk comes, the bad one is counted, put aside and not
 * asked for again. */
static void damage_at(size_t at, uint8_t flip, size_t cut) {
    char path[400];
    size_t n;
    struct made *x = make(3 * CHUNK, 3, NULL);
    struct kvc_store *s = open_store("d", "&index=no");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    put(ns, x);
    assert_int_equal(count_found(ns, x), 3 * CHUNK);
    chunk_path(ns, x, 1, "d", path, sizeof path);
    uint8_t *data = read_file(path, &n);
    assert_true(at < n);
    data[at] ^= flip;
    write_file(path, data, n - cut);
    const uint64_t came = read_back(ns, x);
    if (came != CHUNK) fail_msg("byte %zu of %zu: %d tokens", at, n, (int)came);
    wait_for_all(s);
    assert_int_equal(counted(s, KVC_COUNT_BAD), 1);
    assert_int_equal(count_names("d", "bad"), 1); /* the newest of its name */
    assert_int_not_equal(access(path, F_OK), 0);
    /* not asked again, though it is back */
    write_file(path, data, n);
    assert_int_equal(count_found(ns, x), CHUNK);
    assert_int_equal(read_back(ns, x), CHUNK);
    assert_int_equal(counted(s, KVC_COUNT_BAD), 1);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    /* another process puts it anew */
    unlink(path);
    s = open_store("d", "");
    ns = open_namespace(s, x);
    put(ns, x);
    assert_int_equal(read_back(ns, x), 3 * CHUNK);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    free(data);
    unmake(x);
}

static void damaged(void **state) {
    (void)state;
    char path[400];
    size_t n;
    struct made *x = make(3 * CHUNK, 3, NULL);
    struct kvc_store *s = open_store("d", "&index=no");
    struct kvc_store_namespace *ns = open_namespace(s, x);
    put(ns, x);
    chunk_path(ns, x, 1, "d", path, sizeof path);
    free(read_file(path, &n));
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
    /* header, records, footer: every 97th byte, the first and the last */
    for (size_t at = 0; at < n; at += 97) damage_at(at, 0x10, 0);
    damage_at(n - 1, 1, 0);
    damage_at(0, 0, 1);
    damage_at(0, 0, n / 2);
    damage_at(0, 0, n);
}

/* --- forgeries --- */

/* Copies the bytes of a chunk under the name of another one; both begin at `x_folder`'s tier. */
static void copy_chunk(const char *from, const char *to) {
    size_t n;
    uint8_t *data = read_file(from, &n);
    write_file(to, data, n);
    free(data);
}

/* Chunk i of x is replaced by chunk k of y, of the namespaces of both. */
static uint64_t forge(struct made *x, size_t i, struct made *y, size_t k,
                      const struct kvc_store_namespace_options *of_y) {
    char a[400], b[400];
    struct kvc_store *s = open_store("f", "&index=no");
    struct kvc_store_namespace *own = open_namespace(s, x),
                               *other = of_y ? open_namespace_with(s, y, of_y)
                                             : open_namespace(s, y);
    put(own, x);
    put(other, y);
    chunk_path(own, x, i, "f", a, sizeof a);
    chunk_path(other, y, k, "f", b, sizeof b);
    copy_chunk(b, a);
    const uint64_t came = read_back(own, x);
    wait_for_all(s);
    kvc_store_namespace_close(own);
    kvc_store_namespace_close(other);
    kvc_store_close(s);
    char command[300];
    snprintf(command, sizeof command, "%s/f", folder);
    assert_int_equal(nftw(command, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
    return came;
}

static void forged(void **state) {
    (void)state;
    static const char *const facts[] = {"model.name=n", "model.architecture=llama",
                                        "rope.pairing=halves", NULL};
    struct made *x = make(3 * CHUNK, 3, NULL), *y = make(3 * CHUNK, 4, NULL),
                *z = make(3 * CHUNK, 3, facts);
    assert_int_equal(forge(x, 1, x, 2, NULL), CHUNK); /* another position */
    assert_int_equal(forge(x, 0, x, 1, NULL), 0);
    assert_int_equal(forge(x, 1, y, 1, NULL), CHUNK); /* other tokens */
    assert_int_equal(forge(x, 0, y, 0, NULL), 0);
    assert_int_equal(forge(x, 1, z, 1, NULL), CHUNK); /* another model */
    const struct kvc_store_namespace_options wide = {.size = sizeof wide, .chunk = 3 * CHUNK};
    assert_int_equal(forge(x, 1, x, 0, &wide), CHUNK);
    /* the same tokens at the same positions after other ones */
    memcpy(y->ids + CHUNK, x->ids + CHUNK, CHUNK * sizeof *x->ids);
    kvc_file_close(y->f);
    open_made(y, NULL);
    assert_int_equal(forge(x, 1, y, 1, NULL), CHUNK);
    unmake(x);
    unmake(y);
    unmake(z);
}

/* --- namespaces --- */

/* Whether what x stored is found for y. */
static uint64_t finds(struct made *x, const struct kvc_store_namespace_options *ox, struct made *y,
                      const struct kvc_store_namespace_options *oy) {
    static unsigned stores;
    char name[32];
    snprintf(name, sizeof name, "ns%u", stores++);
    struct kvc_store *s = open_store(name, "");
    struct kvc_store_namespace *own = open_namespace_with(s, x, ox),
                               *other = open_namespace_with(s, y, oy);
    put(own, x);
    assert_int_equal(read_back(own, x), 2 * CHUNK);
    const uint64_t came = read_back(other, y);
    assert_int_equal(strcmp(kvc_store_namespace_name(own), kvc_store_namespace_name(other)) == 0,
                     came > 0);
    kvc_store_namespace_close(own);
    kvc_store_namespace_close(other);
    kvc_store_close(s);
    return came;
}

static const struct kvc_store_namespace_options plain = {.size = sizeof plain, .chunk = CHUNK};

#define HASH "0011223344556677889900112233445566778899001122334455667788990011"
#define HASH2 "1011223344556677889900112233445566778899001122334455667788990011"

static void facts_of_namespaces(void **state) {
    (void)state;
    static const char *const base[] = {"model.name=m",
                                       "model.architecture=llama",
                                       "tokenizer.sha256=" HASH,
                                       "model.adapters.sha256=" HASH,
                                       "rope.k=post",
                                       "rope.pairing=halves",
                                       "rope.type=linear",
                                       "rope.theta=10000",
                                       "rope.dim=8",
                                       "rope.factor=2",
                                       "hadamard.k=8",
                                       "hadamard.v=8",
                                       "sliding.window=0",
                                       "shard.rank=0",
                                       "model.fingerprint.gguf.pieces=" HASH,
                                       "shard.ranks=2",
                                       NULL};
    static const struct {
        unsigned which; /* of base */
        const char *other;
    } flips[] = {
        {1, "model.architecture=lama"},
        {2, "tokenizer.sha256=" HASH2},
        {3, "model.adapters.sha256=" HASH2},
        {4, "rope.k=pre"},
        {5, "rope.pairing=interleaved"},
        {6, "rope.type=yarn"},
        {7, "rope.theta=10001"},
        {8, "rope.dim=4"},
        {9, "rope.factor=4"},
        {10, "hadamard.k=16"},
        {11, "hadamard.v=16"},
        {12, "sliding.window=1024"},
        {13, "shard.rank=1"},
        {14, "model.fingerprint.gguf.pieces=" HASH2},
        {15, "shard.ranks=4"},
    };
    struct made *x = make(2 * CHUNK, 3, base), *same = make(2 * CHUNK, 3, base);
    assert_int_equal(finds(x, &plain, same, &plain), 2 * CHUNK);
    for (size_t i = 0; i < sizeof flips / sizeof flips[0]; i++) {
        const char *facts[sizeof base / sizeof base[0]], *without[sizeof base / sizeof base[0]];
        size_t n = 0;
        memcpy(facts, base, sizeof base);
        facts[flips[i].which] = flips[i].other;
        for (size_t k = 0; base[k]; k++)
            if (k != flips[i].which) without[n++] = base[k];
        without[n] = NULL;
        struct made *y = make(2 * CHUNK, 3, facts), *z = make(2 * CHUNK, 3, without);
        if (finds(x, &plain, y, &plain))
            fail_msg("%s does not tell namespaces apart", flips[i].other);
        if (finds(x, &plain, z, &plain))
            fail_msg("without %s the namespace is the same", base[flips[i].which]);
        unmake(y);
        unmake(z);
    }
    unmake(x);
    unmake(same);
}

/* Two caches of one model whose RoPE nobody knows replace each other only where somebody answers
 * for it. */
static void unknown_rope_is_kept_apart(void **state) {
    (void)state;
    static const char *const facts[][7] = {
        {"model.name=m", "rope.k=post"},                     /* of the library's arrays */
        {"model.name=m", "rope.k=post", "rope.source=ours"}, /* 1 */
        {"model.name=m", "rope.k=post", "rope.source=theirs"},
        {"model.name=m", "rope.k=post", "rope.type=yarn", "rope.theta=10000"}, /* and no factor */
        {"model.name=m", "rope.k=post", "rope.type=yarn", "rope.theta=10000", "rope.source=ours"},
        {"model.name=m", "rope.k=post", "rope.type=default", "rope.theta=10000"}, /* 5: known */
        {"model.name=m", "rope.k=post", "rope.type=default", "rope.theta=10000",
         "rope.source=ours"},
        {"model.name=m", "rope.k=post", "rope.type=yarn", "rope.theta=10000",
         "rope.scaling={\"beta_fast\":32}"},
        {"model.name=m", "rope.k=post", "rope.type=yarn", "rope.theta=10000",
         "rope.scaling={\"beta_fast\":16}"},
        /* of two lists, by a length */
        {"model.name=m", "rope.k=post", "rope.type=longrope", "rope.theta=10000", "rope.factor=4",
         "rope.source=ours"},
        {"model.name=m", "rope.k=post", "rope.type=longrope", "rope.theta=10000", "rope.factor=4",
         "rope.source=theirs"}};
    enum { N = sizeof facts / sizeof facts[0] };
    struct made *x[N], *again[N];
    for (unsigned i = 0; i < N; i++) x[i] = make(2 * CHUNK, 3, facts[i]);
    for (unsigned i = 0; i < N; i++) again[i] = make(2 * CHUNK, 3, facts[i]);
    for (unsigned i = 0; i < N; i++)
        for (unsigned k = i; k < N; k++) {
            /* a source says nothing where RoPE is known */
            const int same = i == k || (i == 5 && k == 6);
            if ((finds(x[i], &plain, again[k], &plain) > 0) != same)
                fail_msg("%u and %u: %s", i, k, same ? "are kept apart" : "replace each other");
        }
    for (unsigned i = 0; i < N; i++) {
        unmake(x[i]);
        unmake(again[i]);
    }
}

/* Without a source, caches of two lengths would replace each other. */
static void rope_by_length_needs_a_source(void **state) {
    (void)state;
    static const char *const facts[][6] = {
        {"model.name=m", "rope.k=post", "rope.type=longrope", "rope.theta=10000", "rope.factor=4"},
        {"model.name=m", "rope.k=post", "rope.type=dynamic", "rope.theta=10000", "rope.factor=4"},
        {"model.name=m", "rope.k=pre", "rope.type=dynamic", "rope.theta=10000", "rope.factor=4"}};
    for (unsigned i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        struct kvc_namespace_facts ns = {.size = sizeof ns};
        struct kvc_error e;
        struct made *x = make(2 * CHUNK, 3, facts[i]);
        const struct kvc_namespace_options of_store = {.size = sizeof of_store};
        char *text = kvc_namespace_of(x->f, &of_store, &ns, &e);
        assert_int_equal(text != NULL, i == 2); /* K is not rotated */
        if (!text) assert_non_null(strstr(e.message, "rope.source"));
        free(text);
        text = kvc_namespace_of(x->f, NULL, &ns, &e); /* nothing is kept under it */
        assert_non_null(text);
        free(text);
        unmake(x);
    }
}

/* Layers, heads, channels, types, chunk, recipe and profile. */
static void forms_of_namespaces(void **state) {
    (void)state;
    struct made *x = make(2 * CHUNK, 3, NULL);
    for (unsigned what = 0; what < 6; what++) {
        struct made *y = make(2 * CHUNK, 3, NULL);
        kvc_file_close(y->f);
        for (unsigned i = 0; i < ARRAYS; i++) {
            if (what == 0) y->a[i].dtype = "bf16";
            if (what == 1) {
                y->a[i].heads = 2;
                y->a[i].dim = DIM / 2;
                y->a[i].head = ROW / 2;
            }
            if (what == 2) y->a[i].dim = DIM / 2;
            if (what == 3) y->a[i].layer++;
        }
        if (what == 4) y->m.n_arrays = 2;
        if (what == 5) y->a[1].dtype = "bf16";
        open_made(y, NULL);
        struct kvc_store *s = open_store("ns", "");
        struct kvc_store_namespace *own = open_namespace(s, x), *other = open_namespace(s, y);
        put(own, x);
        assert_string_not_equal(kvc_store_namespace_name(own), kvc_store_namespace_name(other));
        assert_int_equal(count_found(other, y), 0);
        /* f of another namespace is refused, or its chunks are */
        const struct kvc_store_put_options wait = {.size = sizeof wait, .wait = 1};
        struct kvc_error e;
        assert_int_equal(kvc_store_put(own, y->f, &wait, &e) == 0 && read_back(own, x) != 2 * CHUNK,
                         0);
        kvc_store_namespace_close(own);
        kvc_store_namespace_close(other);
        kvc_store_close(s);
        unmake(y);
    }
    struct kvc_store_namespace_options o = plain;
    o.chunk = 2 * CHUNK;
    assert_int_equal(finds(x, &plain, x, &o), 0);
    o = plain;
    o.recipe = "fast"; /* lossless: it shares the namespace */
    assert_int_equal(finds(x, &plain, x, &o), 2 * CHUNK);
    o.recipe = "kivi4";
    assert_int_equal(finds(x, &plain, x, &o), 0);
    unmake(x);
}

/* --- secrets --- */

static const char *secret_file(const char *name, const char *bytes, mode_t mode) {
    static char path[4][200];
    static unsigned next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    write_file(p, bytes, strlen(bytes));
    chmod(p, mode);
    return p;
}

static void tenants(void **state) {
    (void)state;
    struct made *x = make(2 * CHUNK, 3, NULL);
    struct kvc_store_namespace_options a = plain, b = plain;
    a.tenant_file = secret_file("a", "0123456789abcdef", 0600);
    assert_int_equal(finds(x, &a, x, &a), 2 * CHUNK);
    assert_int_equal(finds(x, &a, x, &plain), 0);
    b.tenant_file = secret_file("b", "0123456789abcdeF", 0600);
    assert_int_equal(finds(x, &a, x, &b), 0);
    struct kvc_store *s = open_store("ns", "");
    struct kvc_store_namespace *ns = open_namespace_with(s, x, &a);
    put(ns, x);
    struct kvc_error e;
    assert_null(kvc_store_namespace_named(s, kvc_store_namespace_name(ns), &b, &e));
    assert_null(kvc_store_namespace_named(s, kvc_store_namespace_name(ns), NULL, &e));
    struct kvc_store_namespace *named = kvc_store_namespace_named(s, kvc_store_namespace_name(ns),
                                                                  &a, &e);
    assert_non_null(named);
    assert_int_equal(read_back(named, x), 2 * CHUNK);
    kvc_store_namespace_close(named);
    kvc_store_namespace_close(ns);
    b.tenant_file = secret_file("c", "0123456789abcdef", 0640);
    assert_null(kvc_store_namespace_like(s, x->f, &b, &e));
    assert_non_null(strstr(e.message, "others can read"));
    b.tenant_file = secret_file("e", "0123456789abcde", 0600);
    assert_null(kvc_store_namespace_like(s, x->f, &b, &e));
    b.tenant_file = "/nonexistent";
    assert_null(kvc_store_namespace_like(s, x->f, &b, &e));
    kvc_store_close(s);
    unmake(x);
}

/* What a store with one key wrote, a store with another key reads. */
static uint64_t signed_read(const char *writer, const char *reader, int forge_bytes) {
    char url[300], path[400];
    struct made *x = make(2 * CHUNK, 3, NULL);
    struct kvc_store_options o = patient;
    o.key_file = writer;
    struct kvc_store *s = open_store_with(tier_url(url, sizeof url, "sig", "&index=no"), &o);
    struct kvc_store_namespace *ns = open_namespace(s, x);
    put(ns, x);
    chunk_path(ns, x, 1, "sig", path, sizeof path);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    if (forge_bytes) { /* of the signature; of its mark; none at all */
        size_t n;
        uint8_t *data = read_file(path, &n);
        if (forge_bytes < 3) data[forge_bytes == 1 ? n - 1 : n - 40] ^= 1;
        write_file(path, data, forge_bytes == 3 ? n - 40 : n);
        free(data);
    }
    o.key_file = reader;
    s = open_store_with(url, &o);
    ns = open_namespace(s, x);
    const uint64_t came = read_back(ns, x);
    wait_for_all(s);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    snprintf(path, sizeof path, "%s/sig", folder);
    assert_int_equal(nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
    unmake(x);
    return came;
}

static void signatures(void **state) {
    (void)state;
    const char *key = secret_file("key", "0123456789abcdef", 0600),
               *other = secret_file("other", "0123456789abcdeF", 0600);
    assert_int_equal(signed_read(key, key, 0), 2 * CHUNK);
    assert_int_equal(signed_read(NULL, key, 0), 0);         /* unsigned */
    assert_int_equal(signed_read(other, key, 0), 0);        /* another signer */
    assert_int_equal(signed_read(key, NULL, 0), 2 * CHUNK); /* read unproved */
    assert_int_equal(signed_read(key, key, 1), CHUNK);
    assert_int_equal(signed_read(key, key, 2), CHUNK);
    assert_int_equal(signed_read(key, key, 3), CHUNK);
    struct kvc_store_options o = patient;
    char url[300];
    struct kvc_error e;
    o.key_file = secret_file("key", "0123456789abcdef", 0644);
    assert_null(kvc_store_open(tier_url(url, sizeof url, "sig", ""), &o, &e));
    assert_non_null(strstr(e.message, "others can read"));
}

/* --- the folder --- */

static void refuse_folder(const char *words) {
    char url[300];
    struct kvc_error e;
    assert_null(kvc_store_open(tier_url(url, sizeof url, "x", ""), &patient, &e));
    if (!strstr(e.message, words)) fail_msg("%s", e.message);
}

static void folders(void **state) {
    (void)state;
    char path[300], other[300];
    snprintf(path, sizeof path, "%s/x", folder);
    snprintf(other, sizeof other, "%s/y", folder);
    assert_int_equal(mkdir(other, 0700), 0);
    assert_int_equal(symlink(other, path), 0);
    refuse_folder("a link or a file");
    unlink(path);
    write_file(path, "", 0);
    refuse_folder("a link or a file");
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(other, sizeof other, "%s/x/stranger", folder);
    write_file(other, "", 0);
    refuse_folder("no store");
    unlink(other);
    kvc_store_close(open_store("x", ""));
    chmod(path, 0777);
    refuse_folder("others can write");
    chmod(path, 0700);
    char url[300];
    struct kvc_error e;
    assert_null(kvc_store_open(tier_url(url, sizeof url, "x", "&max-size=1G"), &patient, &e));
    assert_non_null(strstr(e.message, "other limits"));
    assert_null(kvc_store_open(tier_url(url, sizeof url, "x", "&what=1"), &patient, &e));
    assert_non_null(strstr(e.message, "'what'"));
    /* strangers in obj are counted, and links in it not followed */
    snprintf(other, sizeof other, "%s/x/obj/ab", folder);
    write_file(other, "", 0);
    snprintf(other, sizeof other, "%s/x/obj/cd", folder);
    assert_int_equal(symlink("/", other), 0);
    struct kvc_store *s = open_store("x", "");
    struct kvc_store_cleaned counts;
    assert_int_equal(kvc_dir_clean(s->tier[0].tier, &(struct kvc_store_clean_options){.evict = 0},
                                   &counts, &e),
                     0);
    assert_int_equal(counts.strangers, 2);
    assert_int_equal(counts.objects, 0);
    kvc_store_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged),
        cmocka_unit_test(forged),
        cmocka_unit_test(unknown_rope_is_kept_apart),
        cmocka_unit_test(rope_by_length_needs_a_source),
        cmocka_unit_test(facts_of_namespaces),
        cmocka_unit_test(forms_of_namespaces),
        cmocka_unit_test(tenants),
        cmocka_unit_test(signatures),
        cmocka_unit_test(folders),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

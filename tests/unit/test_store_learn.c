/* test_store_learn.c: profiles that a store learns: from named caches, by several handles, not from
 * objects that are damaged or another's; and the object that says what was learnt. The command's
 * behaviour is tests/cli/store-learn. */
#include "tests/unit/failing_alloc.h"
#include "store_support.h"

#include "codecs/floats.h"

enum { CACHES = 10, TOKENS = 1024 };

/* Fills a cache with rows that have directions of different size, as those of models. */
static void fill(struct made *x, uint32_t seed) {
    for (unsigned i = 0; i < ARRAYS; i++)
        for (size_t t = 0; t < TOKENS * DIM; t++) {
            int sum = 0;
            for (unsigned k = 0; k < 4; k++) {
                seed = seed * 1664525 + 1013904223;
                sum += (int)(seed >> 28);
            }
            const float value = (float)(sum - 30) / (float)(1 + t % DIM);
            kvc_from_floats(x->rows[i] + 2 * t, &value, 1, KVC_F16);
        }
}

static struct made *make_text(uint32_t number) {
    static const char *const facts[] = {"model.name=m", "model.architecture=llama",
                                        "rope.pairing=none", NULL};
    struct made *x = make(TOKENS, (int32_t)number * 2000, facts);
    fill(x, number);
    return x;
}

static struct kvc_store_namespace *open_learning(struct kvc_store *s, const struct made *x) {
    const struct kvc_store_namespace_options o = {.size = sizeof o,
                                                  .chunk = CHUNK,
                                                  .recipe = "small"};
    return open_namespace_with(s, x, &o);
}

static struct kvc_store_name name_of(char text[8], unsigned i) {
    return (struct kvc_store_name){text, (size_t)snprintf(text, 8, "n%u", i)};
}

static int is_there(struct kvc_store_namespace *ns, unsigned i) {
    char text[8];
    uint8_t there;
    const struct kvc_store_name name = name_of(text, i);
    assert_true(kvc_store_find_names(ns, &name, 1, &there, NULL, NULL) >= 0);
    return there;
}

static void put_named(struct kvc_store_namespace *ns, const struct made *x, unsigned i) {
    char text[8];
    const struct kvc_store_name name = name_of(text, i);
    struct kvc_error e;
    if (kvc_store_put_name(ns, &name, x->f, NULL, &e)) fail_msg("%s", e.message);
}

/* Returns 1 if the cache of a name has the rows of x, and 0 if others. */
static int is_exact(struct kvc_store_namespace *ns, const struct made *x, unsigned i) {
    struct made *y = calloc(1, sizeof *y);
    char text[8];
    const struct kvc_store_name name = name_of(text, i);
    struct kvc_error e;
    assert_non_null(y);
    describe(y, TOKENS);
    if (kvc_store_load_name(ns, &name, &y->m, NULL, &e) != 1) fail_msg("%s", e.message);
    const int same = memcmp(y->rows[0], x->rows[0], TOKENS * ROW) == 0;
    free(y);
    return same;
}

static void named_caches(void **state) {
    (void)state;
    struct kvc_store *s = open_store("named", ""), *later;
    struct made *x[CACHES];
    for (unsigned i = 0; i < CACHES; i++) x[i] = make_text(i + 1);
    struct kvc_store_namespace *ns = open_learning(s, x[0]), *other;
    struct kvc_store_namespace_info info = {.size = sizeof info};
    char gathered[65];
    snprintf(gathered, sizeof gathered, "%s", kvc_store_namespace_name(ns));
    for (unsigned i = 0; i < 4; i++) put_named(ns, x[i], i);
    assert_int_equal(kvc_store_flush(s, 0), 0);
    assert_int_equal(kvc_store_counter(s, "learnt_profiles"), 0);
    assert_string_equal(kvc_store_namespace_name(ns), gathered);
    for (unsigned i = 0; i < 4; i++) assert_true(is_there(ns, i) && is_exact(ns, x[i], i));
    for (unsigned i = 4; i < CACHES; i++) put_named(ns, x[i], i);
    assert_int_equal(kvc_store_flush(s, 0), 0);
    assert_int_equal(kvc_store_counter(s, "learnt_profiles"), 1);
    assert_int_equal(kvc_store_counter(s, "refused_profiles"), 0);
    assert_string_not_equal(kvc_store_namespace_name(ns), gathered);
    assert_int_equal(kvc_store_namespace_describe(ns, &info), 0);
    assert_true(info.profile && info.profile_bytes && !info.lossless);
    for (unsigned i = 0; i < CACHES; i++) assert_true(is_there(ns, i) && !is_exact(ns, x[i], i));
    assert_false(is_there(ns, CACHES));
    /* another process knows it at once, and neither learns nor keeps what is removed */
    later = open_store("named", "");
    other = open_learning(later, x[0]);
    assert_string_equal(kvc_store_namespace_name(other), kvc_store_namespace_name(ns));
    const struct kvc_store_name name = {"n3", 2};
    assert_int_equal(kvc_store_drop_names(other, &name, 1, NULL), 0);
    assert_false(is_there(other, 3));
    put_named(other, x[3], 3);
    assert_false(is_exact(other, x[3], 3));
    assert_int_equal(kvc_store_flush(later, 0), 0);
    assert_int_equal(kvc_store_counter(later, "learnt_profiles"), 0);
    kvc_store_namespace_close(other);
    kvc_store_close(later);
    /* what is put after all was removed can be named and read again */
    assert_true(kvc_store_drop(ns, NULL) > 0);
    put_named(ns, x[5], 5);
    later = open_store("named", "");
    other = open_learning(later, x[0]);
    assert_string_equal(kvc_store_namespace_name(other), kvc_store_namespace_name(ns));
    assert_false(is_exact(other, x[5], 5));
    kvc_store_namespace_close(other);
    kvc_store_close(later);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    for (unsigned i = 0; i < CACHES; i++) unmake(x[i]);
}

/* Two handles of one store learn once, whoever puts first; chunks of both are found by each. */
static void two_handles(void **state) {
    (void)state;
    struct kvc_store *s = open_store("two", "");
    struct made *x[CACHES];
    struct kvc_store_namespace *ns[2];
    for (unsigned i = 0; i < CACHES; i++) x[i] = make_text(i + 1);
    for (unsigned i = 0; i < 2; i++) ns[i] = open_learning(s, x[0]);
    for (unsigned i = 0; i < CACHES; i++) put(ns[i % 2], x[i]);
    assert_int_equal(kvc_store_flush(s, 0), 0);
    for (unsigned i = 0; i < 2; i++) put(ns[i], x[i]); /* a handle looks when it puts */
    assert_int_equal(kvc_store_flush(s, 0), 0);
    assert_int_equal(kvc_store_counter(s, "learnt_profiles"), 1);
    assert_string_equal(kvc_store_namespace_name(ns[0]), kvc_store_namespace_name(ns[1]));
    for (unsigned i = 0; i < CACHES; i++) {
        struct kvc_store_hit *hit = find_n(ns[i % 2], x[i]->ids, TOKENS);
        assert_int_equal(found_of(hit), TOKENS);
        kvc_store_hit_free(hit);
    }
    for (unsigned i = 0; i < 2; i++) kvc_store_namespace_close(ns[i]);
    kvc_store_close(s);
    for (unsigned i = 0; i < CACHES; i++) unmake(x[i]);
}

static uint64_t tokens_found(struct kvc_store_namespace *ns, const struct made *x) {
    struct kvc_store_hit *hit = find_n(ns, x->ids, TOKENS);
    const uint64_t n = found_of(hit);
    kvc_store_hit_free(hit);
    return n;
}

/* A handle that only reads, open since before, finds what another process had moved; one that only
 * drops removes it. */
static void open_before(void **state) {
    (void)state;
    struct kvc_store *s = open_store("before", ""), *reader = open_store("before", ""),
                     *dropper = open_store("before", "");
    struct made *x[CACHES];
    for (unsigned i = 0; i < CACHES; i++) x[i] = make_text(i + 1);
    struct kvc_store_namespace *ns = open_learning(s, x[0]), *reads = open_learning(reader, x[0]),
                               *drops = open_learning(dropper, x[0]);
    put(ns, x[0]);
    assert_int_equal(tokens_found(reads, x[0]), TOKENS);
    for (unsigned i = 1; i < CACHES; i++) put(ns, x[i]);
    assert_int_equal(kvc_store_flush(s, 0), 0);
    assert_int_equal(kvc_store_counter(s, "learnt_profiles"), 1);
    for (unsigned wait = 0; wait < 300 && tokens_found(reads, x[1]) < TOKENS; wait++)
        usleep(100000);
    for (unsigned i = 0; i < CACHES; i++) assert_int_equal(tokens_found(reads, x[i]), TOKENS);
    assert_string_equal(kvc_store_namespace_name(reads), kvc_store_namespace_name(ns));
    struct kvc_store_dropped dropped = {.size = sizeof dropped};
    assert_int_equal(kvc_store_drop_tokens(drops, x[2]->ids, TOKENS, NULL, &dropped, NULL), 0);
    assert_int_equal(dropped.removed, TOKENS / CHUNK);
    assert_int_equal(tokens_found(reads, x[2]), 0);
    /* it puts as the others do */
    put(reads, x[2]);
    assert_int_equal(kvc_store_flush(reader, 0), 0);
    assert_int_equal(tokens_found(ns, x[2]), TOKENS);
    kvc_store_namespace_close(ns), kvc_store_namespace_close(reads);
    kvc_store_namespace_close(drops);
    kvc_store_close(s), kvc_store_close(reader), kvc_store_close(dropper);
    for (unsigned i = 0; i < CACHES; i++) unmake(x[i]);
}

/* A store of which a chunk is cut short learns from the others. */
static int cut_short(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)at;
    const char *dot = strrchr(path, '.');
    if (kind != FTW_F || !dot || strcmp(dot, ".kv") != 0) return 0;
    return truncate(path, st->st_size / 2) ? -1 : 1;
}

static void damaged(void **state) {
    (void)state;
    struct kvc_store *s = open_store("bad", "");
    struct made *x[CACHES];
    char path[256];
    for (unsigned i = 0; i < CACHES; i++) x[i] = make_text(i + 1);
    struct kvc_store_namespace *ns = open_learning(s, x[0]);
    put(ns, x[0]);
    snprintf(path, sizeof path, "%s/bad/obj", folder);
    assert_int_equal(nftw(path, cut_short, 8, FTW_PHYS), 1);
    for (unsigned i = 1; i < CACHES; i++) put(ns, x[i]);
    assert_int_equal(kvc_store_flush(s, 0), 0);
    assert_int_equal(kvc_store_counter(s, "learnt_profiles"), 1);
    struct kvc_store_hit *hit = find_n(ns, x[CACHES - 1]->ids, TOKENS);
    assert_int_equal(found_of(hit), TOKENS);
    kvc_store_hit_free(hit);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    for (unsigned i = 0; i < CACHES; i++) unmake(x[i]);
}

/* --- allocations that fail --- */

static atomic_int countdown; /* the allocation that fails, counted from here; 0: none */

static int fails(void) {
    return countdown > 0 && countdown-- == 1;
}

/* Where memory is short, good objects are not taken for bad ones: here lossless ones in the
 * namespace of a recipe, of which it must be worked out that they belong there. */
static void short_of_memory(void **state) {
    (void)state;
    struct kvc_store *s = open_store("short", "");
    struct made *x = make_text(1);
    struct kvc_store_namespace *ns = open_learning(s, x);
    char name[65];
    put(ns, x);
    assert_int_equal(kvc_store_flush(s, 0), 0);
    snprintf(name, sizeof name, "%s", kvc_store_namespace_name(ns));
    kvc_store_namespace_close(ns);
    for (int n = 1, rest = 0; !rest; n++) {
        struct kvc_error e;
        countdown = n;
        ns = kvc_store_namespace_named(s, name, NULL, &e);
        struct kvc_store_hit *hit = ns ? kvc_store_find(ns, x->ids, TOKENS, NULL, &e) : NULL;
        struct kvc_file *f = hit ? kvc_store_get(hit, NULL, &e) : NULL;
        rest = countdown;
        countdown = 0;
        kvc_file_close(f);
        kvc_store_hit_free(hit);
        kvc_store_namespace_close(ns);
        if (kvc_store_counter(s, "bad_objects")) fail_msg("allocation %d: an object is bad", n);
    }
    ns = open_learning(s, x);
    assert_int_equal(tokens_found(ns, x), TOKENS);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

/* A directory that refuses one of the chunks that are moved, that is closed then, that does not
 * give some of them, or whose chunks another process moves at the same time. */
enum trouble { REFUSED, CLOSED, UNREAD, OTHERS, TROUBLES };
enum { ENOUGH = 8 }; /* texts of which the last one begins learning */

static struct {
    const struct kvc_tier_ops *own;
    uint8_t gathered[KVC_OBJECT_NS];
    atomic_int moved, got, has_learnt, has_second;
    struct kvc_object second; /* a second chunk */
    struct kvc_object read;   /* that is moved now */
    struct kvc_store *store;
    enum trouble trouble;
} some;

/* Puts a chunk that another process moves, too, and removes then: it was faster; or slower, once.
 */
static int put_with_others(struct kvc_tier *l, const struct kvc_object *o, const void *data,
                           size_t size, const struct kvc_tier_put *how, kvc_instant deadline,
                           int *there, struct kvc_error *e) {
    int before;
    if (some.moved != 1 && some.own->put(l, o, data, size, how, deadline, &before, e)) return -1;
    const int status = some.own->put(l, o, data, size, how, deadline, there, e);
    if (some.moved == 1) sleep(2);
    return some.own->drop(l, &some.read, 1, deadline, e) ? -1 : status;
}

static int put_some(struct kvc_tier *l, const struct kvc_object *o, const void *data, size_t size,
                    const struct kvc_tier_put *how, kvc_instant deadline, int *there,
                    struct kvc_error *e) {
    const int moves = o->kind == KVC_OBJECT_CHUNK && memcmp(o->ns, some.gathered, sizeof o->ns);
    if (o->kind == KVC_OBJECT_LEARNT) some.has_learnt = 1;
    if (how->parent && !some.has_second++) some.second = *o;
    if (moves && ++some.moved == ENOUGH + 3) {
        if (some.trouble == REFUSED) return kvc_fail(e, KVC_ERR_IO, "a write error");
        if (some.trouble == CLOSED) some.store->closing = 1;
    }
    return (moves && some.trouble == OTHERS ? put_with_others : some.own->put)(l, o, data, size,
                                                                               how, deadline, there,
                                                                               e);
}

static int get_some(struct kvc_tier *l, const struct kvc_object *o, size_t n, kvc_instant deadline,
                    kvc_tier_take *take, void *state, struct kvc_error *e) {
    struct kvc_error why;
    if (memcmp(o->ns, some.gathered, sizeof o->ns) == 0) some.read = *o;
    const int is_due = some.trouble == UNREAD && some.has_learnt &&
                       kvc_object_equal(o, &some.second);
    if (!is_due || some.got++) return some.own->get(l, o, n, deadline, take, state, e);
    kvc_fail_memory(&why, "an object");
    take(state, 0, NULL, 0, &why);
    return 0;
}

/* Where not all is moved, each text is found as a whole in one of the namespaces. */
static void moved_in_part(void **state) {
    (void)state;
    struct made *x[ENOUGH];
    for (unsigned i = 0; i < ENOUGH; i++) x[i] = make_text(i + 1);
    for (some.trouble = REFUSED; some.trouble < TROUBLES; some.trouble++) {
        char name[8];
        snprintf(name, sizeof name, "part%u", (unsigned)some.trouble);
        struct kvc_store *s = open_store(name, ""), *later;
        struct kvc_tier *tier = s->tier[0].tier;
        struct kvc_store_namespace *ns = open_learning(s, x[0]);
        memcpy(some.gathered, ns->hash, sizeof some.gathered);
        some.own = tier->ops;
        some.store = s;
        some.moved = some.got = some.has_learnt = some.has_second = 0;
        struct kvc_tier_ops ops = *some.own;
        ops.put = put_some;
        ops.get = get_some;
        tier->ops = &ops;
        for (unsigned i = 0; i < ENOUGH; i++) put(ns, x[i]);
        assert_int_equal(kvc_store_flush(s, 0), 0);
        assert_int_equal(kvc_store_counter(s, "learnt_profiles"), 1);
        assert_true(some.moved >= ENOUGH + 3);
        tier->ops = some.own;
        kvc_store_namespace_close(ns);
        kvc_store_close(s);
        later = open_store(name, "");
        ns = open_learning(later, x[0]);
        for (unsigned i = 0; i < ENOUGH; i++) assert_int_equal(tokens_found(ns, x[i]), TOKENS);
        /* who puts next moves the rest */
        put(ns, x[0]);
        assert_int_equal(kvc_store_flush(later, 0), 0);
        for (unsigned i = 0; i < ENOUGH; i++) assert_int_equal(tokens_found(ns, x[i]), TOKENS);
        assert_false(ns->learn->has_unpacked);
        kvc_store_namespace_close(ns);
        kvc_store_close(later);
    }
    for (unsigned i = 0; i < ENOUGH; i++) unmake(x[i]);
}

/* A directory in which another process learns from one more text, after this one has learnt and
 * before it looks for what others did. */
enum { CHUNKS = ENOUGH * TOKENS / CHUNK };

static struct {
    const struct kvc_tier_ops *own;
    atomic_int read; /* chunks, since they were listed */
    atomic_int ran;
    struct made **x;
} race;

static unsigned profiles;

static int walk_race(struct kvc_tier *l, const uint8_t *ns, kvc_tier_seen *seen, void *state,
                     struct kvc_error *e) {
    race.read = 0;
    return race.own->walk(l, ns, seen, state, e);
}

static int get_race(struct kvc_tier *l, const struct kvc_object *o, size_t n, kvc_instant deadline,
                    kvc_tier_take *take, void *state, struct kvc_error *e) {
    if (o->kind == KVC_OBJECT_CHUNK) race.read++;
    if (o->kind == KVC_OBJECT_LEARNT && race.read > CHUNKS && !race.ran++) {
        struct kvc_store *other = open_store("race", "");
        struct kvc_store_namespace *ns = open_learning(other, race.x[0]);
        put(ns, race.x[ENOUGH]);
        assert_int_equal(kvc_store_flush(other, 0), 0);
        assert_int_equal(kvc_store_counter(other, "learnt_profiles"), 1);
        kvc_store_namespace_close(ns);
        kvc_store_close(other);
    }
    return race.own->get(l, o, n, deadline, take, state, e);
}

static int count_profile(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st, (void)kind, (void)at;
    const char *dot = strrchr(path, '.');
    profiles += dot && strcmp(dot, ".kvcp") == 0;
    return 0;
}

/* A profile that was learnt too late is not stored: nobody would name it, and it would be pinned.
 */
static void learnt_too_late(void **state) {
    (void)state;
    struct made *x[ENOUGH + 1];
    char path[256];
    for (unsigned i = 0; i <= ENOUGH; i++) x[i] = make_text(i + 1);
    struct kvc_store *s = open_store("race", "");
    struct kvc_tier *tier = s->tier[0].tier;
    struct kvc_store_namespace *ns = open_learning(s, x[0]);
    race.own = tier->ops;
    race.x = x;
    struct kvc_tier_ops ops = *race.own;
    ops.walk = walk_race;
    ops.get = get_race;
    tier->ops = &ops;
    for (unsigned i = 0; i < ENOUGH; i++) put(ns, x[i]);
    assert_int_equal(kvc_store_flush(s, 0), 0);
    tier->ops = race.own;
    assert_true(race.ran);
    assert_int_equal(kvc_store_counter(s, "learnt_profiles"), 1);
    snprintf(path, sizeof path, "%s/race/obj", folder);
    assert_int_equal(nftw(path, count_profile, 8, FTW_PHYS), 0);
    assert_int_equal(profiles, 1);
    for (unsigned i = 0; i <= ENOUGH; i++) assert_int_equal(tokens_found(ns, x[i]), TOKENS);
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    for (unsigned i = 0; i <= ENOUGH; i++) unmake(x[i]);
}

static void text(void **state) {
    (void)state;
    uint8_t hash[KVC_KEY_BYTES], got[KVC_KEY_BYTES], none[KVC_KEY_BYTES] = {0};
    char good[KVC_LEARNT_TEXT], bad[KVC_LEARNT_TEXT];
    for (unsigned i = 0; i < sizeof hash; i++) hash[i] = (uint8_t)(i * 37 + 5);
    const size_t n = kvc_learnt_text(hash, good);
    assert_int_equal(n, 86);
    assert_int_equal(kvc_learnt_read(good, n, got, NULL), 0);
    assert_memory_equal(got, hash, sizeof got);
    for (size_t i = 0; i < n; i++) { /* any other byte, any other length */
        struct kvc_error e;
        assert_int_equal(kvc_learnt_read(good, i, got, &e), -1);
        assert_int_equal(e.code, KVC_ERR_DAMAGED);
        memcpy(bad, good, n);
        bad[i] = 'X';
        assert_int_equal(kvc_learnt_read(bad, n, got, &e), -1);
    }
    const size_t m = kvc_learnt_text(none, good);
    assert_string_equal(good, "kvc learnt 1\nprofile none\n");
    assert_int_equal(kvc_learnt_read(good, m, got, NULL), 0);
    assert_memory_equal(got, none, sizeof got);
    assert_int_equal(kvc_learnt_read("", 0, got, NULL), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(named_caches),    cmocka_unit_test(two_handles),
        cmocka_unit_test(open_before),     cmocka_unit_test(damaged),
        cmocka_unit_test(moved_in_part),   cmocka_unit_test(learnt_too_late),
        cmocka_unit_test(short_of_memory), cmocka_unit_test(text)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

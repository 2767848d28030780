/* test_store_tiers.c: what the public interface tells of tiers and objects, and does for who looks
 * after a store. Not for what kvc-store prints (tests/cli/store-*). */
#include "store_support.h"

#include "formats/store/dir/root.h"

static const struct kvc_store_options unmade = {.size = sizeof unmade, .unmade = 1};

/* A store of a name with a cache of `chunks` chunks in it. */
static struct kvc_store *filled(const char *name, const char *more, uint64_t chunks,
                                struct made **x, struct kvc_store_namespace **ns) {
    struct kvc_store *s = open_store(name, more);
    *x = make(chunks * CHUNK, 1, NULL);
    *ns = open_namespace(s, *x);
    put(*ns, *x);
    return s;
}

static void close_filled(struct kvc_store *s, struct made *x, struct kvc_store_namespace *ns) {
    kvc_store_namespace_close(ns);
    kvc_store_close(s);
    unmake(x);
}

/* A store that is not made yet tells so, gives namespaces and checks caches; then it is made. */
static void made_later(void **state) {
    char url[300], path[200];
    struct kvc_error e;
    struct kvc_store_tier_info info = {.size = sizeof info};
    uint64_t tokens;
    (void)state;
    snprintf(path, sizeof path, "%s/later", folder);
    struct kvc_store *s = open_store_with(tier_url(url, sizeof url, "later", ""), &unmade);
    assert_int_equal(kvc_store_tiers(s), 1);
    assert_int_equal(kvc_store_describe_tier(s, 0, 0, &info, &e), 0);
    assert_false(info.exists);
    assert_string_equal(info.folder, path);
    assert_string_equal(info.scheme, "dir");
    struct made *x = make(3 * CHUNK + 5, 1, NULL), *few = make(100, 1, NULL);
    struct kvc_store_namespace *ns = open_namespace(s, x);
    assert_int_equal(kvc_store_put_check(ns, x->f, 1, &tokens, &e), 0);
    assert_int_equal(tokens, 3 * CHUNK);
    assert_int_equal(kvc_store_put_check(ns, few->f, 1, &tokens, &e), 0);
    assert_int_equal(tokens, 0);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(kvc_store_make(s, &e), 0);
    assert_int_equal(kvc_store_make(s, &e), 0); /* it is */
    assert_int_equal(kvc_store_describe_tier(s, 0, LONG, &info, &e), 0);
    assert_true(info.exists && info.has_history);
    assert_int_equal(info.objects, 0);
    put(ns, x);
    assert_int_equal(kvc_store_describe_tier(s, 0, LONG, &info, &e), 0);
    assert_int_equal(info.objects, 3);
    assert_int_equal(info.puts, 3);
    assert_int_equal(kvc_store_counter(s, "put_objects"), 3);
    assert_int_equal(kvc_store_counter(s, "nothing"), 0);
    assert_int_equal(kvc_store_describe_tier(s, 1, 0, &info, &e), -1);
    assert_int_equal(e.code, KVC_ERR_USAGE);
    unmake(few);
    close_filled(s, x, ns);
}

static int keep_name(void *state, unsigned tier, const char *name, uint64_t bytes, int64_t used) {
    (void)tier, (void)bytes, (void)used;
    if (strstr(name, ".kv")) strcpy(state, name);
    return 0;
}

/* What is known of an object: where it is stored, after it was evicted, and put aside. */
static void objects(void **state) {
    struct made *x;
    struct kvc_store_namespace *ns;
    struct kvc_error e;
    struct kvc_store_object_info info = {.size = sizeof info};
    struct kvc_store_cleaned cleaned = {.size = sizeof cleaned};
    const struct kvc_store_clean_options none = {.size = sizeof none, .evict = 1};
    char name[KVC_STORE_OBJECT_NAME], next[KVC_STORE_OBJECT_NAME];
    (void)state;
    struct kvc_store *s = filled("objects", "", 1, &x, &ns);
    assert_int_equal(kvc_store_walk_tier(s, 0, ns, keep_name, name, &e), 0);
    assert_int_equal(kvc_store_object(s, 0, name, &info, &e), 1);
    assert_int_equal(info.state, KVC_STORE_STORED);
    assert_non_null(strstr(info.path, name));
    struct kvc_store_hit *hit = find_n(ns, x->ids, CHUNK);
    assert_int_equal(kvc_store_hit_next(hit, next, sizeof next), 0);
    kvc_store_hit_free(hit);
    assert_int_equal(kvc_store_clean(s, 0, &none, &cleaned, &e), 0);
    assert_int_equal(cleaned.evicted, 1);
    hit = find_n(ns, x->ids, CHUNK);
    assert_int_equal(kvc_store_hit_next(hit, next, sizeof next), 1);
    assert_string_equal(next, name);
    kvc_store_hit_free(hit);
    assert_int_equal(kvc_store_object(s, 0, name, &info, &e), 1);
    assert_int_equal(info.state, KVC_STORE_REMEMBERED);
    name[20] = name[20] == '0' ? '1' : '0';
    assert_int_equal(kvc_store_object(s, 0, name, &info, &e), 0);
    assert_int_equal(kvc_store_object(s, 0, "nonsense", &info, &e), -1);
    assert_int_equal(e.code, KVC_ERR_USAGE);
    close_filled(s, x, ns);
    s = filled("noindex", "&index=no", 1, &x, &ns);
    assert_int_equal(kvc_store_object(s, 0, name, &info, &e), -1);
    assert_int_equal(e.code, KVC_ERR_UNSUPPORTED);
    close_filled(s, x, ns);
}

static void configure(void **state) {
    const char *set[] = {"max-size=5M", NULL}, *bad[] = {"grace=1s", "max=1", NULL};
    const char *alone[] = {"max-size", NULL};
    char text[2048], again[2048];
    struct kvc_error e;
    (void)state;
    struct kvc_store *s = open_store("conf", "");
    assert_int_equal(kvc_store_configure(s, 0, set, text, sizeof text, &e), 0);
    assert_non_null(strstr(text, "max-size = 5242880\n"));
    assert_int_equal(kvc_store_configure(s, 0, bad, text, sizeof text, &e), -1);
    assert_int_equal(kvc_store_configure(s, 0, alone, text, sizeof text, &e), -1);
    assert_string_equal(e.message, "'max-size' is not KEY=VALUE");
    assert_int_equal(kvc_store_configure(s, 0, NULL, again, sizeof again, &e), 0);
    assert_string_equal(again, text); /* nothing of the bad one was taken */
    kvc_store_close(s);
}

struct found {
    unsigned good, bad;
    char last_bad[100];
};

static void count_finding(void *state, int good, const char *what, const char *more) {
    struct found *x = state;
    (void)more;
    x->good += good != 0;
    x->bad += !good;
    if (!good) snprintf(x->last_bad, sizeof x->last_bad, "%s", what);
}

static void examine(void **state) {
    struct found x = {.good = 0};
    char path[200];
    (void)state;
    struct kvc_store *s = open_store("look", "");
    kvc_store_examine(s, 0, count_finding, &x);
    assert_int_equal(x.bad, 0);
    assert_true(x.good >= 7);
    snprintf(path, sizeof path, "%s/look/obj/stranger", folder);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    kvc_store_examine(s, 0, count_finding, &x);
    assert_int_equal(x.bad, 1);
    assert_string_equal(x.last_bad, "what is no object");
    kvc_store_close(s);
}

static void keep_bad(void *state, const struct kvc_error *why) {
    strcpy(state, why->message);
}

static int add(void *state, uint64_t done, uint64_t total) {
    uint64_t *seen = state;
    seen[0] = done;
    seen[1] = total;
    return 0;
}

/* Damage is found, named and put aside. */
static void verify(void **state) {
    struct made *x;
    struct kvc_store_namespace *ns;
    struct kvc_error e;
    struct kvc_store_object_info info = {.size = sizeof info};
    char name[KVC_STORE_OBJECT_NAME], message[sizeof e.message] = "", path[400];
    uint64_t seen[2];
    struct kvc_store_verify_options o = {.size = sizeof o,
                                         .bad = keep_bad,
                                         .bad_state = message,
                                         .progress = add,
                                         .progress_state = seen};
    struct kvc_store_verified v = {.size = sizeof v};
    (void)state;
    struct kvc_store *s = filled("verify", "", 2, &x, &ns);
    assert_int_equal(kvc_store_verify(s, &o, &v, &e), 0);
    assert_int_equal(v.objects, 3); /* chunks and facts */
    assert_int_equal(v.bad, 0);
    assert_int_equal(seen[0], v.bytes);
    assert_int_equal(seen[1], v.bytes);
    assert_int_equal(kvc_store_walk_tier(s, 0, ns, keep_name, name, &e), 0);
    assert_int_equal(kvc_store_object(s, 0, name, &info, &e), 1);
    snprintf(path, sizeof path, "%s/verify/%s", folder, info.path);
    const int fd = open(path, O_RDWR);
    assert_int_equal(pwrite(fd, "x", 1, 3000), 1);
    close(fd);
    o.repair = 1;
    assert_int_equal(kvc_store_verify(s, &o, &v, &e), 0);
    assert_true(v.bad == 1 && v.put_aside == 1);
    assert_memory_equal(message, name, strlen(name));
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(kvc_store_verify(s, &o, &v, &e), 0);
    assert_int_equal(v.objects, 2);
    assert_int_equal(v.bad, 0);
    close_filled(s, x, ns);
}

static struct kvc_error refusal;

static int refuse_all(struct kvc_tier *l, const struct kvc_object *o, size_t n,
                      kvc_instant deadline, kvc_tier_take *take, void *call, struct kvc_error *e) {
    (void)l, (void)o, (void)n, (void)deadline, (void)e;
    take(call, 0, NULL, 0, &refusal);
    return 0;
}

/* What cannot be read for want of files or memory stays, as it may be good. */
static void verify_in_trouble(void **state) {
    struct made *x;
    struct kvc_store_namespace *ns;
    struct kvc_error e;
    const struct kvc_store_verify_options o = {.size = sizeof o, .repair = 1};
    struct kvc_store_verified v = {.size = sizeof v};
    (void)state;
    struct kvc_store *s = filled("trouble", "", 2, &x, &ns);
    struct kvc_tier *directory = s->tier[0].tier;
    const struct kvc_tier_ops *own = directory->ops;
    struct kvc_tier_ops ops = *own;
    ops.get = refuse_all;
    directory->ops = &ops;
    kvc_fail(&refusal, KVC_ERR_IO, "too many open files");
    assert_int_equal(kvc_store_verify(s, &o, &v, &e), 0);
    assert_true(v.bad == 3 && v.put_aside == 0);
    kvc_fail(&refusal, KVC_ERR_UNSUPPORTED, "it is of a later kvc");
    assert_int_equal(kvc_store_verify(s, &o, &v, &e), 0);
    assert_int_equal(v.bad, 3);
    kvc_fail_memory(&refusal, "an object");
    assert_int_equal(kvc_store_verify(s, &o, &v, &e), -1);
    assert_int_equal(e.code, KVC_ERR_MEMORY);
    assert_int_equal(v.objects, 0);
    directory->ops = own;
    kvc_breaker_note(&s->tier[0].breaker, 3, "late");
    assert_int_equal(kvc_store_verify(s, &o, &v, &e), -1);
    assert_true(v.bad == 0 && v.objects == 0);
    kvc_breaker_note(&s->tier[0].breaker, 0, NULL);
    assert_int_equal(kvc_store_verify(s, &o, &v, &e), 0);
    assert_int_equal(v.objects, 3);
    assert_int_equal(v.bad, 0);
    directory->ops = &ops;
    kvc_fail(&refusal, KVC_ERR_IO, "a sector cannot be read");
    refusal.severity = KVC_SEVERITY_ITEM;
    assert_int_equal(kvc_store_verify(s, &o, &v, &e), 0);
    directory->ops = own;
    assert_int_equal(kvc_store_verify(s, &o, &v, &e), 0);
    assert_int_equal(v.objects, 0);
    close_filled(s, x, ns);
}

/* A store that was removed while it is open: what is put then is counted as failed. */
static void removed(void **state) {
    struct made *x;
    struct kvc_store_namespace *ns;
    char path[400];
    (void)state;
    struct kvc_store *s = filled("removed", "", 2, &x, &ns);
    assert_int_equal(kvc_store_counter(s, "failed_puts"), 0);
    snprintf(path, sizeof path, "%s/removed/kvc-store.conf", folder);
    assert_int_equal(unlink(path), 0);
    kvc_store_put(ns, x->f,
                  &(struct kvc_store_put_options){.size = sizeof(struct kvc_store_put_options),
                                                  .wait = 1},
                  NULL);
    assert_true(kvc_store_counter(s, "failed_puts") > 0);
    assert_true(s->tier[0].count[KVC_TIER_FAILURES] > 0);
    close_filled(s, x, ns);
}

static int keep_facts(void *state, unsigned tier, const char *name, uint64_t bytes, int64_t used) {
    struct kvc_object o;
    (void)tier, (void)bytes, (void)used;
    if (!kvc_object_parse(name, &o) && o.kind == KVC_OBJECT_NAMESPACE) kvc_root_path(&o, state);
    return 0;
}

/* Who puts finds that the facts are damaged, and writes them anew; also where all chunks are there.
 */
static void damaged_facts(void **state) {
    struct made *x;
    struct kvc_store_namespace *ns;
    struct kvc_error e;
    struct kvc_store_verified v = {.size = sizeof v};
    char below[KVC_ROOT_PATH] = "", path[400];
    (void)state;
    struct kvc_store *s = filled("facts", "", 2, &x, &ns);
    assert_int_equal(kvc_store_walk_tier(s, 0, NULL, keep_facts, below, &e), 0);
    snprintf(path, sizeof path, "%s/facts/%s", folder, below);
    for (int cut = 0; cut < 2; cut++) {
        const int fd = open(path, O_RDWR);
        assert_true(fd >= 0);
        if (cut) assert_int_equal(ftruncate(fd, 40), 0);
        else assert_int_equal(pwrite(fd, "x", 1, 3), 1);
        close(fd);
        struct kvc_store_namespace *again = open_namespace(s, x);
        put(again, x);
        kvc_store_namespace_close(again);
        assert_int_equal(kvc_store_verify(s, NULL, &v, &e), 0);
        assert_true(!v.bad && v.objects == 3);
    }
    close_filled(s, x, ns);
}

static int write_file_bytes(void *state, const void *data, size_t n) {
    return fwrite(data, 1, n, state) != n;
}

static int refuse_bytes(void *state, const void *data, size_t n) {
    (void)state, (void)data, (void)n;
    return 1;
}

/* The archive of an empty store is read as it is written, with no objects. */
static void nothing_moves(void **state) {
    struct kvc_error e;
    struct kvc_store_moved m = {.size = sizeof m, .objects = 1};
    char path[200];
    (void)state;
    struct kvc_store *s = open_store("nothing", ""), *to = open_store("nothing-read", "");
    snprintf(path, sizeof path, "%s/nothing.tar", folder);
    FILE *out = fopen(path, "wb");
    assert_int_equal(kvc_store_export(s, NULL, write_file_bytes, out, &m, &e), 0);
    assert_int_equal(fclose(out), 0);
    struct kvc_store_archive *a = kvc_store_archive_open(path, &e);
    if (!a) fail_msg("%s", kvc_error_message(&e));
    assert_int_equal(kvc_store_import(to, a, NULL, &m, &e), 0);
    assert_int_equal(m.objects, 0);
    kvc_store_archive_close(a);
    kvc_store_close(s);
    kvc_store_close(to);
}

/* Objects are found in a copy, and in a store that an archive of them was read into. */
static void moves(void **state) {
    struct made *x;
    struct kvc_store_namespace *ns;
    struct kvc_error e;
    struct kvc_store_moved m = {.size = sizeof m};
    char path[200];
    kvc_store_namespace_text *names;
    size_t n;
    (void)state;
    struct kvc_store *s = filled("from", "", 3, &x, &ns), *to = open_store("to", ""),
                     *read = open_store("read", "");
    assert_int_equal(kvc_store_copy(s, to, NULL, &m, &e), 0);
    assert_int_equal(m.objects, 4);
    assert_int_equal(m.there, 0);
    assert_int_equal(kvc_store_copy(s, to, NULL, &m, &e), 0);
    assert_int_equal(m.there, 4);
    snprintf(path, sizeof path, "%s/all.tar", folder);
    FILE *out = fopen(path, "wb");
    assert_int_equal(kvc_store_export(s, NULL, write_file_bytes, out, &m, &e), 0);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(m.objects, 4);
    assert_int_equal(kvc_store_export(s, NULL, refuse_bytes, NULL, &m, &e), -1);
    assert_int_equal(e.code, KVC_ERR_IO);
    struct kvc_store_archive *a = kvc_store_archive_open(path, &e);
    assert_non_null(a);
    assert_int_equal(kvc_store_import(read, a, NULL, &m, &e), 0);
    kvc_store_archive_close(a);
    assert_int_equal(m.objects, 4);
    assert_int_equal(m.there, 0);
    assert_int_equal(kvc_store_namespaces(read, &names, &n, &e), 0);
    assert_int_equal(n, 1);
    assert_string_equal(names[0], kvc_store_namespace_name(ns));
    free(names);
    struct kvc_store_namespace *copied = open_namespace(read, x);
    struct kvc_store_hit *hit = find_n(copied, x->ids, 3 * CHUNK);
    assert_int_equal(found_of(hit), 3 * CHUNK);
    kvc_store_hit_free(hit);
    kvc_store_namespace_close(copied);
    snprintf(path, sizeof path, "%s/from/kvc-store.conf", folder);
    assert_null(kvc_store_archive_open(path, &e));
    assert_int_equal(e.code, KVC_ERR_UNKNOWN_FORMAT);
    kvc_store_close(to);
    kvc_store_close(read);
    close_filled(s, x, ns);
}

/* Two namespaces, and what they differ in. */
static void namespaces(void **state) {
    struct kvc_error e;
    struct kvc_store_namespace_info info = {.size = sizeof info};
    const struct kvc_store_namespace_options lossy = {.size = sizeof lossy,
                                                      .chunk = CHUNK,
                                                      .recipe = "kivi4"};
    char text[200];
    size_t at = 0;
    struct made *x;
    struct kvc_store_namespace *ns;
    (void)state;
    struct kvc_store *s = filled("spaces", "", 1, &x, &ns);
    struct kvc_store_namespace *other = open_namespace_with(s, x, &lossy);
    assert_int_equal(kvc_store_namespace_describe(ns, &info), 0);
    assert_true(info.lossless && !info.recipe);
    assert_string_equal(info.fidelity, "lossless");
    assert_int_equal(kvc_store_namespace_describe(other, &info), 0);
    assert_false(info.lossless);
    assert_string_equal(info.fidelity, info.recipe);
    assert_int_equal(kvc_store_namespace_differ(ns, other, &at, text, sizeof text), 1);
    assert_non_null(strstr(text, "(lossless here, "));
    assert_int_equal(kvc_store_namespace_differ(ns, other, &at, text, sizeof text), 0);
    kvc_store_namespace_close(other);
    int64_t us;
    uint64_t bytes;
    assert_int_equal(kvc_store_read_time("t", "1.5m", &us, &e), 0);
    assert_int_equal(us, 90000000);
    assert_int_equal(kvc_store_read_size("s", "2KiB", &bytes, &e), 0);
    assert_int_equal(bytes, 2048);
    assert_int_equal(kvc_store_read_size("s", "2KB", &bytes, &e), -1);
    assert_memory_equal(e.message, "s: ", 3);
    close_filled(s, x, ns);
}

/* A tier that has two objects. It counts questions, and may be late after it has answered. */
static atomic_uint questions;
static atomic_int is_late, fails; /* fails: a part of the tier */

static int answer_each(struct kvc_tier *l, const struct kvc_object *o, size_t n,
                       kvc_instant deadline, kvc_tier_there *there, void *call,
                       struct kvc_error *e) {
    (void)l;
    questions++;
    for (size_t i = 0; i < n; i++)
        if (o[i].key[0] == 3 || o[i].key[0] == 40) there(call, i);
    while (is_late && kvc_now() < deadline + 50000) usleep(1000);
    return fails ? kvc_fail(e, KVC_ERR_IO, "a server is down") : 0;
}

/* Many objects are asked for in one call, and what is known at the deadline counts. */
static void asked_at_once(void **state) {
    enum { N = 200 };
    static const struct kvc_tier_ops ops = {.each = answer_each};
    struct kvc_tier tier = {.ops = &ops};
    struct kvc_store *s = open_store("asked", "");
    struct kvc_store_tier *t = &s->tier[0];
    struct kvc_tier *directory = t->tier;
    struct kvc_object o[N] = {{.kind = KVC_OBJECT_NAMED}};
    struct kvc_error e;
    (void)state;
    for (size_t i = 0; i < N; i++) o[i].key[0] = (uint8_t)i;
    t->tier = &tier;
    t->ops = &ops;
    for (is_late = 0; is_late < 2; is_late++) {
        questions = 0;
        struct kvc_call *c = kvc_call_ask(s, 0, KVC_OP_EACH, o, N,
                                          kvc_after(is_late ? 300000 : LONG));
        assert_int_equal(kvc_call_wait(c, &e), -is_late);
        pthread_mutex_lock(&c->lock);
        for (size_t i = 0; i < N; i++) assert_int_equal(c->is_there[i], i == 3 || i == 40);
        pthread_mutex_unlock(&c->lock);
        assert_int_equal(questions, 1);
        kvc_call_release(c);
    }
    is_late = 0;
    for (fails = 0; fails < 2; fails++) {
        questions = 0;
        struct kvc_call *c = kvc_call_ask(s, 0, KVC_OP_LAST, o, N, kvc_after(LONG));
        assert_int_equal(kvc_call_wait(c, &e), 0);
        assert_int_equal(c->found, 41);
        assert_int_equal(questions, 5);
        kvc_call_release(c);
        c = kvc_call_ask(s, 0, KVC_OP_LAST, o + 41, N - 41, kvc_after(LONG));
        assert_int_equal(kvc_call_wait(c, &e), -fails); /* nobody knows */
        kvc_call_release(c);
    }
    fails = 0;
    t->tier = directory;
    t->ops = directory->ops;
    kvc_store_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(made_later),        cmocka_unit_test(objects),
        cmocka_unit_test(configure),         cmocka_unit_test(asked_at_once),
        cmocka_unit_test(examine),           cmocka_unit_test(verify),
        cmocka_unit_test(nothing_moves),     cmocka_unit_test(moves),
        cmocka_unit_test(namespaces),        cmocka_unit_test(damaged_facts),
        cmocka_unit_test(verify_in_trouble), cmocka_unit_test(removed),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}

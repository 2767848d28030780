/* test_store_locale.c: what the library and the store read and write is the same in a program of
 * another locale, whose numbers have a comma (de_DE) or a decimal point of two bytes (ps_AF). The
 * locales are compiled into the scratch folder by localedef. */
#include "store_support.h"

#include "codecs/number.h"
#include "formats/cache/keys.h"
#include "formats/cache/meta.h"
#include "formats/io/json_text.h"
#include "formats/model/model.h"
#include "formats/store/dir/conf.h"
#include "tests/recipe_text.h"

#include <locale.h>

/* --- the locales --- */

static const char *const names[] = {"de_DE", "ps_AF"};
enum { LOCALES = sizeof names / sizeof names[0] };

static int make_locales(void **state) {
    char command[400];
    if (make_folder(state)) return -1;
    for (int i = 0; i < LOCALES; i++) { /* what it warns of is not this test's */
        snprintf(command, sizeof command,
                 "localedef -c -i %s -f UTF-8 '%s/%s.UTF-8' >'%s/log' 2>&1", names[i], folder,
                 names[i], folder);
        if (system(command) < 0) return -1;
    }
    return setenv("LOCPATH", folder, 1);
}

/* Enters a locale. Returns -1 if it cannot be had, as with a C library whose numbers are the same
 * in all. */
static int enter(int i) {
    char name[32], text[32];
    snprintf(name, sizeof name, "%s.UTF-8", names[i]);
    if (!setlocale(LC_ALL, name)) return -1;
    snprintf(text, sizeof text, "%.1f", 2.5);
    return strcmp(text, "2.5") ? 0 : -1;
}

/* Runs a test in each locale; its `say` writes the same as in the C locale. */
static void in_locales(void (*say)(FILE *out)) {
    char *due = NULL, *text = NULL;
    size_t n;
    FILE *out = open_memstream(&due, &n);
    say(out);
    fclose(out);
    assert_true(n > 1);
    for (int i = 0; i < LOCALES; i++) {
        if (enter(i)) {
            free(due);
            print_message("SKIPPED: localedef, its locale %s or the C library's is missing\n",
                          names[i]);
            skip();
        }
        out = open_memstream(&text, &n);
        say(out);
        fclose(out);
        setlocale(LC_ALL, "C");
        assert_string_equal(text, due);
        free(text);
    }
    free(due);
}

/* --- numbers --- */

static void say_numbers(FILE *out) {
    static const char *const read[] = {"2.5",  "-1e-3", ".5",  "5.",  "+7", "2.5K", "1e", "1,5",
                                       "0x10", " 1",    "inf", "nan", "-",  ".",    "",   "1e999"};
    static const double print[] = {2.5, -0.001, 1e22, 0.1, 10000};
    char text[64];
    for (size_t i = 0; i < sizeof read / sizeof read[0]; i++) {
        double v = 7, w = 7;
        const char *rest = kvc_number_begin(read[i], &v);
        const int status = kvc_number_read(read[i], &w);
        kvc_number_print(text, sizeof text, 17, v);
        fprintf(out, "%s: %s '%s', %d %d\n", read[i], text, rest ? rest : "none", status, w == v);
    }
    for (size_t i = 0; i < sizeof print / sizeof print[0]; i++) {
        const int n = kvc_number_print(text, sizeof text, 17, print[i]);
        fprintf(out, "%s %d\n", text, n == (int)strlen(text));
    }
    assert_int_equal(kvc_number_print(NULL, 0, 3, 0.125), 5);
}

static void numbers(void **state) {
    double v = 0;
    (void)state;
    assert_int_equal(kvc_number_read("-2.5e1", &v), 0);
    assert_true(v == -25);
    assert_string_equal(kvc_number_begin("1.5K", &v), "K");
    assert_string_equal(kvc_number_begin("1.5e", &v), "e"); /* no exponent */
    assert_true(v == 1.5);
    static const char *const none[] = {"", ".", "-", "e5", "0x10", " 1", "inf", "nan", "1e999"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        assert_null(kvc_number_begin(none[i], &v));
    assert_int_equal(kvc_number_read("1,5", &v), -1);
    assert_true(v == 1.5); /* as it was */
    in_locales(say_numbers);
}

/* --- metadata, recipes, JSON, errors --- */

static void say_texts(FILE *out) {
    struct kvc_error e;
    struct kvc_meta m = {0};
    struct kvc_recipe recipe;
    char text[256];
    assert_int_equal(kvc_meta_parse(&m, KVC_KEY_ROPE_THETA "=10000.5", &e), 0);
    assert_true(kvc_meta_f64(&m, KVC_KEY_ROPE_THETA, 0) == 10000.5);
    kvc_meta_print(kvc_meta_find(&m, KVC_KEY_ROPE_THETA), text, sizeof text);
    fprintf(out, "%s\n", text);
    fprintf(out, "%d %s\n", kvc_meta_parse(&m, KVC_KEY_ROPE_THETA "=10000,5", &e), e.message);
    kvc_meta_free(&m);
    kvc_recipe_print(recipe_of("code:step=0.0625"), text, sizeof text);
    fprintf(out, "%s\n", text);
    fprintf(out, "%d %s\n", kvc_recipe_parse("code:step=x", &recipe, &e), e.message);
    kvc_fail(&e, KVC_ERR_USAGE, "half of 5 is %g", 2.5);
    fprintf(out, "%s\n", e.message);
    json_t *j = kvc_json_load("[0.5, -1e3]", 11, 0, NULL);
    char *back = kvc_json_dump(j, JSON_COMPACT);
    fprintf(out, "%s\n", back);
    free(back);
    json_decref(j);
}

static void texts(void **state) {
    (void)state;
    in_locales(say_texts);
}

/* A model's config.json has numbers with decimals. */
static void say_model(FILE *out) {
    struct kvc_error e;
    struct kvc_model *m = calloc(1, sizeof *m);
    struct kvc_meta meta = {0}, other = {0};
    char path[200], text[64], note[512] = "";
    assert_non_null(m);
    snprintf(path, sizeof path, "%s/model", folder);
    if (kvc_model_read(path, 0, m, &e)) fail_msg("%s", e.message);
    assert_true(m->rope_theta == 10000.25 && m->rope_factor == 2.5);
    assert_int_equal(kvc_model_store(m, &meta, 0, &e), 0);
    for (size_t i = 0; i < meta.n; i++) {
        kvc_meta_print(&meta.entry[i], text, sizeof text);
        fprintf(out, "%s=%s\n", meta.entry[i].key, text);
    }
    assert_int_equal(kvc_meta_set_f64(&other, KVC_KEY_ROPE_THETA, 20000.5, &e), 0);
    assert_int_equal(kvc_model_match(&other, m, note, sizeof note, &e), -1);
    fprintf(out, "%s\n", e.message);
    kvc_meta_free(&meta);
    kvc_meta_free(&other);
    free(m);
}

static void models(void **state) {
    static const char config[] =
        "{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"rope_theta\":10000.25,"
        "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":2.5}}";
    static const char head[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    uint8_t weights[8 + sizeof head - 1 + 4] = {sizeof head - 1};
    char path[200];
    (void)state;
    snprintf(path, sizeof path, "%s/model", folder);
    assert_int_equal(mkdir(path, 0777), 0);
    memcpy(weights + 8, head, sizeof head - 1);
    put_file("model/config.json", config, sizeof config - 1);
    put_file("model/model.safetensors", weights, sizeof weights);
    in_locales(say_model);
}

/* --- files --- */

static void say_bytes(FILE *out, void *data, size_t n) {
    uint8_t hash[KVC_SHA256_BYTES];
    char hex[2 * KVC_SHA256_BYTES + 1];
    assert_int_equal(kvc_sha256(data, n, hash, NULL), 0);
    kvc_hex(hash, sizeof hash, hex);
    fprintf(out, "%zu bytes %s\n", n, hex);
    free(data);
}

static int append(void *state, const void *data, size_t n) {
    return fwrite(data, 1, n, state) != n;
}

/* A step that is found, a ratio that cannot be met, facts of a source, and an export that tells
 * them. */
static void say_files(FILE *out) {
    struct kvc_error e;
    static const char *const facts[] = {"rope.theta=10000.5", "rope.pairing=halves",
                                        "rope.type=linear", "rope.factor=2.5", NULL};
    struct made *x = make(CHUNK, 3, facts);
    struct kvc_write_options how = {.size = sizeof how,
                                    .threads = 1,
                                    .recipe = "center,basis:own,steps,code",
                                    .max_output_error = 0.125};
    void *data;
    size_t n;
    char *text;
    const int failed = kvc_file_pack_memory(x->f, &how, &data, &n, &e);
    fprintf(out, "%d %s\n", failed, failed ? e.message : "");
    how.recipe = "code:step=0.0625";
    how.max_output_error = 0;
    if (kvc_file_pack_memory(x->f, &how, &data, &n, &e)) fail_msg("%s", e.message);
    say_bytes(out, data, n);
    how = (struct kvc_write_options){.size = sizeof how, .lossy_metadata = 1};
    FILE *f = open_memstream(&text, &n);
    if (kvc_file_unpack(x->f, "safetensors", &how, append, f, &e)) fail_msg("%s", e.message);
    fclose(f);
    struct kvc_file *again = kvc_file_open_memory(text, n, NULL, &e);
    if (!again) fail_msg("%s", e.message);
    for (int i = 0; facts[i]; i++) {
        char key[64], value[64];
        snprintf(key, sizeof key, "%.*s", (int)strcspn(facts[i], "="), facts[i]);
        fprintf(out, "%s=%s\n", key, kvc_file_meta(again, key, value, sizeof value));
    }
    kvc_file_close(again);
    say_bytes(out, text, n);
    unmake(x);
}

static void files(void **state) {
    (void)state;
    in_locales(say_files);
}

/* --- the store --- */

static void say_store(FILE *out) {
    struct kvc_error e;
    struct kvc_url url;
    struct kvc_conf c, d;
    char text[2048];
    uint64_t bytes = 0;
    int64_t time = 0;
    assert_int_equal(kvc_url_parse(&url, "dir:/a?max-size=1.5K&max-age=2.5s&min-free=2.5", &e), 0);
    assert_int_equal(kvc_url_bytes(&url, "max-size", &bytes, &e), 0);
    assert_int_equal(kvc_url_time(&url, "max-age", &time, &e), 0);
    fprintf(out, "%d %d\n", (int)bytes, (int)time);
    c = kvc_conf_default;
    if (kvc_conf_take(&c, &url, &e) != 1) fail_msg("%s", e.message);
    kvc_url_free(&url);
    kvc_conf_print(&c, text, sizeof text);
    fprintf(out, "%s\n", text);
    if (kvc_conf_parse(&d, text, &e)) fail_msg("%s", e.message);
    assert_true(d.min_free == 2.5 && kvc_conf_equal(&c, &d));
}

/* A store that a process of one locale makes is read by processes of others. */
static void store(void **state) {
    char url[300];
    struct kvc_error e;
    (void)state;
    in_locales(say_store);
    assert_int_equal(enter(0), 0);
    snprintf(url, sizeof url, "dir:%s/s?min-free=0.5&max-size=1.5G", folder);
    struct kvc_store *s = kvc_store_open(url, &patient, &e);
    if (!s) fail_msg("%s", e.message);
    kvc_store_close(s);
    setlocale(LC_ALL, "C");
    snprintf(url, sizeof url, "dir:%s/s", folder);
    if (!(s = kvc_store_open(url, &patient, &e))) fail_msg("%s", e.message);
    kvc_store_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers), cmocka_unit_test(texts), cmocka_unit_test(models),
        cmocka_unit_test(files),   cmocka_unit_test(store),
    };
    return cmocka_run_group_tests(tests, make_locales, remove_folder);
}

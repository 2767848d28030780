/* test_transform_damage.c: sections of the transform codec that break the specs are refused, or
 * decode to something. Not for damage of the container (test_container_damage.c). */
#include "transform_support.h"

/* --- sections that break the specs --- */

/* Sections of a block and of its segment, each in memory of its own, so that a sanitizer sees what
 * is read beyond. */
enum { MOST_SECTIONS = 16 };
struct copy {
    struct kvc_section s[MOST_SECTIONS];
    size_t n;
};
struct broken {
    struct copy own, side;
};

static void set_bytes(struct kvc_section *s, const uint8_t *bytes, size_t n) {
    uint8_t *copy = malloc(n); /* of no bytes too */
    assert_true(copy || !n);
    if (n) memcpy(copy, bytes, n);
    s->data = copy;
    s->size = (uint32_t)n;
    s->raw_size = n;
}

static void change_bytes(struct kvc_section *s, const uint8_t *bytes, size_t n) {
    uint8_t *old = (uint8_t *)(uintptr_t)s->data;
    set_bytes(s, bytes, n);
    free(old);
}

static void copy_list(struct copy *to, const struct kvc_sections *from) {
    assert_true(from->count <= MOST_SECTIONS);
    to->n = from->count;
    for (size_t i = 0; i < to->n; i++) {
        to->s[i] = from->section[i];
        set_bytes(&to->s[i], from->section[i].data, from->section[i].size);
    }
}

static struct broken copy_of(const struct coded *t, size_t b) {
    struct broken x;
    copy_list(&x.own, &t->block[b]);
    copy_list(&x.side, &t->encoder.side);
    return x;
}

static void free_broken(struct broken *x) {
    for (size_t i = 0; i < x->own.n; i++) free((void *)(uintptr_t)x->own.s[i].data);
    for (size_t i = 0; i < x->side.n; i++) free((void *)(uintptr_t)x->side.s[i].data);
}

static struct kvc_section *section_in(struct copy *list, unsigned type) {
    size_t i = 0;
    while (i < list->n && list->s[i].type != type) i++;
    if (i == list->n) fail_msg("no section of type %u", type);
    return &list->s[i];
}

static void remove_section(struct copy *list, unsigned type) {
    struct kvc_section *s = section_in(list, type);
    free((void *)(uintptr_t)s->data);
    memmove(s, s + 1, (size_t)(list->s + --list->n - s) * sizeof *s);
}

static void double_section(struct copy *list, unsigned type) {
    struct kvc_section *s = section_in(list, type);
    assert_true(list->n < MOST_SECTIONS);
    memmove(s + 1, s, (size_t)(list->s + list->n++ - s) * sizeof *s);
    set_bytes(s + 1, s->data, s->size);
}

/* What it decodes to, or NULL; refused only in words and for the right reasons. */
static uint8_t *try_broken(const struct coded *t, size_t b, const struct broken *x,
                           const struct kvc_profile_part *profile, struct kvc_error *e) {
    const struct kvc_coded sections = {x->own.s, x->side.s, x->own.n, x->side.n};
    uint8_t *rows = back(t, b, &sections, profile, e);
    if (rows) return rows;
    assert_true(strlen(e->message) > 10);
    if (e->code != KVC_ERR_DAMAGED && e->code != KVC_ERR_UNSUPPORTED &&
        e->code != KVC_ERR_OTHER_MODEL)
        fail_msg("code %d: %s", (int)e->code, e->message);
    return NULL;
}

/* Refused, and the message has these words; frees x. */
static void refuse(const struct coded *t, size_t b, struct broken *x,
                   const struct kvc_profile_part *profile, const char *what, const char *words) {
    struct kvc_error e;
    uint8_t *rows = try_broken(t, b, x, profile, &e);
    if (rows) fail_msg("%s: taken", what);
    if (!strstr(e.message, words)) fail_msg("%s: %s", what, e.message);
    free_broken(x);
}

/* Of the recipe that the tests below break: each of its sections, and where it stands. */
static const struct place {
    const char *name;
    unsigned type;
    int is_side;
} places[] = {
    {"MEAN", KVC_SECTION_MEAN, 1},   {"BASIS", KVC_SECTION_BASIS, 1},
    {"STEPS", KVC_SECTION_STEPS, 1}, {"TABLES", KVC_SECTION_TABLES, 1},
    {"STEPS", KVC_SECTION_STEPS, 0}, {"CODES", KVC_SECTION_CODES, 0},
};

static struct kvc_section *at_place(struct broken *x, const struct place *p) {
    return section_in(p->is_side ? &x->side : &x->own, p->type);
}

/* Every stage, coded with bases of its own (all rows kept, or scales only), with escapes and low
 * bits. */
static const double few_angles[] = {1, 0.5, 0.25};
static const struct kvc_rope_facts few_facts = {.pairing = 1, .half = 3, .angle = few_angles};
static const struct known few_known = {.rope = &few_facts};

static struct layer make_few(int great) {
    struct layer l = make_layer(KVC_F32, 600, 2, 8);
    fill_kind(&l, K, ALIKE);
    for (size_t i = 0; i < 600 * 16 && great; i += 997) put_value(l.rows[K], KVC_F32, i, 60);
    add_queries(&l, 5, 2);
    return l;
}

static void any_damage(void **state) {
    (void)state;
    static const char *const stages[] = {
        "derope,center,basis,steps,code:step=0.02:lanes=2",
        "derope,center,basis:drop=100000,steps:fine=6,code:step=0.002"};
    for (size_t r = 0; r < 2; r++) {
        struct layer l = make_few(r == 1);
        struct coded t;
        must_code(&t, &(struct wanted){
                          .recipe = stages[r], .layer = &l, .block_rows = 20, .known = few_known});
        for (size_t p = 0; p < sizeof places / sizeof places[0]; p++) {
            struct broken x = copy_of(&t, 3);
            const size_t size = at_place(&x, &places[p])->size;
            free_broken(&x);
            for (size_t n = 0; n <= size + 2; n++) { /* shorter, and longer by zeros or ones */
                uint8_t *bytes = get_memory(size + 2);
                if (n == size) {
                    free(bytes);
                    continue;
                }
                x = copy_of(&t, 3);
                memset(bytes, n == size + 1 ? 0 : 0xff, size + 2);
                memcpy(bytes, at_place(&x, &places[p])->data, n < size ? n : size);
                change_bytes(at_place(&x, &places[p]), bytes, n);
                free(bytes);
                refuse(&t, 3, &x, NULL, places[p].name, "");
            }
            for (unsigned how = 0; how < 6; how++) {
                x = copy_of(&t, 3);
                struct copy *list = places[p].is_side ? &x.side : &x.own;
                struct kvc_section *s = at_place(&x, &places[p]);
                if (how == 0) s->coder = KVC_CODER_ZSTD;
                if (how == 1) s->raw_size++;
                if (how == 2) s->index = 1;
                if (how == 3) s->type = KVC_SECTION_NORMS;
                if (how == 4) double_section(list, places[p].type);
                if (how == 5) remove_section(list, places[p].type);
                refuse(&t, 3, &x, NULL, places[p].name, "");
            }
            for (size_t i = 0; i < 8 * size; i++) { /* any bit: refused, or decoded to something */
                struct kvc_error e;
                x = copy_of(&t, 3);
                uint8_t *byte = (uint8_t *)(uintptr_t)&at_place(&x, &places[p])->data[i / 8];
                *byte ^= (uint8_t)(1 << i % 8);
                free(try_broken(&t, 3, &x, NULL, &e));
                free_broken(&x);
            }
            /* where it does not belong */
            x = copy_of(&t, 3);
            struct kvc_section moved = *at_place(&x, &places[p]);
            struct copy *other = places[p].is_side ? &x.own : &x.side;
            size_t to = 0;
            while (to < other->n && other->s[to].stage <= moved.stage) to++;
            assert_true(other->n < MOST_SECTIONS);
            memmove(&other->s[to + 1], &other->s[to], (other->n++ - to) * sizeof moved);
            other->s[to] = moved;
            set_bytes(&other->s[to], moved.data, moved.size);
            refuse(&t, 3, &x, NULL, places[p].name, "");
            x = copy_of(&t, 3);
            at_place(&x, &places[p])->stage = 9;
            refuse(&t, 3, &x, NULL, places[p].name, "");
        }
        code_free(&t);
        free_layer(&l);
    }
}

static void malformed_rotations(void **state) {
    (void)state;
    struct layer l = make_few(1);
    struct coded t;
    struct broken x;
    must_code(&t, &(struct wanted){.recipe = "derope,code:step=0.1",
                                   .layer = &l,
                                   .block_rows = 20,
                                   .known = few_known});
    x = copy_of(&t, 0);
    x.side.s[0].stage = 1; /* derope has no sections */
    refuse(&t, 0, &x, NULL, "a section of derope", "");
    code_free(&t);
    /* of a profile: no profile, a profile that rotates nothing, a profile of other pairs; the pairs
     * are as many as channels allow */
    struct part part = make_part(2, 8, 3), other = make_part(2, 8, 4), none = make_part(2, 8, 0);
    const struct kvc_rope_facts facts = {.pairing = 2,
                                         .half = 3,
                                         .angle = part.angle,
                                         .of_profile = 1};
    const struct known known = {.rope = &facts, .profile = &part.part};
    must_code(&t, &(struct wanted){.recipe = "derope,code:step=0.1",
                                   .layer = &l,
                                   .block_rows = 20,
                                   .known = known});
    x = copy_of(&t, 0);
    refuse(&t, 0, &x, NULL, "no profile", "profile");
    x = copy_of(&t, 0);
    refuse(&t, 0, &x, &none.part, "a profile without angles", "pairs");
    x = copy_of(&t, 0);
    refuse(&t, 0, &x, &other.part, "a profile of other pairs", "pairs");
    l.position[3] = -1;
    x = copy_of(&t, 0);
    refuse(&t, 0, &x, &part.part, "a position below 0", "below 0");
    code_free(&t);
    /* and what encoders refuse */
    struct kvc_error e;
    l.position[0] = -2;
    assert_int_equal(
        code(&t, &(struct wanted){.recipe = "derope,code:step=1", .layer = &l, .known = few_known},
             &e),
        -1);
    assert_int_equal(e.code, KVC_ERR_UNSUPPORTED);
    code_free(&t);
    l.position[0] = 0;
    const struct kvc_rope_facts wide = {.pairing = 1, .half = 5, .angle = few_angles};
    assert_int_equal(code(&t,
                          &(struct wanted){.recipe = "derope,code:step=1",
                                           .layer = &l,
                                           .known = (struct known){.rope = &wide}},
                          &e),
                     -1);
    assert_int_equal(e.code, KVC_ERR_UNSUPPORTED);
    code_free(&t);
    free_part(&part);
    free_part(&other);
    free_part(&none);
    free_layer(&l);
}

static void malformed_means_and_bases(void **state) {
    (void)state;
    struct layer l = make_few(0);
    struct coded t;
    struct broken x;
    const struct wanted w = {.recipe = "center,basis:drop=0,code:step=0.1",
                             .layer = &l,
                             .block_rows = 20};
    must_code(&t, &w);
    assert_int_equal(find(&t.encoder.side, 2, KVC_SECTION_BASIS)->data[0], 1);
    x = copy_of(&t, 0);
    remove_section(&x.side, KVC_SECTION_MEAN);
    refuse(&t, 0, &x, NULL, "no means", "profile's means");
    x = copy_of(&t, 0);
    remove_section(&x.side, KVC_SECTION_BASIS);
    refuse(&t, 0, &x, NULL, "no basis", "profile's matrices");
    /* one number of 2 bytes each, exponent 0, nothing packed: all bits are known; an infinity and a
     * NaN */
    uint8_t halves[9 + 32] = {0, 0, 0, 8};
    for (unsigned i = 0; i < 2; i++) {
        x = copy_of(&t, 0);
        halves[9 + 3] = (uint8_t)i;
        halves[9 + 16 + 3] = 0x7c;
        change_bytes(section_in(&x.side, KVC_SECTION_MEAN), halves, sizeof halves);
        refuse(&t, 0, &x, NULL, "a mean that is none", "not finite");
    }
    const struct kvc_section *basis = find(&t.encoder.side, 2, KVC_SECTION_BASIS);
    static const uint8_t heads[][2] = {{2, 6}, {255, 6}, {1, 3}, {1, 9}, {0, 0}, {0, 255}};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        x = copy_of(&t, 0);
        memcpy((uint8_t *)(uintptr_t)section_in(&x.side, KVC_SECTION_BASIS)->data, heads[i], 2);
        refuse(&t, 0, &x, NULL, "a field of BASIS", "section BASIS: ");
    }
    x = copy_of(&t, 0); /* rows are bytes too many for scales alone */
    *(uint8_t *)(uintptr_t)section_in(&x.side, KVC_SECTION_BASIS)->data = 0;
    refuse(&t, 0, &x, NULL, "kind 0 with rows", "bytes after");
    const uint8_t *counts = basis->data + 2;
    float scale[16];
    read_halves(scale, 16, &counts);
    const size_t at = (size_t)(counts - basis->data);
    assert_true(basis->data[at] == 8 && basis->data[at + 1] == 0);
    for (unsigned i = 0; i < 3; i++) {
        x = copy_of(&t, 0);
        uint8_t *p = (uint8_t *)(uintptr_t)section_in(&x.side, KVC_SECTION_BASIS)->data + at;
        p[i == 0 ? 0 : i == 1 ? 1 : 3] = i == 0 ? 9 : 255;
        refuse(&t, 0, &x, NULL, "rows of BASIS", "more rows than channels");
    }
    code_free(&t);
    /* a basis of no rows at all is one: all is 0; a profile stands in for what is not there */
    struct part part = make_part(2, 8, 0);
    struct kvc_error e;
    uint8_t empty[2 + 41 + 4] = {1, 6, 0, 0, 0, 8};
    must_code(&t, &(struct wanted){.recipe = "basis,code:step=0.1", .layer = &l, .block_rows = 20});
    x = copy_of(&t, 0);
    change_bytes(section_in(&x.side, KVC_SECTION_BASIS), empty, 2 + 9 + 32 + 4);
    uint8_t *rows = try_broken(&t, 0, &x, NULL, &e);
    if (!rows) fail_msg("%s", e.message);
    for (size_t i = 0; i < 20 * 16; i++) assert_true(get_value(rows, KVC_F32, i) == 0);
    free(rows);
    free_broken(&x);
    x = copy_of(&t, 0);
    remove_section(&x.side, KVC_SECTION_BASIS);
    rows = try_broken(&t, 0, &x, &part.part, &e);
    assert_non_null(rows);
    free(rows);
    free_broken(&x);
    code_free(&t);
    free_part(&part);
    free_layer(&l);
}

struct writer {
    uint8_t bytes[200];
    size_t at;
};

static void put_bits(struct writer *w, uint64_t v, unsigned n) {
    for (unsigned i = 0; i < n; i++, w->at++)
        if (v >> i & 1) w->bytes[w->at / 8] = (uint8_t)(w->bytes[w->at / 8] | 1u << w->at % 8);
}

static void put_rice(struct writer *w, uint32_t v, unsigned k) {
    for (uint32_t i = 0; i < v >> k; i++) put_bits(w, 1, 1);
    put_bits(w, 0, 1);
    put_bits(w, v, k);
}

static size_t bytes_of(const struct writer *w) {
    return (w->at + 7) / 8;
}

/* Differences of levels, as rans.md has them; a level of 0 is followed by how many more there are.
 */
static void put_levels(struct writer *w, const int *level, unsigned n) {
    int before = 0;
    for (unsigned i = 0; i < n; i++) {
        const int d = level[i] - before;
        put_rice(w, (uint32_t)(d < 0 ? -2 * d - 1 : 2 * d), 2);
        before = level[i];
        if (level[i]) continue;
        unsigned more = 0;
        while (i + 1 < n && !level[i + 1]) more++, i++;
        put_rice(w, more, 3);
    }
}

static void malformed_steps(void **state) {
    (void)state;
    struct layer l = make_few(1);
    struct coded t;
    struct broken x;
    must_code(&t, &(struct wanted){.recipe = "steps,code:step=0.1", .layer = &l, .block_rows = 20});
    static const struct {
        int level[12];
        unsigned n;
        const char *words;
    } tables_[] = {
        {{0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0, 1}, 12, "STEPS is malformed"}, /* symbol 11 */
        {{0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0, 0}, 12, ""},                   /* one symbol only */
        {{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 12, ""},                    /* none */
        {{26, 26, 26, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 12, ""},                 /* too many */
        {{28, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 3, ""},                       /* an end too early */
        /* a level that there is not */
        {{1, 41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 12, ""},
    };
    for (size_t i = 0; i < sizeof tables_ / sizeof tables_[0]; i++) {
        struct writer w = {.at = 0};
        put_levels(&w, tables_[i].level, tables_[i].n);
        x = copy_of(&t, 0);
        change_bytes(section_in(&x.side, KVC_SECTION_STEPS), w.bytes, bytes_of(&w));
        refuse(&t, 0, &x, NULL, "a table of STEPS", tables_[i].words);
    }
    static const uint32_t states[] = {0, 1, 65535};
    for (size_t i = 0; i < 3; i++) {
        x = copy_of(&t, 0);
        uint8_t *p = (uint8_t *)(uintptr_t)section_in(&x.own, KVC_SECTION_STEPS)->data;
        for (unsigned b = 0; b < 4; b++) p[b] = (uint8_t)(states[i] >> 8 * b);
        refuse(&t, 0, &x, NULL, "a state of STEPS", "out of range");
    }
    x = copy_of(&t, 0); /* another end */
    ((uint8_t *)(uintptr_t)section_in(&x.own, KVC_SECTION_STEPS)->data)[0] ^= 1;
    refuse(&t, 0, &x, NULL, "a stream of STEPS", "STEPS");
    code_free(&t);
    free_layer(&l);
}

static void malformed_codes(void **state) {
    (void)state;
    struct layer l = make_few(1);
    struct coded t;
    struct broken x;
    struct kvc_error e;
    must_code(&t,
              &(struct wanted){.recipe = "code:step=0.1:lanes=1", .layer = &l, .block_rows = 20});
    static const struct {
        int first, second;
    } indices[] = {{63, 64}, {0, -1}, {40, 100}, {10, -200}};
    for (size_t i = 0; i < 4; i++) {
        struct writer w = {.at = 0};
        put_bits(&w, (uint32_t)indices[i].first, 6);
        const int d = indices[i].first - indices[i].second;
        put_rice(&w, (uint32_t)(d < 0 ? -2 * d - 1 : 2 * d), 1);
        put_bits(&w, 0, 60);
        x = copy_of(&t, 0);
        change_bytes(section_in(&x.side, KVC_SECTION_TABLES), w.bytes, bytes_of(&w));
        refuse(&t, 0, &x, NULL, "an index", "TABLES is out of range");
    }
    /* filling bits, bits left over, and the long form where it need not be */
    for (unsigned i = 0; i < 3; i++) {
        struct writer w = {.at = 0};
        for (size_t h = 0; h < 2; h++) {
            put_bits(&w, 20, 6);
            for (size_t c = 1; c < 8; c++) {
                if (i == 2 && c == 1) put_bits(&w, 0xffffff, 40); /* 24 ones, 16 bits of 0 */
                else put_rice(&w, 0, 1);
            }
        }
        if (i == 0) put_bits(&w, 0xff, 8 - w.at % 8);
        if (i == 1) put_bits(&w, 0, 8);
        x = copy_of(&t, 0);
        change_bytes(section_in(&x.side, KVC_SECTION_TABLES), w.bytes, bytes_of(&w));
        refuse(&t, 0, &x, NULL, "the end of TABLES", "TABLES");
    }
    static const uint32_t sizes[] = {UINT32_MAX, 1 << 20, 0x80000000};
    for (size_t i = 0; i < 3; i++) {
        x = copy_of(&t, 0);
        uint8_t *p = (uint8_t *)(uintptr_t)section_in(&x.own, KVC_SECTION_CODES)->data;
        for (unsigned b = 0; b < 4; b++) p[b] = (uint8_t)(sizes[i] >> 8 * b);
        refuse(&t, 0, &x, NULL, "the size of CODES", "shorter than its words");
    }
    for (int d = -3; d <= 3; d++) { /* words that are too many, too few, or cut */
        if (!d) continue;
        x = copy_of(&t, 0);
        uint8_t *p = (uint8_t *)(uintptr_t)section_in(&x.own, KVC_SECTION_CODES)->data;
        const uint32_t words = u32_at(p) + (uint32_t)d;
        for (unsigned b = 0; b < 4; b++) p[b] = (uint8_t)(words >> 8 * b);
        refuse(&t, 0, &x, NULL, "the words of CODES", "");
    }
    x = copy_of(&t, 0);
    memset((uint8_t *)(uintptr_t)section_in(&x.own, KVC_SECTION_CODES)->data + 4, 0, 4);
    refuse(&t, 0, &x, NULL, "a state of CODES", "out of range");
    code_free(&t);

    /* one escape: 24 and the 24 low bits of zigzag(1 - 2^24), then nothing */
    for (size_t i = 0; i < 600 * 16; i++)
        put_value(l.rows[V], KVC_F32, i, i == 19 ? 1 - 0x1p+24f : 0);
    must_code(&t,
              &(struct wanted){.recipe = "code:step=1", .layer = &l, .role = V, .block_rows = 20});
    for (unsigned i = 0; i < 5; i++) {
        x = copy_of(&t, 0);
        struct kvc_section *s = section_in(&x.own, KVC_SECTION_CODES);
        const size_t from = 8 + u32_at(s->data);
        struct string bits = {.bytes = s->data + from, .size = s->size - from};
        assert_int_equal(take_bits(&bits, 5), 24);
        assert_int_equal(unzigzag(1u << 24 | take_bits(&bits, 24)), 1 - (1 << 24));
        must_end(&bits);
        struct writer w = {.at = 0};
        /* the largest index; one too large, of either sign; the largest number; missing bits */
        put_bits(&w, i == 3 ? 31 : i == 2 ? 25 : 24, 5);
        put_bits(&w,
                 i == 0   ? 0xfffffe
                 : i == 1 ? 0xffffff
                 : i == 2 ? 0
                          : UINT32_MAX,
                 i == 3   ? 31
                 : i == 2 ? 25
                          : 24);
        uint8_t bytes[4000];
        assert_true(from + 8 < sizeof bytes);
        memcpy(bytes, s->data, from);
        memcpy(bytes + from, w.bytes, 8);
        change_bytes(s, bytes, from + (i == 4 ? 3 : bytes_of(&w)));
        if (i) {
            refuse(&t, 0, &x, NULL, "an escape", "CODES has a code out of range");
            continue;
        }
        uint8_t *rows = try_broken(&t, 0, &x, NULL, &e);
        assert_non_null(rows);
        assert_true(get_value(rows, KVC_F32, 19) == 0x1p+24f - 1);
        free(rows);
        free_broken(&x);
    }
    /* a pipeline without a step */
    const struct kvc_stage *coder = t.line.step[t.line.n - 1].stage;
    assert_int_equal(kvc_stage_parse(coder, "", &t.line.step[t.line.n - 1].args, &e), 0);
    x = copy_of(&t, 0);
    refuse(&t, 0, &x, NULL, "no step", "no step");
    code_free(&t);
    assert_int_equal(code(&t, &(struct wanted){.recipe = "code", .layer = &l}, &e), -1);
    assert_int_equal(e.code, KVC_ERR_USAGE);
    assert_non_null(strstr(e.message, "step"));
    code_free(&t);
    /* a block of which sinks take all rows has no codes */
    const struct wanted w = {.recipe = "sink:30,steps,code:step=1",
                             .layer = &l,
                             .role = V,
                             .block_rows = 20};
    must_code(&t, &w);
    for (unsigned i = 0; i < 2; i++) {
        const unsigned type = i ? KVC_SECTION_CODES : KVC_SECTION_STEPS;
        const unsigned stage = stage_number(&t.line, i ? "code" : "steps", 0);
        assert_null(find(&t.block[0], stage, type));
        x = copy_of(&t, 0);
        x.own.s[x.own.n] = *find(&t.block[1], stage, type);
        set_bytes(&x.own.s[x.own.n], x.own.s[x.own.n].data, x.own.s[x.own.n].size);
        x.own.n++;
        refuse(&t, 0, &x, NULL, "sections of no rows", "more than are due");
    }
    code_free(&t);
    free_layer(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_damage),
        cmocka_unit_test(malformed_rotations),
        cmocka_unit_test(malformed_means_and_bases),
        cmocka_unit_test(malformed_steps),
        cmocka_unit_test(malformed_codes),
    };
    return cmocka_run_group_tests_name("transform_damage", tests, NULL, NULL);
}

/* pickle.c: interprets the opcodes of a pickle on a stack of values. Not for the meaning of classes
 * and functions (torch.c).
 *
 * Memory is bounded by the size of the pickle, which is bounded: an opcode makes at most one value,
 * and no opcode copies items. */
#include "formats/engines/pickle.h"

#include "codecs/memory.h"
#include "formats/io/bytes.h"
#include "formats/io/printable.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAX_VALUES = 1 << 21, MAX_NAME = 255 };
#define MARK UINT32_MAX /* on the stack: the mark of a tuple or of items */

/* Opcodes: names as in Python's pickletools. */
enum {
    OP_MARK = '(',
    OP_STOP = '.',
    OP_NONE = 'N',
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89,
    OP_BININT = 'J',
    OP_BININT1 = 'K',
    OP_BININT2 = 'M',
    OP_LONG1 = 0x8a,
    OP_BINFLOAT = 'G',
    OP_BINUNICODE = 'X',
    OP_SHORT_BINUNICODE = 0x8c,
    OP_BINBYTES = 'B',
    OP_SHORT_BINBYTES = 'C',
    OP_EMPTY_LIST = ']',
    OP_APPEND = 'a',
    OP_APPENDS = 'e',
    OP_EMPTY_TUPLE = ')',
    OP_TUPLE = 't',
    OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86,
    OP_TUPLE3 = 0x87,
    OP_EMPTY_DICT = '}',
    OP_SETITEM = 's',
    OP_SETITEMS = 'u',
    OP_BINPUT = 'q',
    OP_LONG_BINPUT = 'r',
    OP_MEMOIZE = 0x94,
    OP_BINGET = 'h',
    OP_LONG_BINGET = 'j',
    OP_GLOBAL = 'c',
    OP_STACK_GLOBAL = 0x93,
    OP_REDUCE = 'R',
    OP_NEWOBJ = 0x81,
    OP_BUILD = 'b',
    OP_BINPERSID = 'Q',
    OP_PROTO = 0x80,
    OP_FRAME = 0x95
};

struct parser {
    struct kvc_pickle *to;
    const uint8_t *bytes;
    uint64_t size, at;
    uint32_t *stack;
    uint64_t depth;
    uint32_t *memo; /* values; 0: not set */
    uint64_t n_memo;
    kvc_pickle_allows *allows;
    struct kvc_error *e;
};

static int damaged(struct parser *p, const char *what) {
    return kvc_fail(p->e, KVC_ERR_DAMAGED, "byte %" PRIu64 " of the pickle: %s", p->at, what);
}

static const uint8_t *pickle_take(struct parser *p, uint64_t n) {
    if (n > p->size - p->at) {
        damaged(p, "it is cut short");
        return NULL;
    }
    p->at += n;
    return p->bytes + p->at - n;
}

/* --- the stack --- */

static int push(struct parser *p, uint32_t value) {
    uint32_t *grown = kvc_room_for_one(p->stack, p->depth, sizeof *grown);
    if (!grown) return kvc_fail_memory(p->e, "a pickle");
    p->stack = grown;
    p->stack[p->depth++] = value;
    return 0;
}

/* Makes a value and pushes it. Returns it, or NULL and the error; it moves when the next value is
 * made. */
static struct kvc_pickle_value *push_new(struct parser *p, enum kvc_pickle_kind kind) {
    struct kvc_pickle *to = p->to;
    if (to->n >= MAX_VALUES) {
        kvc_fail(p->e, KVC_ERR_UNSUPPORTED, "the pickle has more than %d values", MAX_VALUES);
        return NULL;
    }
    struct kvc_pickle_value *grown = kvc_room_for_one(to->value, to->n, sizeof *grown);
    if (grown) to->value = grown;
    if (!grown || push(p, to->n)) {
        kvc_fail_memory(p->e, "a pickle");
        return NULL;
    }
    to->value[to->n] = (struct kvc_pickle_value){.kind = kind};
    return &to->value[to->n++];
}

static int push_integer(struct parser *p, enum kvc_pickle_kind kind, int64_t integer) {
    struct kvc_pickle_value *v = push_new(p, kind);
    if (v) v->integer = integer;
    return v ? 0 : -1;
}

/* Returns how many values lie on the stack above the last mark; UINT64_MAX and the error where
 * there is no mark. */
static uint64_t above_mark(struct parser *p) {
    for (uint64_t i = p->depth; i-- > 0;)
        if (p->stack[i] == MARK) return p->depth - i - 1;
    damaged(p, "values without a mark before them");
    return UINT64_MAX;
}

static int has_values(struct parser *p, uint64_t n) {
    if (n > p->depth) return damaged(p, "an opcode needs more values than there are");
    for (uint64_t i = 0; i < n; i++)
        if (p->stack[p->depth - 1 - i] == MARK)
            return damaged(p, "an opcode needs a value where a mark is");
    return 0;
}

/* Appends the top n values of the stack to the items of a value, and removes them. */
static int move_items(struct parser *p, struct kvc_pickle_value *to, uint64_t n) {
    const uint32_t *from = p->stack + p->depth - n;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t *grown = kvc_room_for_one(to->item, to->n, sizeof *grown);
        if (!grown) return kvc_fail_memory(p->e, "a pickle");
        to->item = grown;
        to->item[to->n++] = from[i];
    }
    p->depth -= n;
    return 0;
}

/* --- opcodes --- */

static int make_text(struct parser *p, enum kvc_pickle_kind kind, unsigned length_bytes) {
    const uint8_t *length = pickle_take(p, length_bytes);
    const uint64_t n = !length ? 0 : length_bytes == 1 ? *length : get_u32(length);
    const uint8_t *text = length ? pickle_take(p, n) : NULL;
    struct kvc_pickle_value *v = text ? push_new(p, kind) : NULL;
    if (!v) return -1;
    v->text = (const char *)text;
    v->n = n;
    return 0;
}

/* Reads a little-endian integer in two's complement, with its length before it. */
static int make_long(struct parser *p) {
    const uint8_t *length = pickle_take(p, 1), *digit = length ? pickle_take(p, *length) : NULL;
    if (!digit) return -1;
    if (*length > 8)
        return kvc_fail(p->e, KVC_ERR_UNSUPPORTED,
                        "the pickle has an integer of more than 64 bits");
    uint64_t n = *length && digit[*length - 1] & 0x80 ? UINT64_MAX : 0;
    for (unsigned i = *length; i-- > 0;) n = n << 8 | digit[i];
    return push_integer(p, KVC_PICKLE_INT, (int64_t)n);
}

static int make_tuple(struct parser *p, uint64_t n) {
    struct kvc_pickle_value items = {.kind = KVC_PICKLE_TUPLE};
    if (n == UINT64_MAX || has_values(p, n) || move_items(p, &items, n)) {
        free(items.item);
        return -1;
    }
    struct kvc_pickle_value *v = push_new(p, KVC_PICKLE_TUPLE);
    if (v) *v = items;
    else free(items.item);
    return v ? 0 : -1;
}

/* Takes the mark below the top value away, after the values above it. */
static int drop_mark(struct parser *p) {
    const uint32_t top = p->stack[p->depth - 1];
    p->stack[--p->depth - 1] = top;
    return 0;
}

/* Gives the top n values to the list, dict or object below them; a mark lies between if `marked`.
 */
static int add_items(struct parser *p, uint64_t n, int marked, int pairs) {
    if (n == UINT64_MAX || has_values(p, n)) return -1;
    const uint64_t below = n + (marked ? 1 : 0) + 1;
    if (below > p->depth || p->stack[p->depth - below] == MARK)
        return damaged(p, "items belong to nothing");
    struct kvc_pickle_value *to = &p->to->value[p->stack[p->depth - below]];
    const int fits = pairs ? to->kind == KVC_PICKLE_DICT || to->kind == KVC_PICKLE_CALL
                           : to->kind == KVC_PICKLE_LIST;
    if (!fits || (pairs && n % 2))
        return damaged(p, "items belong to a value that cannot have them");
    if (move_items(p, to, n)) return -1;
    p->depth -= marked ? 1 : 0;
    return 0;
}

static int put_memo(struct parser *p, uint64_t i) {
    if (has_values(p, 1)) return -1;
    if (i >= p->size) return damaged(p, "a memo number is larger than the pickle");
    while (p->n_memo <= i) {
        uint32_t *grown = kvc_room_for_one(p->memo, p->n_memo, sizeof *grown);
        if (!grown) return kvc_fail_memory(p->e, "a pickle");
        p->memo = grown;
        p->memo[p->n_memo++] = 0;
    }
    p->memo[i] = p->stack[p->depth - 1];
    return 0;
}

static int get_memo(struct parser *p, uint64_t i) {
    return i < p->n_memo && p->memo[i] ? push(p, p->memo[i])
                                       : damaged(p, "a memo number is not set");
}

/* Pushes the class or function "module.name" if the caller allows it. */
static int make_global(struct parser *p, const char *module, uint64_t n_module, const char *name,
                       uint64_t n_name) {
    char full[MAX_NAME + 1], shown[MAX_NAME + 1];
    if (n_module >= MAX_NAME || n_name >= MAX_NAME - n_module || memchr(module, 0, n_module) ||
        memchr(name, 0, n_name))
        return damaged(p, "a name of a class is too long, or contains a NUL");
    snprintf(full, sizeof full, "%.*s.%.*s", (int)n_module, module, (int)n_name, name);
    if (p->allows(full, p->e)) return -1;
    struct kvc_pickle_value *v = push_new(p, KVC_PICKLE_GLOBAL);
    if (!v) return -1;
    v->n = strlen(full);
    v->text = strdup(kvc_name_show(full, shown, sizeof shown));
    return v->text ? 0 : kvc_fail_memory(p->e, "a pickle");
}

static int read_global(struct parser *p) {
    const char *line[2];
    uint64_t n[2];
    for (int i = 0; i < 2; i++) {
        line[i] = (const char *)p->bytes + p->at;
        const char *end = memchr(line[i], '\n', (size_t)(p->size - p->at));
        if (!end) return damaged(p, "it is cut short");
        n[i] = (uint64_t)(end - line[i]);
        p->at += n[i] + 1;
    }
    return make_global(p, line[0], n[0], line[1], n[1]);
}

static int stack_global(struct parser *p) {
    if (has_values(p, 2)) return -1;
    const struct kvc_pickle_value *module = &p->to->value[p->stack[p->depth - 2]],
                                  *name = &p->to->value[p->stack[p->depth - 1]];
    if (module->kind != KVC_PICKLE_TEXT || name->kind != KVC_PICKLE_TEXT)
        return damaged(p, "a class is named by something other than texts");
    p->depth -= 2;
    return make_global(p, module->text, module->n, name->text, name->n);
}

/* Replaces a function and its arguments by the call. */
static int make_call(struct parser *p) {
    if (has_values(p, 2)) return -1;
    const uint32_t function = p->stack[p->depth - 2], arguments = p->stack[p->depth - 1];
    if (p->to->value[function].kind != KVC_PICKLE_GLOBAL ||
        p->to->value[arguments].kind != KVC_PICKLE_TUPLE)
        return damaged(p, "a call of something that is no function, or with no tuple of arguments");
    p->depth -= 2;
    struct kvc_pickle_value *v = push_new(p, KVC_PICKLE_CALL);
    if (!v) return -1;
    v->function = function;
    v->arguments = arguments;
    return 0;
}

static int pickle_build(struct parser *p) {
    if (has_values(p, 2)) return -1;
    struct kvc_pickle_value *object = &p->to->value[p->stack[p->depth - 2]];
    if (object->kind != KVC_PICKLE_CALL)
        return damaged(p, "a state belongs to a value that is no object");
    object->state = p->stack[--p->depth];
    return 0;
}

static int make_persistent(struct parser *p) {
    if (has_values(p, 1)) return -1;
    const uint32_t id = p->stack[--p->depth];
    struct kvc_pickle_value *v = push_new(p, KVC_PICKLE_PERSISTENT);
    if (v) v->arguments = id;
    return v ? 0 : -1;
}

/* Reads opcodes that are followed by a number of `bytes` bytes, and returns the number. */
static int take_number(struct parser *p, unsigned bytes, uint64_t *n) {
    const uint8_t *b = pickle_take(p, bytes);
    if (!b) return -1;
    *n = bytes == 1 ? *b : bytes == 2 ? get_u16(b) : bytes == 4 ? get_u32(b) : get_u64(b);
    return 0;
}

/* Executes opcodes of numbers, of the memo and of the frame of the file. */
static int step_number(struct parser *p, uint8_t op) {
    uint64_t n = 0;
    const unsigned bytes = op == OP_BININT || op == OP_LONG_BINPUT || op == OP_LONG_BINGET ? 4
                           : op == OP_BININT2                                              ? 2
                           : op == OP_FRAME || op == OP_BINFLOAT                           ? 8
                                                                                           : 1;
    if (take_number(p, bytes, &n)) return -1;
    switch (op) {
    case OP_PROTO: return n >= 2 && n <= 5 ? 0 : damaged(p, "its protocol is none of 2 to 5");
    case OP_FRAME: return 0; /* a hint for readers of streams */
    case OP_BININT: return push_integer(p, KVC_PICKLE_INT, (int32_t)n);
    case OP_BINFLOAT: return push_new(p, KVC_PICKLE_FLOAT) ? 0 : -1;
    case OP_BINPUT:
    case OP_LONG_BINPUT: return put_memo(p, n);
    case OP_BINGET:
    case OP_LONG_BINGET: return get_memo(p, n);
    default: return push_integer(p, KVC_PICKLE_INT, (int64_t)n);
    }
}

static int unknown_opcode(struct parser *p, uint8_t op) {
    return kvc_fail(p->e, KVC_ERR_UNSUPPORTED,
                    "byte %" PRIu64 " of the pickle: opcode 0x%02x is none of those that kvc reads "
                    "(plain data, protocols 2 to 5)",
                    p->at - 1, op);
}

static int step(struct parser *p, uint8_t op) {
    switch (op) {
    case OP_MARK: return push(p, MARK);
    case OP_NONE: return push_new(p, KVC_PICKLE_NONE) ? 0 : -1;
    case OP_NEWTRUE:
    case OP_NEWFALSE: return push_integer(p, KVC_PICKLE_BOOL, op == OP_NEWTRUE);
    case OP_LONG1: return make_long(p);
    case OP_BINUNICODE: return make_text(p, KVC_PICKLE_TEXT, 4);
    case OP_SHORT_BINUNICODE: return make_text(p, KVC_PICKLE_TEXT, 1);
    case OP_BINBYTES: return make_text(p, KVC_PICKLE_OCTETS, 4);
    case OP_SHORT_BINBYTES: return make_text(p, KVC_PICKLE_OCTETS, 1);
    case OP_EMPTY_LIST: return push_new(p, KVC_PICKLE_LIST) ? 0 : -1;
    case OP_EMPTY_DICT: return push_new(p, KVC_PICKLE_DICT) ? 0 : -1;
    case OP_EMPTY_TUPLE: return make_tuple(p, 0);
    case OP_TUPLE1: return make_tuple(p, 1);
    case OP_TUPLE2: return make_tuple(p, 2);
    case OP_TUPLE3: return make_tuple(p, 3);
    case OP_TUPLE: return make_tuple(p, above_mark(p)) ? -1 : drop_mark(p);
    case OP_APPEND: return add_items(p, 1, 0, 0);
    case OP_APPENDS: return add_items(p, above_mark(p), 1, 0);
    case OP_SETITEM: return add_items(p, 2, 0, 1);
    case OP_SETITEMS: return add_items(p, above_mark(p), 1, 1);
    case OP_MEMOIZE: return put_memo(p, p->n_memo);
    case OP_GLOBAL: return read_global(p);
    case OP_STACK_GLOBAL: return stack_global(p);
    case OP_REDUCE:
    case OP_NEWOBJ: return make_call(p);
    case OP_BUILD: return pickle_build(p);
    case OP_BINPERSID: return make_persistent(p);
    case OP_PROTO:
    case OP_FRAME:
    case OP_BININT:
    case OP_BININT1:
    case OP_BININT2:
    case OP_BINFLOAT:
    case OP_BINPUT:
    case OP_LONG_BINPUT:
    case OP_BINGET:
    case OP_LONG_BINGET: return step_number(p, op);
    default: return unknown_opcode(p, op);
    }
}

static int pickle_run(struct parser *p) {
    if (!push_new(p, KVC_PICKLE_NONE)) return -1; /* number 0 */
    p->depth = 0;
    for (;;) {
        const uint8_t *op = pickle_take(p, 1);
        if (!op) return -1;
        if (*op == OP_STOP) break;
        if (step(p, *op)) return -1;
    }
    if (p->depth != 1 || has_values(p, 1)) return damaged(p, "it ends with other than one value");
    p->to->root = p->stack[0];
    return 0;
}

int kvc_pickle_read(struct kvc_pickle *to, const uint8_t *bytes, uint64_t size,
                    kvc_pickle_allows *allows, struct kvc_error *e) {
    struct parser p = {.to = to, .bytes = bytes, .size = size, .allows = allows, .e = e};
    *to = (struct kvc_pickle){.n = 0};
    if (size > KVC_PICKLE_MAX)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                        "the pickle has %" PRIu64 " bytes, more than kvc reads (%" PRIu64 ")", size,
                        KVC_PICKLE_MAX);
    const int status = pickle_run(&p);
    free(p.stack);
    free(p.memo);
    if (status) kvc_pickle_free(to);
    return status;
}

void kvc_pickle_free(struct kvc_pickle *p) {
    for (uint32_t i = 0; i < p->n; i++) {
        free(p->value[i].item);
        if (p->value[i].kind == KVC_PICKLE_GLOBAL) free((char *)(uintptr_t)p->value[i].text);
    }
    free(p->value);
    *p = (struct kvc_pickle){.n = 0};
}

/* s3_call.c: requests at once, on the connections of a channel. Spec: S3.md, "Requests" and
 * "Failures". */
#include "formats/store/s3/s3_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MILLISECOND INT64_C(1000)
#define SECOND INT64_C(1000000)
#define SKEW 840 /* seconds; S3 accepts 15 minutes between the time of a request and its own */
#define MAX_RETRY_AFTER 60 /* seconds that a server may keep us waiting */
#define STANDSTILL 3       /* a try that stands still counts as so many: it took its time */

/* --- latencies of small answers (0) and large ones (1) --- */

static int by_size(const void *a, const void *b) {
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void note_latency(struct kvc_s3 *l, int class, int64_t microseconds) {
    struct kvc_s3_latency *s = &l->latency[class];
    int64_t sample[KVC_S3_SAMPLES];
    pthread_mutex_lock(&l->lock);
    s->sample[s->n++ % KVC_S3_SAMPLES] = microseconds;
    const size_t n = s->n < KVC_S3_SAMPLES ? s->n : KVC_S3_SAMPLES;
    const int due = s->n % 8 == 0;
    if (due) memcpy(sample, s->sample, n * sizeof *sample);
    pthread_mutex_unlock(&l->lock);
    if (!due) return;
    qsort(sample, n, sizeof *sample, by_size);
    atomic_store(&s->late, sample[(n * 95 + 99) / 100 - 1]);
}

static int64_t late_after(const struct kvc_s3 *l, int class) {
    const int64_t late = atomic_load(&l->latency[class].late), least = SECOND / 20;
    if (!late) return SECOND;
    return late > least ? late : least;
}

/* --- channels --- */

static void channel_free(struct kvc_s3_channel *ch) {
    while (ch->n) curl_easy_cleanup(ch->idle[--ch->n]);
    if (ch->multi) curl_multi_cleanup(ch->multi);
    free(ch);
}

void kvc_s3_channels_free(struct kvc_s3 *l) {
    while (l->idle) {
        struct kvc_s3_channel *ch = l->idle;
        l->idle = ch->next;
        channel_free(ch);
    }
}

static struct kvc_s3_channel *take_channel(struct kvc_s3 *l) {
    pthread_mutex_lock(&l->lock);
    struct kvc_s3_channel *ch = l->idle;
    if (ch) l->idle = ch->next;
    pthread_mutex_unlock(&l->lock);
    if (ch) return ch;
    ch = calloc(1, sizeof *ch);
    if (!ch) return NULL;
    ch->multi = curl_multi_init();
    if (ch->multi && curl_multi_setopt(ch->multi, CURLMOPT_MAXCONNECTS,
                                       2L * (long)l->setup.connections) == CURLM_OK)
        return ch;
    channel_free(ch);
    return NULL;
}

int kvc_s3_call_begin(struct kvc_s3_call *c, struct kvc_s3 *l, kvc_instant deadline,
                      struct kvc_error *e) {
    *c = (struct kvc_s3_call){.l = l, .deadline = deadline};
    char why[KVC_BREAKER_TEXT];
    const int64_t left = kvc_breaker_is_open(&l->breaker, why);
    if (left) {
        kvc_fail(e, KVC_ERR_IO,
                 "S3 bucket '%s' at %s is left alone for %" PRId64 " ms after failures: %s",
                 l->setup.bucket, l->setup.base, left / 1000 + 1, why);
        if (e) e->severity = KVC_SEVERITY_RETRY;
        return -1;
    }
    c->channel = take_channel(l);
    return c->channel ? 0 : kvc_fail_memory(e, "connections to S3");
}

/* --- lists --- */

static void append(struct kvc_s3_request **list, struct kvc_s3_request *r) {
    while (*list) list = &(*list)->next;
    r->next = NULL;
    *list = r;
}

static int take_off(struct kvc_s3_request **list, const struct kvc_s3_request *r) {
    while (*list && *list != r) list = &(*list)->next;
    if (!*list) return 0;
    *list = r->next;
    return 1;
}

static void end_try(struct kvc_s3_call *c, struct kvc_s3_try *t) {
    struct kvc_s3_try **at = &c->tries;
    while (*at != t) at = &(*at)->next;
    *at = t->next;
    c->running--;
    if (t->hedge) c->hedges--;
    t->r->running[t->r->running[0] == t ? 0 : 1] = NULL;
    kvc_s3_try_end(t, c->channel);
}

static void end_tries(struct kvc_s3_call *c, struct kvc_s3_request *r) {
    for (int i = 0; i < 2; i++)
        if (r->running[i]) end_try(c, r->running[i]);
}

void kvc_s3_cancel(struct kvc_s3_call *c, struct kvc_s3_request *r) {
    end_tries(c, r);
    if (!take_off(&c->waiting, r)) take_off(&c->done, r);
}

void kvc_s3_call_end(struct kvc_s3_call *c) {
    while (c->tries) end_try(c, c->tries);
    if (!c->channel) return;
    if (c->good || c->bad) kvc_breaker_note(&c->l->breaker, c->good ? 0 : c->bad, c->last);
    pthread_mutex_lock(&c->l->lock);
    c->channel->next = c->l->idle;
    c->l->idle = c->channel;
    pthread_mutex_unlock(&c->l->lock);
    c->channel = NULL;
}

void kvc_s3_add(struct kvc_s3_call *c, struct kvc_s3_request *r) {
    append(&c->waiting, r);
}

void kvc_s3_request_free(struct kvc_s3_request *r) {
    free(r->text);
    r->text = NULL;
}

/* --- the end of a try --- */

void kvc_s3_redact(const struct kvc_s3 *l, char *text) {
    const struct kvc_s3_key *k = &l->setup.key;
    const char *const secret[] = {k->secret, k->token, k->id};
    for (size_t i = 0; i < sizeof secret / sizeof secret[0]; i++) kvc_tier_redact(text, secret[i]);
}

static void finish(struct kvc_s3_call *c, struct kvc_s3_request *r) {
    end_tries(c, r);
    append(&c->done, r);
}

/* Gives up: there is no answer. */
static void give_up(struct kvc_s3_call *c, struct kvc_s3_request *r, const char *why) {
    if (why != r->why) snprintf(r->why, sizeof r->why, "%s", why);
    finish(c, r);
}

/* Checks that a whole answer came. Returns what is wrong with it; NULL: nothing. */
static const char *check(const struct kvc_s3_try *t) {
    const struct kvc_s3_request *r = t->r;
    const struct kvc_s3_answer *a = &t->answer;
    if (t->too_much) return "the answer is longer than what was asked for";
    if (!t->to) return NULL;
    if (a->status == 200 && r->first) return "the server does not send ranges";
    /* what ends with its connection may have been cut short */
    if (a->status == 200 && a->length < 0 && !a->chunked)
        return "the answer does not say how long it is";
    if (a->status == 200 && a->length >= 0 && (uint64_t)a->length != t->got)
        return "the answer has another length than it says";
    if (a->status != 206) return NULL;
    if (a->total < 0) return "the answer does not say which range it has";
    const uint64_t total = (uint64_t)a->total, left = total > r->first ? total - r->first : 0,
                   n = left < r->bytes ? left : r->bytes;
    if ((uint64_t)a->first != r->first || (uint64_t)a->last + 1 != r->first + n || t->got != n)
        return "the answer has another range than was asked for";
    return NULL;
}

static int may_pass(const struct kvc_s3_request *r, int status) {
    if (status == 400) return strcmp(r->code, "RequestTimeout") == 0;
    return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 ||
           status == 504;
}

/* Tries once more, after a pause that doubles each time. */
static void again(struct kvc_s3_call *c, struct kvc_s3_request *r, const char *why,
                  int64_t retry_after, unsigned weight) {
    c->bad += !r->wrong; /* a server that sends a wrong answer is there */
    snprintf(c->last, sizeof c->last, "%s", why);
    snprintf(r->why, sizeof r->why, "%s", why);
    if (r->running[0] || r->running[1]) return; /* the other one may still bring it */
    if (retry_after > MAX_RETRY_AFTER) {
        snprintf(r->why, sizeof r->why,
                 "%.120s: it asks to wait for %" PRId64 " s (Retry-After), which is more than %d s",
                 why, retry_after, MAX_RETRY_AFTER);
        give_up(c, r, r->why);
        return;
    }
    r->tries += weight;
    const unsigned shift = r->tries < 7 ? r->tries : 7;
    int64_t pause = 5 * MILLISECOND << shift;
    pause += (int64_t)kvc_jitter((uint64_t)pause);
    if (retry_after * SECOND > pause) pause = retry_after * SECOND;
    r->due = kvc_now() + pause;
    if (r->tries >= c->l->setup.tries || r->due >= c->deadline) {
        give_up(c, r, r->why);
        return;
    }
    atomic_fetch_add(&c->l->counters.retries, 1);
    free(r->text);
    r->text = NULL;
    r->length = 0;
    r->hedged = 0;
    append(&c->waiting, r);
}

/* Takes over what a try brought. */
static void take_answer(struct kvc_s3_call *c, struct kvc_s3_try *t) {
    struct kvc_s3_request *r = t->r;
    char message[256];
    r->answer = t->answer;
    r->got = t->got;
    free(r->text);
    r->text = t->text;
    r->length = t->length;
    t->text = NULL;
    r->code[0] = '\0';
    if (t->answer.status >= 300) kvc_s3_read_error(r->code, message, r->text, r->length);
    kvc_s3_redact(c->l, r->code);
    kvc_s3_redact(c->l, r->answer.region);
    kvc_s3_redact(c->l, r->answer.server);
    if (t->own && t->got) memcpy(r->into, t->own, (size_t)t->got);
    if (t->hedge) atomic_fetch_add(&c->l->counters.hedges_won, 1);
}

static void try_ended(struct kvc_s3_call *c, struct kvc_s3_try *t, CURLcode code) {
    struct kvc_s3_request *r = t->r;
    const int64_t took = t->answered - t->started;
    const char *wrong = code == CURLE_OK || t->too_much ? check(t) : NULL;
    char why[256];
    if (code != CURLE_OK || wrong || !t->answer.status) {
        snprintf(why, sizeof why, "%s",
                 wrong       ? wrong
                 : *t->error ? t->error
                 : code      ? curl_easy_strerror(code)
                             : "no answer");
        kvc_s3_redact(c->l, why);
        const int final = code == CURLE_PEER_FAILED_VERIFICATION ||
                          code == CURLE_SSL_CACERT_BADFILE || code == CURLE_OUT_OF_MEMORY ||
                          code == CURLE_URL_MALFORMAT;
        const int slow = code == CURLE_OPERATION_TIMEDOUT && t->answered;
        r->answer = t->answer;
        r->wrong = wrong != NULL;
        end_try(c, t);
        if (final) {
            c->bad++;
            snprintf(c->last, sizeof c->last, "%s", why);
            give_up(c, r, why);
        } else again(c, r, why, -1, slow ? STANDSTILL : 1);
        return;
    }
    r->wrong = 0;
    take_answer(c, t);
    const int status = t->answer.status, class = r->bytes > 262144;
    const int64_t retry = t->answer.retry;
    end_try(c, t);
    if (may_pass(r, status)) {
        snprintf(why, sizeof why, "HTTP status %d%s%s", status, *r->code ? " " : "", r->code);
        again(c, r, why, retry, 1);
    } else {
        c->good++;
        r->why[0] = '\0'; /* of the tries before */
        if (!r->body) note_latency(c->l, class, took);
        finish(c, r);
    }
}

/* --- the loop --- */

static void start_try(struct kvc_s3_call *c, struct kvc_s3_request *r, int hedge, kvc_instant now) {
    struct kvc_s3_try *t = calloc(1, sizeof *t);
    if (t) {
        t->r = r;
        t->to = r->into;
        t->hedge = hedge;
        if (hedge && r->into && !(t->to = t->own = malloc((size_t)r->bytes))) {
            free(t);
            return; /* the first try goes on alone */
        }
    }
    const int failed = !t || kvc_s3_try_begin(t, c->l, c->channel, now, c->deadline);
    if (failed && t) kvc_s3_try_end(t, c->channel);
    if (failed) {
        if (!hedge)
            give_up(c, r,
                    *r->why ? r->why : "there is no memory for the request, or it is too long");
        return;
    }
    t->next = c->tries;
    c->tries = t;
    c->running++;
    if (hedge) c->hedges++;
    r->running[hedge] = t;
    atomic_fetch_add(hedge ? &c->l->counters.hedges : &c->l->counters.requests, 1);
}

/* Starts what is due. Returns when the next one is. */
static kvc_instant start_due(struct kvc_s3_call *c, kvc_instant now) {
    kvc_instant next = INT64_MAX;
    struct kvc_s3_request **at = &c->waiting;
    while (*at && c->running < c->l->setup.connections) {
        struct kvc_s3_request *r = *at;
        if (r->due > now) {
            if (r->due < next) next = r->due;
            at = &r->next;
            continue;
        }
        *at = r->next;
        start_try(c, r, 0, now);
    }
    return next;
}

/* Ends tries that stand still, and doubles those that are late. Returns when to look again. */
static kvc_instant look_at_tries(struct kvc_s3_call *c, kvc_instant now) {
    const int64_t stall = c->l->setup.stall, late[2] = {late_after(c->l, 0), late_after(c->l, 1)};
    kvc_instant next = INT64_MAX;
    for (struct kvc_s3_try *t = c->tries, *after; t; t = after) {
        struct kvc_s3_request *r = t->r;
        after = t->next;
        if (now - t->moved >= stall) {
            end_try(c, t);
            r->wrong = 0;
            again(c, r, "no byte came for a time", -1, STANDSTILL);
            after = c->tries; /* the list has changed: from its beginning */
            next = INT64_MAX;
            continue;
        }
        if (t->moved + stall < next) next = t->moved + stall;
        /* one that moves is not late, but slow */
        const kvc_instant hedge_at = t->moved + late[r->bytes > 262144];
        if (!c->l->setup.hedge || r->body || r->hedged ||
            (strcmp(r->method, "GET") != 0 && strcmp(r->method, "HEAD") != 0))
            continue;
        if (now < hedge_at) {
            if (hedge_at < next) next = hedge_at;
        } else if (c->hedges < 1 + c->running / 8) {
            r->hedged = 1;
            start_try(c, r, 1, now);
        }
    }
    return next;
}

static void perform(struct kvc_s3_call *c) {
    int running, left;
    curl_multi_perform(c->channel->multi, &running);
    for (CURLMsg *m; (m = curl_multi_info_read(c->channel->multi, &left)) != NULL;) {
        void *t = NULL;
        if (m->msg != CURLMSG_DONE) continue;
        const CURLcode code = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &t);
        try_ended(c, t, code);
    }
}

static int expire(struct kvc_s3_call *c, struct kvc_error *e) {
    struct kvc_s3 *l = c->l;
    const char *was = *c->last ? c->last : "no answer came";
    if (!c->bad && c->running)
        snprintf(c->last, sizeof c->last, "no answer came before the deadline");
    c->bad += c->running;
    kvc_fail(e, KVC_ERR_IO, "S3 bucket '%s' at %s: the deadline is over: %s", l->setup.bucket,
             l->setup.base, was);
    if (e) e->severity = KVC_SEVERITY_RETRY;
    return -1;
}

int kvc_s3_next(struct kvc_s3_call *c, struct kvc_s3_request **r, struct kvc_error *e) {
    for (;;) {
        *r = c->done;
        if (*r) {
            c->done = (*r)->next;
            return 0;
        }
        kvc_instant now = kvc_now();
        if (!c->waiting && !c->tries) return 0;
        if (now >= c->deadline) return expire(c, e);
        perform(c);
        now = kvc_now();
        kvc_instant next = look_at_tries(c, now);
        if (c->done) continue;
        const kvc_instant due = start_due(c, now);
        if (c->done) continue;
        if (due < next) next = due;
        if (c->deadline < next) next = c->deadline;
        const int64_t wait = next > now ? next - now : 0;
        curl_multi_poll(c->channel->multi, NULL, 0,
                        (int)(wait < SECOND ? (wait + MILLISECOND - 1) / MILLISECOND : 1000), NULL);
    }
}

int kvc_s3_ask(struct kvc_s3_call *c, struct kvc_s3_request *r, struct kvc_error *e) {
    struct kvc_s3_request *done;
    kvc_s3_add(c, r);
    if (kvc_s3_next(c, &done, e)) {
        kvc_s3_cancel(c, r);
        return -1;
    }
    return *r->why ? kvc_s3_fail(c->l, r, e) : 0;
}

int kvc_s3_ask_all(struct kvc_s3_call *c, struct kvc_s3_request *r, size_t n, kvc_s3_take *take,
                   void *state, struct kvc_error *e) {
    struct kvc_s3_request *done;
    int status = 0;
    for (size_t i = 0; i < n; i++) {
        r[i].index = i;
        kvc_s3_add(c, &r[i]);
    }
    for (size_t left = n; left && !status; left--) {
        status = kvc_s3_next(c, &done, e);
        if (!status) status = take(state, done, e);
    }
    for (size_t i = 0; i < n; i++) {
        kvc_s3_cancel(c, &r[i]);
        kvc_s3_request_free(&r[i]);
    }
    return status;
}

void kvc_s3_name(struct kvc_s3_request *r, const struct kvc_object *o) {
    kvc_object_name(o, r->own_name);
    r->name = r->own_name;
}

int kvc_s3_fail(const struct kvc_s3 *l, const struct kvc_s3_request *r, struct kvc_error *e) {
    const struct kvc_s3_setup *s = &l->setup;
    const int status = r->answer.status;
    const char *advice = "";
    char clock[128];
    const int64_t ahead = r->answer.date < 0 ? 0 : r->answer.date - (int64_t)time(NULL);
    if (*r->why) {
        kvc_fail(e, KVC_ERR_IO, "S3 bucket '%s' at %s: %s of %s: %s", s->bucket, s->base, r->method,
                 r->name ? r->name : "the bucket", r->why);
    } else {
        if (status == 301 || status == 307 || strcmp(r->code, "AuthorizationHeaderMalformed") == 0)
            advice = ": is the region right?";
        else if (status == 403 && (ahead > SKEW || ahead < -SKEW)) {
            snprintf(clock, sizeof clock,
                     ": the server's clock is %" PRId64
                     " s %s this machine's: set the one that is wrong",
                     ahead < 0 ? -ahead : ahead, ahead < 0 ? "behind" : "ahead of");
            advice = clock;
        } else if (status == 403 && !*s->key.id) advice = ": there are no credentials";
        else if (status == 403)
            advice = ": the credentials do not permit this, or, for an object that is not there, "
                     "not to list the bucket";
        else if (status == 404) advice = ": is there such a bucket?";
        kvc_fail(e, KVC_ERR_IO, "S3 bucket '%s' at %s: %s of %s: HTTP status %d%s%s%s%s%s",
                 s->bucket, s->base, r->method, r->name ? r->name : "the bucket", status,
                 *r->code ? " " : "", r->code, advice, *r->answer.region ? ", it lies in " : "",
                 r->answer.region);
    }
    if (e) e->severity = KVC_SEVERITY_RETRY;
    return -1;
}

/* s3_state.h: an open S3 tier, and what its files share: setup, memory, requests, calls. Not for
 * the store, which finds the backend by KVC_TIER_ENTRY. */
#ifndef KVC_S3_STATE_H
#define KVC_S3_STATE_H

#include "formats/store/tier.h"

#include <curl/curl.h>
#include <stdatomic.h>

/* --- setup (s3_setup.c): what the text of a tier, the environment and files say --- */

/* The secrets are never printed. */
struct kvc_s3_key {
    char id[160], secret[160], token[4096]; /* id "": requests are not signed */
};

struct kvc_s3_setup {
    char bucket[128];
    char prefix[512]; /* of names: "" or "a/b/" */
    char base[320];   /* scheme, host and port: "https://b.s3.eu-west-1.amazonaws.com" */
    char path[448];   /* what paths begin with, encoded: "" or "/bucket" */
    char region[64];
    char *ca_file; /* NULL: the system's */
    struct kvc_s3_key key;
    int tls;
    int delete_bad;   /* damaged objects are deleted */
    int head_first;   /* the server does not know If-None-Match for PUT */
    int sign_payload; /* bodies are hashed and the hash is signed */
    int hedge;        /* a second request may follow a slow one */
    unsigned connections, tries;
    uint64_t max_object, part, range, window; /* bytes */
    int64_t remember, stall, connect;         /* microseconds */
};

int kvc_s3_setup(struct kvc_s3_setup *s, struct kvc_url *u, struct kvc_error *e);
void kvc_s3_setup_free(struct kvc_s3_setup *s);

/* --- the search of a chain and the memory (s3_find.c) --- */

/* Questions of a round. */
#define KVC_S3_PROBES 32

/* The number of objects lies between the two. */
struct kvc_s3_search {
    size_t low, high;
};

/* Chooses what to ask next: rising numbers below `high`. 31 of them, at equal distances: one round
 * settles up to 31 objects, and two rounds up to 1 023. The first of those that are not known is
 * always among them: it may well be where the chain ends. Returns how many; 0: the search is over.
 */
size_t kvc_s3_probes(const struct kvc_s3_search *s, size_t probe[KVC_S3_PROBES]);
void kvc_s3_narrow(struct kvc_s3_search *s, const size_t *probe, const uint8_t *there, size_t n);

/* Remembers for some time which objects this process has put or seen. Its size is fixed: new
 * entries take the place of old ones. */
struct kvc_s3_memory;
enum kvc_s3_known {
    KVC_S3_UNKNOWN,
    KVC_S3_THERE,
    KVC_S3_BAD /* put aside: as if it were not there */
};

struct kvc_s3_memory *kvc_s3_memory_new(int64_t lifetime);
void kvc_s3_memory_free(struct kvc_s3_memory *m);
void kvc_s3_remember(struct kvc_s3_memory *m, const struct kvc_object *o, enum kvc_s3_known known,
                     uint64_t size, kvc_instant now);
/* Sets *size of an object that is there. */
enum kvc_s3_known kvc_s3_recall(struct kvc_s3_memory *m, const struct kvc_object *o, uint64_t *size,
                                kvc_instant now);

/* --- a tier --- */

#define KVC_S3_SAMPLES 64

/* Latencies of one class of requests, until the answer begins. */
struct kvc_s3_latency {
    int64_t sample[KVC_S3_SAMPLES]; /* of the latest requests, in microseconds */
    size_t n;                       /* all that there were */
    atomic_int_least64_t late;      /* their 95th percentile */
};

struct kvc_s3_counters {
    atomic_uint_least64_t rounds; /* of questions that finding asked */
    atomic_uint_least64_t requests, retries, hedges, hedges_won;
};

struct kvc_s3_channel;
struct kvc_s3_aborts;

struct kvc_s3 {
    struct kvc_tier tier;
    struct kvc_s3_setup setup;
    struct kvc_s3_memory *memory;
    struct kvc_s3_counters counters;
    struct kvc_breaker breaker;
    atomic_int no_condition;      /* the server does not know If-None-Match: it is asked first */
    struct kvc_s3_aborts *aborts; /* uploads that are still to be removed */

    pthread_mutex_t lock; /* of the following, never held while waiting */
    struct kvc_s3_channel *idle;
    struct kvc_s3_latency latency[2]; /* of small and of large answers */
};

/* --- answers (s3_answer.c): headers, dates, XML --- */

struct kvc_s3_answer {
    int status;                  /* 0: no answer came */
    int64_t length;              /* Content-Length; -1: none */
    int chunked;                 /* the body says where it ends */
    int64_t first, last, total;  /* Content-Range; total -1: none that can be read */
    int64_t date;                /* of the server, seconds since 1970; -1: none */
    int64_t retry;               /* Retry-After in seconds; -1: none */
    char etag[136];              /* with its quotes; "": none, or too long */
    char server[64], region[40]; /* printable characters only */
};

void kvc_s3_answer_begin(struct kvc_s3_answer *a);
/* Takes one line with its end. A line with a status begins a new answer: 100 may come before the
 * one that counts. */
void kvc_s3_answer_line(struct kvc_s3_answer *a, const char *line, size_t n);

/* Reads "1994-11-06T08:49:37.000Z"; -1: no such date. */
int64_t kvc_s3_date_iso(const char *text);

/* Bytes of a document. A list of 1 000 objects has some 500 KB. */
#define KVC_S3_XML_LIMIT (4u << 20)

struct kvc_s3_listing {
    struct kvc_s3_entry {
        char *key; /* decoded */
        uint64_t size;
        int64_t modified; /* seconds since 1970; 0: unknown */
    } * entry;
    size_t n;
    int more;   /* the list goes on, from `next` */
    char *next; /* continuation token; NULL: none */
};

/* Read whole documents. Their declarations (DOCTYPE) are refused, and with them entities. */
int kvc_s3_read_listing(struct kvc_s3_listing *l, const char *text, size_t size,
                        struct kvc_error *e);
void kvc_s3_listing_free(struct kvc_s3_listing *l);
/* Reads the id of an upload that was begun. */
int kvc_s3_read_upload(char id[1024], const char *text, size_t size, struct kvc_error *e);
/* Reads an error. 1: the document is one; 0: it is another one; -1: it is no XML. Texts keep
 * printable characters only. */
int kvc_s3_read_error(char code[64], char message[256], const char *text, size_t size);

/* --- requests --- */

#define KVC_S3_QUERY 4
#define KVC_S3_HASH 65 /* room for a hash in hex digits, with its NUL */

struct kvc_s3_parameter {
    const char *name, *value; /* NULL: left out */
};

struct kvc_s3_try;

struct kvc_s3_request {
    /* the question, of the caller, whose memory stays until the answer */
    const char *method;
    /* of an object, after the prefix; NULL: the bucket */
    const char *name;
    char own_name[KVC_OBJECT_NAME]; /* kvc_s3_name() writes it */
    /* by their names: libcurl 7.88 signs them in this order */
    struct kvc_s3_parameter query[KVC_S3_QUERY];
    const char *if_match, *if_none_match;
    uint64_t first, bytes; /* a range of an object; bytes 0: no range is named */
    const void *body;
    size_t size;
    uint8_t *into; /* where the bytes of an object go: `bytes` of them at most; NULL: text */
    size_t index;  /* the caller's */

    /* the answer */
    struct kvc_s3_answer answer;
    uint64_t got; /* bytes in `into` */
    /* of an answer that is no object; of the request, which kvc_s3_request_free() frees */
    char *text;
    size_t length; /* of the text */
    char code[64]; /* S3's word for an error */
    char why[256]; /* says why there is no answer; "": there is one, be it 200 or 404 */
    int wrong;     /* answers came, but of wrong lengths */

    /* of those who send it */
    struct kvc_s3_try *running[2];
    struct kvc_s3_request *next;
    kvc_instant due;
    unsigned tries;
    int hedged;
    char hash[KVC_S3_HASH]; /* of the body, or the word for none */
};

/* --- a transfer of a request by libcurl (s3_try.c) --- */

/* Writes the URL, encoded as Signature Version 4 asks for it: libcurl 7.88 signs paths and queries
 * as they are. -1: it does not fit. */
int kvc_s3_url(const struct kvc_s3_setup *s, const struct kvc_s3_request *r, char *to, size_t room);

#define KVC_S3_IDLE 64

/* The connections of one call. */
struct kvc_s3_channel {
    CURLM *multi;
    CURL *idle[KVC_S3_IDLE]; /* handles for use again */
    unsigned n;
    struct kvc_s3_channel *next;
};

struct kvc_s3_try {
    struct kvc_s3_try *next; /* of the call */
    struct kvc_s3_request *r;
    CURL *easy;
    struct curl_slist *headers;
    kvc_instant started, moved; /* when bytes went to and fro last */
    kvc_instant answered;       /* when the answer began; 0: it has not */
    struct kvc_s3_answer answer;
    int hedge;    /* a duplicate of a late try */
    uint8_t *to;  /* the request's memory, or that of a hedge; NULL: the answer is text */
    uint8_t *own; /* memory of a hedge */
    uint64_t got;
    size_t sent;
    char *text;
    size_t length;
    int too_much; /* more bytes came than were asked for */
    char error[CURL_ERROR_SIZE];
};

/* Begins a transfer. -1: there is no memory, or the request is too long. */
int kvc_s3_try_begin(struct kvc_s3_try *t, struct kvc_s3 *l, struct kvc_s3_channel *channel,
                     kvc_instant now, kvc_instant deadline);
/* Ends it, whether it is over or not. */
void kvc_s3_try_end(struct kvc_s3_try *t, struct kvc_s3_channel *channel);

/* --- calls (s3_call.c): requests at once, with retries, hedging and a deadline --- */

struct kvc_s3_call {
    struct kvc_s3 *l;
    kvc_instant deadline;
    struct kvc_s3_channel *channel;
    struct kvc_s3_request *waiting, *done; /* lists, the oldest first */
    struct kvc_s3_try *tries;              /* that run */
    unsigned running, hedges;
    unsigned good, bad; /* answers, and tries without */
    char last[256];     /* what the last bad try met */
};

/* -1: the server is left alone for now, or there is no memory. */
int kvc_s3_call_begin(struct kvc_s3_call *c, struct kvc_s3 *l, kvc_instant deadline,
                      struct kvc_error *e);
/* Gives up what still runs. */
void kvc_s3_call_end(struct kvc_s3_call *c);

void kvc_s3_add(struct kvc_s3_call *c, struct kvc_s3_request *r);
/* Waits for an answer to any request. 0: *r is NULL if none is open. -1: the deadline is over. */
int kvc_s3_next(struct kvc_s3_call *c, struct kvc_s3_request **r, struct kvc_error *e);
/* Asks n questions at once, and gives each answer to `take`, until it returns another number than
 * 0. The requests are at their end then. */
typedef int kvc_s3_take(void *state, struct kvc_s3_request *r, struct kvc_error *e);
int kvc_s3_ask_all(struct kvc_s3_call *c, struct kvc_s3_request *r, size_t n, kvc_s3_take *take,
                   void *state, struct kvc_error *e);
/* Makes an object's name that of a request. */
void kvc_s3_name(struct kvc_s3_request *r, const struct kvc_object *o);
/* Asks one question. -1: there is no answer. */
int kvc_s3_ask(struct kvc_s3_call *c, struct kvc_s3_request *r, struct kvc_error *e);
/* Forgets a request, answered or not. */
void kvc_s3_cancel(struct kvc_s3_call *c, struct kvc_s3_request *r);
void kvc_s3_request_free(struct kvc_s3_request *r);

/* Takes what is secret out of a text that the server may have made. */
void kvc_s3_redact(const struct kvc_s3 *l, char *text);
/* Reports a request that failed, or was answered with a status that the caller did not expect.
 * Returns -1. */
int kvc_s3_fail(const struct kvc_s3 *l, const struct kvc_s3_request *r, struct kvc_error *e);
void kvc_s3_channels_free(struct kvc_s3 *l);

/* --- what a tier does, as tier.h asks for it --- */

int kvc_s3_find(struct kvc_tier *tier, const struct kvc_object *o, size_t n, kvc_instant deadline,
                size_t *found, uint64_t *size, struct kvc_error *e);
int kvc_s3_each(struct kvc_tier *tier, const struct kvc_object *o, size_t n, kvc_instant deadline,
                kvc_tier_there *there, void *state, struct kvc_error *e);
int kvc_s3_get(struct kvc_tier *tier, const struct kvc_object *o, size_t n, kvc_instant deadline,
               kvc_tier_take *take, void *state, struct kvc_error *e);
int kvc_s3_put(struct kvc_tier *tier, const struct kvc_object *o, const void *data, size_t size,
               const struct kvc_tier_put *how, kvc_instant deadline, int *there,
               struct kvc_error *e);

/* --- uploads that came to nothing (s3_put.c) --- */

struct kvc_s3_aborts *kvc_s3_aborts_new(struct kvc_s3 *l);
/* Hands an upload to a thread that removes it. */
void kvc_s3_abort(struct kvc_s3_aborts *a, const char *name, const char *upload);
/* Tries those that are left once more, for 2 s at most, and ends the thread. */
void kvc_s3_aborts_free(struct kvc_s3_aborts *a);

const struct kvc_tier_ops *kvc_store_tier(void);

/* What a tier did since it was opened. */
struct kvc_s3_stats {
    uint64_t rounds; /* of HEAD requests at once, by finding */
    uint64_t requests, retries, hedges, hedges_won;
};
void kvc_s3_stats(const struct kvc_tier *tier, struct kvc_s3_stats *stats);

#endif

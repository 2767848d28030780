/* redis_run.h: commands on their way: to all nodes at once, pipelined, by one deadline, and again
 * where a redirection points to. One thread's; not for what commands mean. REDIS.md, "Connections",
 * "Slots", "Failures". */
#ifndef KVC_REDIS_RUN_H
#define KVC_REDIS_RUN_H

#include "formats/store/redis/redis_connection.h"

void kvc_redis_run_init(struct kvc_redis_run *run, struct kvc_redis *l, kvc_instant deadline);
/* Gives connections back; those that wait for replies are closed, as a late reply must not be taken
 * for another's. */
void kvc_redis_run_end(struct kvc_redis_run *run);

/* Adds a request; it stays the caller's, at its place, until it is done. */
void kvc_redis_run_add(struct kvc_redis_run *run, struct kvc_redis_request *q);
/* Moves bytes once, and waits for a possibility to. Returns 1 while requests are pending. */
int kvc_redis_run_step(struct kvc_redis_run *run);

/* 1: the server refused a command, as the key has another type than an object's. */
int kvc_redis_is_wrong_type(const struct kvc_redis_request *q);
/* Fills *e from the error of a server or of the run; returns -1. */
int kvc_redis_explain(const struct kvc_redis_run *run, const struct kvc_redis_request *q,
                      struct kvc_error *e);

#endif

/* redis_lane.h: what the files of runs share: a run's connection to one node. */
#ifndef KVC_REDIS_LANE_H
#define KVC_REDIS_LANE_H

#include "formats/store/redis/redis_run.h"

#include <poll.h>

/* So many failures open the breaker at once. */
#define KVC_REDIS_HUNG 3

void kvc_redis_list_add(struct kvc_redis_list *list, struct kvc_redis_request *q);
struct kvc_redis_request *kvc_redis_list_take(struct kvc_redis_list *list);

/* Gets a connection if there is something to send. */
void kvc_redis_lane_start(struct kvc_redis_run *run, struct kvc_redis_lane *lane);
/* Sets what poll() is to wait for; 0: nothing. */
int kvc_redis_lane_wants(const struct kvc_redis_lane *lane, struct pollfd *p);
/* Moves the bytes that can be moved, and hands on replies. */
void kvc_redis_lane_serve(struct kvc_redis_run *run, struct kvc_redis_lane *lane);

/* Gets a request with its reply: it is done, or goes elsewhere. */
void kvc_redis_run_answer(struct kvc_redis_run *run, struct kvc_redis_lane *lane, struct kvc_redis_request *q);
/* Ends a lane whose node failed, and its requests; 0 failures: the node is not to blame. */
void kvc_redis_run_lane_failed(struct kvc_redis_run *run, struct kvc_redis_lane *lane, unsigned failures,
                               const struct kvc_error *e);
void kvc_redis_run_finish(struct kvc_redis_run *run, struct kvc_redis_request *q, enum kvc_redis_state state);

#endif

/* events.h: what closing a store needs of its events. */
#ifndef KVC_STORE_EVENTS_H
#define KVC_STORE_EVENTS_H

struct kvc_store;
void kvc_store_free_events(struct kvc_store *s);

#endif

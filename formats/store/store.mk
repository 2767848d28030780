# store.mk: libkvc_store, the tool kvc-store, and the backends that are loaded on demand. Included by the top folder's Makefile.

STORE_SRC := $(sort $(wildcard formats/store/*.c formats/store/dir/*.c))
STORE_OBJ := $(STORE_SRC:%.c=$B/%.o)
STORE_LIBS = $(shell $(PKG_CONFIG) --libs lmdb 2>/dev/null)

$B/libkvc_store.a: $(STORE_OBJ)
	$(SAY) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$B/kvc-store: $B/cli/kvc-store.o $B/libcli.a $B/libkvc_store.a $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $(PIE) $< $B/libcli.a $B/libkvc_store.a $B/libkvc.a $(STORE_LIBS) $(LIBS)
kvc-store: $B/kvc-store
	$(Q)cp -f $< $@
.PHONY: kvc-store

# A backend: kvc_store_NAME.so of formats/store/NAME/. What it uses of libkvc is inside and not to be seen from outside.
include formats/store/redis/redis.mk formats/store/s3/s3.mk
BACKENDS := $(if $(HAVE_REDIS),redis) $(if $(HAVE_S3),s3)
$B/kvc_store_%.so: $B/libkvc_store.a $B/libkvc.a
	$(SAY) LD $@
	$(LINK) -shared -Wl,-z,defs -Wl,--exclude-libs,ALL $(filter-out %.a,$^) $B/libkvc_store.a $B/libkvc.a $($*_LIBS) $(LIBS)
$(foreach b,$(BACKENDS),$(eval $B/kvc_store_$b.so: $(patsubst %.c,$B/%.o,$(wildcard formats/store/$b/*.c))))

BACKEND_SO := $(BACKENDS:%=kvc_store_%.so)
.PHONY: backends $(BACKEND_SO)
backends: $(BACKEND_SO)
	@$(if $(HAVE_REDIS),,echo "  kvc-store is built without redis://, for lack of hiredis: sh tests/deps.sh check redis")
	@$(if $(HAVE_S3),,echo "  kvc-store is built without s3://, for lack of libcurl or expat: sh tests/deps.sh check s3")
$(BACKEND_SO): %: $B/%
	$(Q)cp -f $< $@

-include $(STORE_OBJ:.o=.d) $(patsubst %.c,$B/%.d,$(wildcard formats/store/redis/*.c formats/store/s3/*.c))

$B/tests/bench/store/find: $B/tests/bench/store/find.o $B/libkvc_store.a $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $^ $(STORE_LIBS) $(LIBS)

BENCH_STORE_FILE ?= $(firstword $(BENCH_FILES))
## bench-store: finding among a million objects; putting, finding, reading and loading BENCH_STORE_FILE in a directory
.PHONY: bench-store
bench-store: kvc-store $B/tests/bench/store/find
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && $B/tests/bench/store/find $$scratch/find && \
	  for r in store fast split; do echo "recipe $$r:" && ./kvc-store -s dir:$$scratch/$$r -r $$r bench $(BENCH_STORE_FILE) || exit 1; done

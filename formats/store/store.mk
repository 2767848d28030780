# store.mk: libkvc_store, the tool kvc-store, and the backends that are loaded on demand. Included by the top folder's Makefile.

STORE_SRC := $(sort $(wildcard formats/store/*.c formats/store/dir/*.c))
STORE_OBJ := $(STORE_SRC:%.c=$B/%.o)
STORE_LIBS = $(shell $(PKG_CONFIG) --libs sqlite3 2>/dev/null)
STORE_SO := libkvc_store.so.$(VERSION)
BACKENDSDIR ?= $(LIBDIR)/kvc

# where backends are installed is compiled in; LIBDIR may have changed
$B/backends-folder: FORCE
	@mkdir -p $(@D) && { echo '$(BACKENDSDIR)' | cmp -s - $@ || echo '$(BACKENDSDIR)' >$@; }
$B/formats/store/chain.o: ISA := '-DKVC_BACKENDS="$(BACKENDSDIR)"'
$B/formats/store/chain.o: $B/backends-folder

$B/libkvc_store.a: $(STORE_OBJ)
	$(SAY) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$B/$(STORE_SO): $(STORE_OBJ) $B/libkvc.so.$(VERSION) $B/kvc_store.map
	$(SAY) LD $@
	$(LINK_SHARED) $(STORE_LIBS) $(LIBS)
	$(NAME_SHARED)

$B/kvc-store: $B/cli/kvc-store.o $B/libcli.a $B/$(STORE_SO) $B/libkvc.so.$(VERSION)
	$(SAY) LD $@
	$(LINK) $(PIE) $^ $(RPATH:%=-Wl,-rpath,%) $(LIBS)

# A backend: kvc_store_NAME.so of formats/store/NAME/, over libkvc_store and libkvc. Its NAME.mk sets HAVE_NAME and NAME_LIBS.
BACKENDS := $(foreach m,$(sort $(wildcard formats/store/*/*.mk)),$(filter $(notdir $(basename $m)),$(notdir $(patsubst %/,%,$(dir $m)))))
include $(foreach b,$(BACKENDS),formats/store/$b/$b.mk)
BUILT_BACKENDS := $(foreach b,$(BACKENDS),$(if $(HAVE_$b),$b))
$B/backend.map: formats/store/store.mk
	@mkdir -p $(@D)
	$(Q)echo '{ global: kvc_store_tier; local: *; };' >$@
$B/kvc_store_%.so: $B/$(STORE_SO) $B/libkvc.so.$(VERSION) $B/backend.map
	$(SAY) LD $@
	$(LINK_OWN) -Wl,-z,defs -Wl,--version-script=$B/backend.map $(filter %.o,$^) $(filter %.so.$(VERSION),$^) $(RPATH:%=-Wl,-rpath,%) $($*_LIBS) $(LIBS)
$(foreach b,$(BACKENDS),$(eval $B/kvc_store_$b.so: $(patsubst %.c,$B/%.o,$(wildcard formats/store/$b/*.c))))

BACKENDS_SO := $(BUILT_BACKENDS:%=kvc_store_%.so)

## store: libkvc_store and the backends whose packages are there; sh tests/deps.sh check store names them
.PHONY: store
store: libkvc_store.a $(STORE_SO) kvc_store.pc $(BACKENDS_SO)
	@$(foreach b,$(filter-out $(BUILT_BACKENDS),$(BACKENDS)),echo "  the backend $b is not built: sh tests/deps.sh check $b names what it needs";)
libkvc_store.a $(BACKENDS_SO): %: $B/%
	$(COPY)
$(STORE_SO): %: $B/%
	$(COPY)
	$(NAME_SHARED)
.PHONY: libkvc_store.a $(STORE_SO) $(BACKENDS_SO)

.PHONY: kvc_store.pc
kvc_store.pc:
	$(Q)printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$(INCLUDEDIR)' '' 'Name: kvc_store' \
	  'Description: prefix store of KV caches' 'Version: $(VERSION)' 'Requires: kvc = $(VERSION)' 'Requires.private: sqlite3' \
	  'Libs: -L$${libdir} -lkvc_store' 'Cflags: -I$${includedir}' > $@

-include $(STORE_OBJ:.o=.d) $(patsubst %.c,$B/%.d,$(wildcard $(BACKENDS:%=formats/store/%/*.c)))

BENCH_STORE := $(patsubst %.c,$B/%,$(wildcard tests/bench/store/*.c))
$(BENCH_STORE): %: %.o $B/libkvc_store.a $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $^ $(STORE_LIBS) $(LIBS)
-include $(BENCH_STORE:%=%.d)

BENCH_STORE_FILE ?= $(firstword $(BENCH_FILES))
## bench-store: finding among a million objects; putting, finding, reading and loading BENCH_STORE_FILE in a directory
.PHONY: bench-store
bench-store: $B/tests/bench/store/find $B/tests/bench/store/rates
	@scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && $B/tests/bench/store/find $$scratch/find && \
	  for r in store fast split; do echo "recipe $$r:" && \
	  $B/tests/bench/store/rates dir:$$scratch/$$r $$r $(BENCH_STORE_FILE) || exit 1; done && echo "recipe store, large chunks:" && \
	  $B/tests/bench/store/rates dir:$$scratch/large store $(BENCH_STORE_FILE) 1536

TRACE ?= tests/bench/store/requests.jsonl
CAPACITY ?= 1,3,10,30
## bench-trace: hit ratios of the requests of TRACE in stores that hold CAPACITY per cent of their blocks
.PHONY: bench-trace
bench-trace: $B/tests/bench/store/trace
	@$< $(TRACE) $(CAPACITY)

## test-trace: what bench-trace prints for stored requests
.PHONY: test-trace
test-trace: $B/tests/bench/store/trace
	@PYTHON="$(PYTHON)" sh tests/bench/store/trace_test.sh $<

## bench-link: BENCH_STORE_FILE from Redis over links of 1 and .5 GB/s, packed and as it is; needs root
.PHONY: bench-link
bench-link: all
	@KVC_LIBRARY="$(CURDIR)/libkvc.so.$(VERSION)" KVC_STORE_LIBRARY="$(CURDIR)/$(STORE_SO)" PYTHON="$(PYTHON)" \
	  sh tests/bench/store/link.sh $(BENCH_STORE_FILE) 8gbit 4gbit

# cuda.mk: libkvc_cuda, where there is nvcc. Included by the top folder's Makefile.

CUDA_SRC := $(sort $(wildcard formats/*/cuda/*.c))

ifeq ($(filter auto 0 1,$(CUDA)),)
$(error CUDA=$(CUDA): it is auto, 0 or 1)
endif
ifneq ($(CUDA),0)
NVCC ?= $(shell PATH="$$PATH:$(CUDA_HOME)/bin:/usr/local/cuda/bin"; command -v nvcc)
endif
ifeq ($(CUDA)$(NVCC),1)
$(error CUDA=1: no nvcc in PATH, $(CUDA_HOME)/bin or /usr/local/cuda/bin; use CUDA=auto or CUDA=0)
endif
HAVE_CUDA := $(if $(filter-out 0,$(CUDA)),$(NVCC))
CUDA_SO := libkvc_cuda.so.$(VERSION)

ifneq ($(HAVE_CUDA),)
# of the targets, those that this nvcc knows, and PTX of the last for what comes after it
CUDA_KNOWN := $(filter $(patsubst sm_%,%,$(shell $(NVCC) --list-gpu-code)),$(CUDA_ARCHS))
CUDA_PTX := $(lastword $(CUDA_KNOWN))
CUDA_RELEASE := $(shell $(NVCC) --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
CUDA_BUILD := $(CUDA_KNOWN:%=sm_%) PTX compute_$(CUDA_PTX), CUDA $(CUDA_RELEASE)
# where its headers and libraries are, it knows best
CUDA_PATHS := $(shell $(NVCC) --dryrun -c kernels/device/decode.cu 2>&1 | sed -n 's/^.. \(INCLUDES\|LIBRARIES\)=//p' | tr -d '"')
# C++ without its run-time library: no exceptions, no guards of statics
NVCC_CODE := -std=c++17 -O3 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true
NVCC_ALL := $(NVCC) $(NVCC_CODE) -Xptxas -v \
  --threads 0 -Xcompiler -Wall,-Wextra,-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-threadsafe-statics -I. \
  $(foreach a,$(CUDA_KNOWN),-gencode arch=compute_$a,code=sm_$a) -gencode arch=compute_$(CUDA_PTX),code=compute_$(CUDA_PTX) \
  $(NVCCFLAGS) '-DKVC_CUDA_BUILD="$(CUDA_BUILD)"'
# the kernels take long and do not depend on CFLAGS: they have a folder of their own
C := build/cuda-$(shell printf '%s' "$(subst ",,$(NVCC_ALL))" | cksum | cut -d' ' -f1)
CUDA_OBJ := $(CUDA_SRC:%.c=$B/%.o)
CUDA_KERNELS := $(addprefix $C/kernels/device/,decode.o encode.o)

# what nvcc and ptxas say of warnings, registers and spills stays beside the object, for check-cuda
$(CUDA_KERNELS): $C/%.o: %.cu | $B/ready
	@mkdir -p $(@D)
	$(SAY) NVCC $<
	$(Q)$(NVCC_ALL) -MMD -MP -o $@ -c $< 2>$(@:.o=.log) || { cat $(@:.o=.log) >&2; exit 1; }

$(CUDA_OBJ): ISA := $(patsubst -I%,-isystem %,$(filter -I%,$(CUDA_PATHS)))

# CUDA's runtime is inside and not to be seen from outside
$B/$(notdir $C)/$(CUDA_SO): $(CUDA_OBJ) $(CUDA_KERNELS) $B/libkvc.so.$(VERSION) $B/kvc_cuda.map
	@mkdir -p $(@D)
	$(SAY) LD $@
	$(LINK_SHARED) $(filter -L%,$(CUDA_PATHS)) -lcudart_static -lrt $(LIBS)
	$(NAME_SHARED)

# tests and benchmarks on a GPU
$B/tests/cuda/bench_cuda.o: ISA := $(patsubst -I%,-isystem %,$(filter -I%,$(CUDA_PATHS)))
$B/$(notdir $C)/%_cuda: $B/tests/cuda/%_cuda.o $B/tests/cuda/made.o $(CUDA_OBJ) $(CUDA_KERNELS) $B/libkvc.a
	@mkdir -p $(@D)
	$(SAY) LD $@
	$(LINK) $^ $(filter -L%,$(CUDA_PATHS)) -lcudart_static -lrt $(LIBS)

-include $(CUDA_OBJ:.o=.d) $(CUDA_KERNELS:.o=.d) $B/tests/cuda/bench_cuda.d

.PHONY: cuda $(CUDA_SO)
cuda: $(CUDA_SO) kvc_cuda.pc
$(CUDA_SO): $B/$(notdir $C)/$(CUDA_SO)
	$(COPY)
	$(NAME_SHARED)
else
.PHONY: cuda
cuda:
	$(if $(filter auto,$(CUDA)),@echo "no nvcc: libkvc_cuda is not built")
endif

.PHONY: kvc_cuda.pc
kvc_cuda.pc:
	$(Q)printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$(INCLUDEDIR)' '' 'Name: kvc_cuda' \
	  'Description: KV-cache container files into GPU memory' 'Version: $(VERSION)' 'Requires: kvc = $(VERSION)' \
	  'Libs: -L$${libdir} -lkvc_cuda' 'Cflags: -I$${includedir}' > $@

#include "copus/comm/gpu/profiler_range.h"

#ifdef COPUS_HAS_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace copus {

#ifdef COPUS_HAS_NVTX
void push_profiler_range(const char* name) { nvtxRangePushA(name); }
void pop_profiler_range() { nvtxRangePop(); }
#else
void push_profiler_range(const char* /*name*/) {}
void pop_profiler_range() {}
#endif

}  // namespace copus

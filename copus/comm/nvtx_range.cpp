#include <nvtx3/nvToolsExt.h>

#include "copus/comm/profiler_range.h"

namespace copus {

void push_profiler_range(const char* name) { nvtxRangePushA(name); }
void pop_profiler_range() { nvtxRangePop(); }

}  // namespace copus

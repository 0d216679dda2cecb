// Names ranges of a thread's time, which a GPU profiler shows next to the GPU's work (NVTX, for nsys and ncu). In
// builds for other platforms, and without a profiler, the ranges do nothing.
#pragma once

namespace copus {

// Ranges of a thread end in the reverse order of their beginnings. The name is copied.
void push_profiler_range(const char* name);
void pop_profiler_range();

// A range from here to the end of the scope.
class ProfilerRange {
 public:
  explicit ProfilerRange(const char* name) { push_profiler_range(name); }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
  ~ProfilerRange() { pop_profiler_range(); }
};

}  // namespace copus

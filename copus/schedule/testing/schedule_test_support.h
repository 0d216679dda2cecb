// Enumerates the schedules that the tests of this room cover.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "copus/base/error.h"
#include "copus/schedule/schedule.h"

namespace copus {

inline std::vector<int64_t> bounds_of(PipelineSchedule kind, const Schedule& schedule) {
  std::vector<int64_t> bounds;
  for (int64_t rank = 0; rank < schedule.pipeline_parallel; ++rank) {
    bounds.push_back(activation_bound(kind, schedule, rank));
  }
  return bounds;
}

// Calls `body` for every kind with each p in 1 .. 8, v in 1 .. 4 and m in 1 .. 17 that exists.
inline void for_every_schedule(const std::function<void(PipelineSchedule, const Schedule&)>& body) {
  for (const auto kind : {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b, PipelineSchedule::interleaved_1f1b,
                          PipelineSchedule::zb_h1}) {
    const bool interleaved = kind == PipelineSchedule::interleaved_1f1b;
    for (int64_t p = interleaved ? 2 : 1; p <= 8; ++p) {
      for (int64_t v = interleaved ? 2 : 1; v <= (interleaved ? 4 : 1); ++v) {
        for (int64_t m = 1; m <= 17; ++m) {
          if (interleaved && m % p != 0) continue;
          SCOPED_TRACE(concat(to_string(kind), " p=", p, " v=", v, " m=", m));
          body(kind, make_schedule(kind, p, v, m));
        }
      }
    }
  }
}

}  // namespace copus

// Ranks of a test as processes, forked from it, over shared memory.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "copus/comm/shared_memory/shared_memory_world.h"

namespace copus {

// Runs the body as ranks in separate processes. Returns their exit statuses.
inline std::vector<int> run_ranks_as_processes(int64_t size, const std::function<void(World&)>& body) {
  const auto segment = std::make_shared<SharedSegment>(SharedSegment::create(size));
  std::vector<pid_t> children;
  for (int64_t rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    int status = 1;
    try {
      const auto world = join_shared_memory(segment, rank, size, 20, false);
      body(*world);
      status = testing::Test::HasFailure() ? 1 : 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", static_cast<int>(rank), error.what());
    }
    _exit(status);
  }
  std::vector<int> statuses;
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    statuses.push_back(status);
  }
  return statuses;
}

}  // namespace copus

// For tests: ranks as threads of this process, over each kind of connection that they can have.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "copus/comm/testing/rank_threads.h"
#include "copus/comm/world.h"

namespace copus {

enum class WorldKind { shared_memory, tcp };
inline constexpr WorldKind world_kinds[] = {WorldKind::shared_memory, WorldKind::tcp};

std::string name_of(WorldKind kind);

// As run_ranks_as_threads.
void run_ranks(WorldKind kind, int64_t size, const std::function<void(World&)>& body,
               double wait_seconds = default_wait_seconds);
// Over TCP, at this host's address `host`.
void run_ranks_over_tcp(int64_t size, const std::function<void(World&)>& body, double wait_seconds,
                        const std::string& host = "127.0.0.1");

}  // namespace copus

// Makes a world whose messages take as long as they would over a cluster's links. On the wall clock, messages arrive
// late. On the virtual clock, no rank sleeps; the ranks' clocks advance as if each rank had its own device
// (docs/design.md).
//
// The rules for one group (groups do not slow each other down):
// - A collective begins when its last member has started it and the previous collective is done. It takes the seconds
//   given by performance/link_cost.h for the slowest link that the group needs. A wait for the collective ends when the
//   collective ends.
// - A message leaves when it has been sent and the previous message between the same two ranks has arrived. The
//   receiver waits until the message arrives. A send takes none of the sender's time; a wait for a send ends when the
//   send's buffer is free again.
// - Asynchronous operations and computing overlap completely.
//
// On the virtual clock, a rank computes whenever it neither communicates nor waits. The computing time is the CPU time
// of the rank's main thread or, if the cluster states flops_per_second, the time added by charge(). With charged times,
// every run has the same times.
#pragma once

#include <memory>

#include "copus/comm/world.h"
#include "copus/description/cluster_description.h"

namespace copus {

// Returns a timed world around `world`. For ClockKind::real and ClockKind::modelled, which ignores messages, returns
// `world` itself. Operations have the same results as in `world`. The virtual clock starts at 0 on every rank and
// measures the calling thread. Do not poll done() on the virtual clock: done() follows the clock, and the clock stands
// still while a rank only polls, so the loop may never end.
std::unique_ptr<World> with_links(std::unique_ptr<World> world, const ClusterDescription& cluster, ClockKind clock);

}  // namespace copus

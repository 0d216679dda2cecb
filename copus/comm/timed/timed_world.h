// Makes a world whose messages take the time that a cluster's links would take. On the wall clock messages really
// arrive late. On the virtual clock no rank sleeps, and the ranks' clocks advance like the clocks of real devices
// (docs/design.md).
//
// The rules for one group (groups do not slow each other down):
// - A collective begins when its last member has started it and the previous collective is done. It takes the seconds
//   of performance/link_cost.h on the slowest link that the group needs. A wait for the collective lasts until its end.
// - A message leaves when it has been sent and the previous message between the same two ranks has arrived. The
//   receiver waits until the message arrives. A send takes no time of its sender; waiting for a send only waits until
//   the send's buffer is free again.
// - Asynchronous operations and computing overlap completely.
//
// On the virtual clock a rank computes whenever it neither communicates nor waits. The computing time is the time for
// which its main thread ran on a processor or, if the cluster states flops_per_second, the charged time. In the latter
// case times are the same in every run.
#pragma once

#include <memory>

#include "copus/comm/world.h"
#include "copus/description/cluster_description.h"

namespace copus {

// Returns a timed world around `world`. For ClockKind::real and ClockKind::modelled, which ignores messages, returns
// `world` unchanged. Operations have the same results as in `world`. The virtual clock begins at 0 on every rank, on
// the thread that calls this. done() follows the clock, and the virtual clock stands still while a rank only polls, so
// polling may never end.
std::unique_ptr<World> with_links(std::unique_ptr<World> world, const ClusterDescription& cluster, ClockKind clock);

}  // namespace copus

// A world whose messages take the time that a cluster's links would take. On the wall clock they really arrive late. On
// the virtual clock nobody sleeps, and the clocks of the ranks advance as those of real devices would (docs/design.md).
//
// The rules, for one group (groups do not slow each other down):
// - A collective begins when its last member has started it and the collective before it is done, and takes the seconds
//   of performance/link_cost.h on the slowest link that the group needs. Whoever waits for it waits until its end.
// - A message leaves when it was sent and the one before it between the same two has arrived. Its receiver waits until
//   it is there. A send costs its sender nothing, and waiting for one only means that its buffer is free again.
// - Asynchronous operations and computing overlap completely.
// On the virtual clock a rank computes whenever it neither communicates nor waits. This takes as long as its main
// thread was on a processor, or what was charged where the cluster says flops_per_second: then the times are the same
// in every run.
#pragma once

#include <memory>

#include "copus/comm/world.h"
#include "copus/description/cluster_description.h"

namespace copus {

// ClockKind::real and ClockKind::modelled, which knows nothing of messages, give the world back as it is. The results
// of all operations are those of `world`. The virtual clock begins at 0 on every rank, on the thread that calls this.
// done() goes by the clock, and the virtual one stands still while a rank only polls: it may poll for ever.
std::unique_ptr<World> with_links(std::unique_ptr<World> world, const ClusterDescription& cluster, ClockKind clock);

}  // namespace copus

// A world whose messages take the time that a cluster's links would take: on the wall clock they really arrive late, on
// the virtual clock nobody sleeps and the clocks of the ranks advance as those of real devices would (docs/design.md).
#pragma once

#include <memory>

#include "copus/comm/world.h"
#include "copus/strategy/cluster_description.h"

namespace copus {

// ClockKind::real gives the world back as it is. The results of all operations are those of `world`.
std::unique_ptr<World> with_links(std::unique_ptr<World> world, const ClusterDescription& cluster, ClockKind clock);

}  // namespace copus

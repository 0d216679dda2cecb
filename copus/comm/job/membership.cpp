#include "copus/comm/job/membership.h"

#include "copus/base/error.h"

namespace copus {

struct Membership::Connection {};

Membership::Membership(const RankEnvironment& environment, double wait_seconds)
    : process_(environment.process),
      is_newcomer_(environment.segment < 0),
      wait_seconds_(wait_seconds),
      connection_(std::make_unique<Connection>()) {}

Membership::~Membership() = default;

std::unique_ptr<World> Membership::join_next() { throw InternalError(concat("not there yet: ", wait_seconds_)); }

bool Membership::regroup_wanted() { return false; }

void Membership::wait_as_spare(World& /*world*/) { throw InternalError("not there yet"); }

void Membership::ask_to_leave() { throw InternalError("not there yet"); }

}  // namespace copus

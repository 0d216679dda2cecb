// For tests: a world that lets a test inject faults at the places that a rank sets.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "copus/comm/world.h"

namespace copus {

// Forwards everything. A derived class overrides set_place to learn where the rank is.
class NoticedPlacesWorld : public WrappedWorld, public Health {
 public:
  Health& health() override { return *this; }
  void set_place(std::string_view place) override { inner().health().set_place(place); }
  void set_expected_step_seconds(double seconds) override { inner().health().set_expected_step_seconds(seconds); }
  void begin_wait() override { inner().health().begin_wait(); }
  void end_wait() override { inner().health().end_wait(); }
  void report(const FailureReport& report) override { inner().health().report(report); }
  std::optional<FailureReport> failure() const override { return inner().health().failure(); }

 protected:
  explicit NoticedPlacesWorld(std::unique_ptr<World> inner) : WrappedWorld(std::move(inner)) {}
};

}  // namespace copus

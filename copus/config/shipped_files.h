// The files of configs/clusters and configs/models. They are built into the program, so that it finds them wherever it
// is (for this room's sources only).
#pragma once

#include <string_view>
#include <vector>

namespace copus {

struct ShippedFile {
  std::string_view name;  // without its extension
  std::string_view text;
};

// Sorted by name.
const std::vector<ShippedFile>& shipped_clusters();
const std::vector<ShippedFile>& shipped_models();

}  // namespace copus

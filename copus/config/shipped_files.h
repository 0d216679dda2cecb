// The files of configs/clusters and configs/models. They are built into the program, which so finds them wherever it is
// installed (only this room's sources include this header).
#pragma once

#include <string_view>
#include <vector>

namespace copus {

struct ShippedFile {
  std::string_view name;  // file name without its extension
  std::string_view text;
};

// Returns the files, sorted by name.
const std::vector<ShippedFile>& shipped_clusters();
const std::vector<ShippedFile>& shipped_models();

}  // namespace copus

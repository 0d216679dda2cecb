// The files of configs/clusters and configs/models, built into the program so that it finds them wherever it is
// installed. Only sources of this room include this header.
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

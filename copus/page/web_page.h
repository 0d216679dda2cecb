// A web page that stands by itself: one file, which asks no network for anything.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace copus {

struct WebPage {
  std::string title;        // text
  std::string body;         // HTML, in which whatever comes from a file is escaped (base/escape_html.h)
  std::string data;         // JSON
  std::string_view script;  // draws the data, with the functions of charts.js
};

// Makes the file. The title is escaped, and the data so that nothing in them ends the element that holds them.
std::string to_html(const WebPage& page);

struct WebTable {
  struct Column {
    std::string name;    // text
    bool wraps = false;  // its cells are sentences and not numbers
  };
  std::vector<Column> columns;
  std::vector<std::vector<std::string>> rows;  // HTML, as many cells as there are columns
};

// Makes a table for a page's body. In narrow windows a row's cells stand one below the other, each beside its column's
// name, so that nothing is cut off.
std::string to_html(const WebTable& table);

}  // namespace copus

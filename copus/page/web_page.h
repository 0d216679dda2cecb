// A self-contained web page: one file that needs no network.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace copus {

struct WebPage {
  std::string title;        // text
  std::string body;         // HTML, with everything from files escaped (base/text/escape_html.h)
  std::string data;         // JSON
  std::string_view script;  // draws the data, with the functions of charts.js
};

// Makes the file. Escapes the title, and the data so that they cannot end the element that holds them.
std::string to_html(const WebPage& page);

struct WebTable {
  struct Column {
    std::string name;    // text
    bool wraps = false;  // whether its cells are sentences rather than numbers
  };
  std::vector<Column> columns;
  std::vector<std::vector<std::string>> rows;  // HTML, one cell per column
};

// Makes a table for a page's body. In narrow windows the cells of a row are stacked, each next to its column's name, so
// that nothing is cut off.
std::string to_html(const WebTable& table);

}  // namespace copus

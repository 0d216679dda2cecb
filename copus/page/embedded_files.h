// The files embedded in every page, built into the program.
#pragma once

namespace copus {

extern const char* const page_html;
extern const char* const page_css;
extern const char* const charts_js;
extern const char* const uplot_js;
extern const char* const uplot_css;

}  // namespace copus

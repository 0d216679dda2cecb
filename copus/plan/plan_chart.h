// Draws a plan over several global batches: the speed of the best few layouts, and where the fastest layout changes.
#pragma once

#include <string>

#include "copus/plan/plan.h"

namespace copus {

// Makes a self-contained SVG image, for a separate file or within a page. The image's colours are light or dark
// according to the viewer's preference.
std::string to_svg(const PlanQuestion& question, const Plan& plan);

// Makes a self-contained HTML page: the chart, then the tables of the `top` fastest layouts of every batch.
std::string to_html(const PlanQuestion& question, const Plan& plan, int64_t top);

}  // namespace copus

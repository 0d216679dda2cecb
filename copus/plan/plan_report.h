// What `copus plan` prints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "copus/plan/plan.h"
#include "copus/plan/plan_explain.h"

namespace copus {

// Shows the `top` fastest layouts with their time and memory by part where the plan has one batch; where it has
// several, the fastest layout of each and where it changes. One batch's fastest layout is also written as the program
// that is to train takes it.
std::string to_text(const PlanQuestion& question, const Plan& plan, int64_t top);

// Writes a paragraph for each batch, and for what fits how the program takes it.
std::string to_text(const PlanQuestion& question, const std::vector<Explanation>& explanations);

// Writes one object (docs/plan.md) without a line's end: the `top` fastest layouts of every batch, the crossovers and
// the explanations.
std::string to_json(const PlanQuestion& question, const Plan& plan, int64_t top,
                    const std::vector<Explanation>& explanations);

// What stands under tables: what +- is, how published runs compare with such predictions, and with those of memory. One
// line each, without its end.
std::string doubt_about_times(const PlanQuestion& question);
std::string doubt_about_memory();

// "llama-3.2-3b on 8 x H100 SXM 80GB, sequences of 2048, bf16"
std::string title_of(const PlanQuestion& question);
// "41.2 %", or "n/a" where the peak is not known.
std::string utilization_text(double model_flops_utilization);
// "12,345". The number is not negative.
std::string with_commas(double number);

}  // namespace copus

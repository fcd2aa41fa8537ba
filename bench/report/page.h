#pragma once
// The page of quipu-bench: how it stands in a sentence, heat maps of ratios, curves over n beside
// the limits of the machine, and all figures. One file that needs no network.
#include <string>

#include "comparison.h"

namespace quipu::bench::report {

std::string page_html(const Comparison& comparison);
void save_page(const Comparison& comparison, const std::string& path);
/// Throws where a page could not be written.
void check_writable(const std::string& path);
/// A file that is there in full or not at all.
void save_text(const std::string& path, const std::string& text);

/// "AMD EPYC, v4_bf16, 2 threads · copies 41 GB/s · ... · torch 2.15.0"
std::string machine_line(const Comparison& comparison);

// Parts of the page.
std::string heat_maps(const Comparison& comparison);
std::string curves(const Comparison& comparison);
std::string tables(const Comparison& comparison);

}  // namespace quipu::bench::report

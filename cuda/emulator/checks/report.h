#pragma once
// Collects reports: one for each kind and place.
#include <cstdint>
#include <string>

#include "../device.h"
#include "../emulator.h"

namespace quipu::emulator {

/// Whether a place has yet to be reported for this kind. Asked before any text is made: a faulty
/// kernel passes the same place a million times.
bool first_at(const char* kind, std::uintptr_t place);
/// The kernel is that of the launch that runs, if any; block and thread are put in front of text.
void report(const char* kind, std::uintptr_t return_address, const std::string& text);
void report(const char* kind, Site at, const std::string& text);
void report_line(const char* kind, const char* file, unsigned line, const std::string& text);
/// A mistake of the host.
void report_host(const char* kind, const std::string& text);

}  // namespace quipu::emulator

// Runs many random calls beside the reference; each that differs is one line, with its seed.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <map>

#include "calls.h"

using namespace quipu;

int main(int argc, char** argv) {
  std::uint64_t calls = 1, seed = 1;
  std::string device = "cpu";
  CLI::App app("Runs random calls of all operators, each kernel beside the reference.");
  app.add_option("--calls", calls, "how many")->capture_default_str();
  app.add_option("--seed", seed, "of the first; alone: runs that one")->capture_default_str();
  app.add_option("--device", device, "cpu or cuda")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  std::map<std::string, std::uint64_t> by_operator;
  std::uint64_t failed = 0;
  for (std::uint64_t k = 0; k < calls; ++k) {
    try {
      ++by_operator[calls::run_call(seed + k, device)];
    } catch (const Error& error) {
      ++failed;
      std::cout << error.what() << std::endl;
    }
  }
  for (const auto& [name, count] : by_operator) std::cout << name << " " << count << ", ";
  std::cout << "\n" << calls << " calls from " << seed << " on, " << failed << " failed\n";
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#include "symbols.h"

#include <cxxabi.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>

namespace quipu::emulator {
namespace {

/// The program as it was loaded: the first entry of the loader's list.
struct Program {
  std::uintptr_t base = 0;
  Range thread_local_image;
  std::vector<Range> constants;
};

int read_headers(dl_phdr_info* info, std::size_t, void* result) {
  Program& program = *static_cast<Program*>(result);
  program.base = info->dlpi_addr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    const std::uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    const Range range{begin, begin + header.p_memsz};
    if (header.p_type == PT_TLS) {
      const auto image = reinterpret_cast<std::uintptr_t>(info->dlpi_tls_data);
      if (image != 0) program.thread_local_image = {image, image + header.p_memsz};
    }
    const bool constant = header.p_type == PT_LOAD && !(header.p_flags & PF_W);
    if (constant || header.p_type == PT_GNU_RELRO) program.constants.push_back(range);
  }
  return 1;  // the first only
}

Program read_program_headers() {
  Program program;
  dl_iterate_phdr(read_headers, &program);
  return program;
}

const Program& program() {
  static const Program* loaded = new Program(read_program_headers());
  return *loaded;
}

/// Calls visit(name, symbol) for each symbol of the program's file.
template <class Visit>
void each_symbol(Visit visit) {
  static const std::string* file = [] {
    std::ifstream in("/proc/self/exe", std::ios::binary);
    return new std::string((std::istreambuf_iterator<char>(in)), {});
  }();
  if (file->size() < sizeof(ElfW(Ehdr))) return;
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(file->data());
  const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(file->data() + header->e_shoff);
  for (int i = 0; i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(file->data() + sections[i].sh_offset);
    const char* names = file->data() + sections[sections[i].sh_link].sh_offset;
    for (std::size_t k = 0; k < sections[i].sh_size / sizeof *symbols; ++k) {
      if (symbols[k].st_shndx != SHN_UNDEF) visit(names + symbols[k].st_name, symbols[k]);
    }
  }
}

std::string demangled(const char* name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  const std::string result = text != nullptr ? text : name;
  std::free(text);
  return result;
}

bool is_authors(const std::string& file) {
  for (const char* part : {"cuda/emulator/", "/c++/", "cuda/launch.h", "cuda/ptx.h"}) {
    if (file.find(part) != std::string::npos) return false;
  }
  return true;
}

std::map<std::uintptr_t, SourceLine>& known_lines() {
  static auto* known = new std::map<std::uintptr_t, SourceLine>;
  return *known;
}

/// "path/file.cu:12 (discriminator 2)"
SourceLine parse_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  text.resize(std::min(text.size(), text.find(" (")));
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos || text[0] == '?') return {};
  return {text.substr(0, colon),
          static_cast<unsigned>(std::strtoul(text.c_str() + colon + 1, nullptr, 10))};
}

}  // namespace

SharedArrays::SharedArrays(std::size_t image_bytes)
    : by_byte_(image_bytes + 16), exempt_(image_bytes + 16) {
  read_program();
  if (arrays_.size() == 1) exempt_.assign(exempt_.size(), true);
}

void SharedArrays::read_program() {
  each_symbol([&](const char* name, const ElfW(Sym) & symbol) {
    if (ELF64_ST_TYPE(symbol.st_info) != STT_TLS) return;
    if (std::strncmp(name, "_ZZ", 3) == 0) {  // local to a function
      add(name, symbol.st_value, symbol.st_size);
    } else if (std::strncmp(name, "_ZGV", 4) == 0) {  // guard of one
      std::fill_n(exempt_.begin() + static_cast<std::ptrdiff_t>(symbol.st_value), symbol.st_size,
                  true);
    }
  });
}

void SharedArrays::add(const char* mangled, std::size_t offset, std::size_t bytes) {
  const std::string full = demangled(mangled);
  const std::size_t colons = full.rfind("::");
  std::string name = colons == std::string::npos ? full : full.substr(colons + 2);
  const auto number = static_cast<std::uint16_t>(arrays_.size());
  arrays_.push_back({std::move(name), offset, bytes});
  std::fill_n(by_byte_.begin() + static_cast<std::ptrdiff_t>(offset), bytes, number);
}

Range thread_local_image() {
  return read_program_headers().thread_local_image;
}

bool is_program_constant(std::uintptr_t address) {
  for (const Range& range : program().constants) {
    if (range.contains(address)) return true;
  }
  return false;
}

std::uint32_t short_code(std::uintptr_t address) {
  return static_cast<std::uint32_t>(address - program().base);
}

std::uintptr_t long_code(std::uint32_t code) {
  return code + program().base;
}

std::string SourceLine::text() const {
  return file.empty() ? "?" : file + ":" + std::to_string(line);
}

void find_source_lines(const std::vector<std::uintptr_t>& return_addresses) {
  std::vector<std::uintptr_t> wanted;
  for (const std::uintptr_t address : return_addresses) {
    if (known_lines().try_emplace(address).second) wanted.push_back(address);
  }
  constexpr std::size_t at_once = 500;
  for (std::size_t first = 0; first < wanted.size(); first += at_once) {
    const std::size_t last = std::min(first + at_once, wanted.size());
    std::string command = "addr2line -a -i -e /proc/" + std::to_string(getpid()) + "/exe";
    for (std::size_t i = first; i < last; ++i) {
      char address[40];
      std::snprintf(address, sizeof address, " 0x%zx",
                    static_cast<std::size_t>(wanted[i] - 1 - program().base));
      command += address;
    }
    FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
    if (pipe == nullptr) return;
    std::array<char, 4096> buffer;
    std::size_t current = first - 1;
    bool settled = true;
    while (std::fgets(buffer.data(), buffer.size(), pipe) != nullptr) {
      if (std::strncmp(buffer.data(), "0x", 2) == 0) {  // the next address; its frames follow
        ++current;
        settled = false;
      } else if (!settled && current < last) {
        SourceLine line = parse_line(buffer.data());
        settled = is_authors(line.file);
        known_lines()[wanted[current]] = std::move(line);
      }
    }
    pclose(pipe);
  }
}

SourceLine source_line(std::uintptr_t return_address) {
  find_source_lines({return_address});
  return known_lines()[return_address];
}

namespace {

/// "void scale<float>(float*, int)" becomes "scale<float>".
std::string without_parameters(std::string full) {
  if (full.rfind("void ", 0) == 0) full.erase(0, 5);
  int depth = 0;  // the parameter list is the last pair of parentheses
  std::size_t open = full.size();
  while (open > 0) {
    --open;
    if (full[open] == ')') ++depth;
    if (full[open] == '(' && --depth == 0) break;
  }
  return open > 0 ? full.substr(0, open) : full;
}

struct Kernel {
  std::string name = "?";
  std::size_t static_bytes = 0;
};

Kernel read_kernel(const void* function) {
  const std::uintptr_t value = reinterpret_cast<std::uintptr_t>(function) - program().base;
  std::string mangled;
  each_symbol([&](const char* name, const ElfW(Sym) & symbol) {
    if (symbol.st_value == value && ELF64_ST_TYPE(symbol.st_info) == STT_FUNC) mangled = name;
  });
  Kernel kernel;
  if (mangled.empty()) return kernel;
  kernel.name = without_parameters(demangled(mangled.c_str()));
  if (mangled.rfind("_Z", 0) != 0) return kernel;
  // What is local to _Z<function> is called _ZZ<function>E<name>.
  const std::string local = "_ZZ" + mangled.substr(2) + "E";
  each_symbol([&](const char* name, const ElfW(Sym) & symbol) {
    if (ELF64_ST_TYPE(symbol.st_info) != STT_TLS ||
        std::strncmp(name, local.c_str(), local.size()) != 0)
      return;
    constexpr std::size_t largest_alignment = 16;
    kernel.static_bytes +=
        (symbol.st_size + largest_alignment - 1) / largest_alignment * largest_alignment;
  });
  kernel.static_bytes = (kernel.static_bytes + 127) / 128 * 128;
  return kernel;
}

const Kernel& kernel_at(const void* function) {
  static auto* lock = new std::mutex;
  static auto* known = new std::map<const void*, Kernel>;
  const std::lock_guard guard(*lock);
  const auto [entry, fresh] = known->try_emplace(function);
  if (fresh) entry->second = read_kernel(function);
  return entry->second;
}

}  // namespace

std::string kernel_name(const void* function) {
  return kernel_at(function).name;
}

std::size_t static_shared_bytes(const void* function) {
  return kernel_at(function).static_bytes;
}

}  // namespace quipu::emulator

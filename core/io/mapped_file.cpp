#include "quipu/core/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "quipu/core/error.h"

namespace quipu::detail {

namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

void check_system(bool ok, const std::string& path) {
  if (!ok) fail("cannot read ", path, ": ", std::generic_category().message(errno));
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe would wait for its writer.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  check_system(file.fd >= 0, path);
  struct stat info {};
  check_system(::fstat(file.fd, &info) == 0, path);
  check(S_ISREG(info.st_mode), "cannot read ", path, ": it is not a regular file");
  size_ = static_cast<std::size_t>(info.st_size);
  if (size_ == 0) return;
  // NORESERVE: a file larger than memory can be mapped, because hardly any page will be written to.
  void* data =
      ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.fd, 0);
  check_system(data != MAP_FAILED, path);
  data_ = static_cast<char*>(data);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(data_, size_);
}

}  // namespace quipu::detail

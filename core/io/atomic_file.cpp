#include "quipu/core/io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "quipu/core/error.h"

namespace quipu::detail {

namespace {

std::string temporary_name(const std::string& path) {
  static std::atomic<unsigned> serial{0};
  return path + "." + std::to_string(::getpid()) + "-" + std::to_string(serial++) + ".tmp";
}

/// Makes a rename in the folder of `path` survive a power cut, where the file system can do that.
void sync_folder(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

}  // namespace

void AtomicFile::fail_with_errno() const {
  const int reason = errno;
  try {
    fail("cannot write ", path_, ": ", std::generic_category().message(reason));
  } catch (const Error& error) {
    if (reason == ENOSPC || reason == EDQUOT) throw DiskFull(error.what());
    throw;
  }
}

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  struct stat info {};
  // Renaming onto a device or a pipe would put a plain file in its place.
  check(::stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode), "cannot write ", path,
        ": what is there is not a regular file");
  do {
    temporary_ = temporary_name(path);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (fd_ < 0 && errno == EEXIST);
  if (fd_ < 0) fail_with_errno();
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  constexpr std::size_t most_at_once = std::size_t{1} << 30;  // one call writes less than 2 GiB
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(fd_, next, std::min(bytes, most_at_once));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_with_errno();
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) fail_with_errno();
  if (::close(std::exchange(fd_, -1)) != 0) fail_with_errno();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_with_errno();
  temporary_.clear();
  sync_folder(path_);
}

}  // namespace quipu::detail

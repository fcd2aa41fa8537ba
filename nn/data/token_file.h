#pragma once
// Token ids in files, read where they lie: a text as bytes, or numbers one after another.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "quipu/nn/data/dataset.h"

namespace quipu::detail {
class MappedFile;
}

namespace quipu::nn {

/// How ids are stored, in the byte order of this machine (little-endian).
enum class TokenType { u8, u16, i32, i64 };

/// How files are read and cut into windows.
struct TokenOptions {
  std::int64_t sequence = 256;     // tokens a window
  std::int64_t stride = 0;         // from one window to the next; 0: as long as a window
  TokenType type = TokenType::u8;  // any file is one of u8: its bytes
  std::int64_t vocabulary = 0;     // an id that is negative or not below it is an error; 0: none is
};

/// Windows of the tokens of several files, one after another as if they were one. A sample is
/// inputs (sequence) and targets (sequence), i64: the targets are the inputs moved on by one token.
///
/// Sample i begins at token i * stride. Windows at random places: stride 1 and a loader that
/// shuffles. Files are mapped, so nothing is read until it is asked for; they may be replaced or
/// removed meanwhile, but must not be shortened.
class TokenFiles final : public Dataset {
 public:
  TokenFiles(const std::vector<std::string>& paths, const TokenOptions& options = {});

  /// The windows of the tokens between two shares of all of them: `part(0, 0.9)` to train on and
  /// `part(0.9, 1)` to validate with. Shares the files.
  TokenFiles part(double from, double to) const;

  /// In all files, or in this part of them.
  std::int64_t tokens() const { return end_ - begin_; }
  // As Dataset says; a sample is a window. A window needs one more token, its last target.
  std::int64_t size() const override;
  Batch make(std::int64_t count, Device device) const override;
  void fill(const Batch& batch, std::span<const std::int64_t> places) const override;

 private:
  struct File {
    std::string path;
    std::shared_ptr<const quipu::detail::MappedFile> bytes;
    std::int64_t begin, end;  // which tokens of all it has
  };
  void check_size() const;
  void read(std::int64_t first, std::int64_t count, std::int64_t* to) const;

  TokenOptions options_;
  std::vector<File> files_;
  std::int64_t begin_ = 0, end_ = 0;  // the tokens that are used, of all files
};

}  // namespace quipu::nn

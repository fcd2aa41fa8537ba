#pragma once
// Tables of numbers in text files.
#include <string>
#include <vector>

#include "quipu/core/tensor.h"

namespace quipu::nn {

/// How a file is to be read.
struct CsvOptions {
  char separator = ',';  // between the fields of a line
  bool header = false;   // the first line names the columns
  DType dtype = f32;     // or f64, i64
};

/// What read_csv gives.
struct CsvTable {
  Tensor values;                     // (rows, columns)
  std::vector<std::string> columns;  // their names; empty without a header
};

/// Reads a file that is plain or packed with gzip; its content decides. Lines end with LF or CRLF,
/// empty ones are skipped. Fields may stand in double quotes, with "" for one inside; blanks around
/// them are ignored. A table has at most 2^20 columns. A row of another length, a field that is no
/// finite number, a gzip file that is cut off and a table without rows are errors that name the
/// file, the line and the column.
CsvTable read_csv(const std::string& path, const CsvOptions& options = {});

}  // namespace quipu::nn

// Tables of numbers: what is right comes back, what is wrong is named by file, line and column.
#include <zlib.h>

#include "quipu/core/memory/memory.h"
#include "quipu/nn/data/csv.h"
#include "support/safetensors_files.h"
#include "support/support.h"

using namespace quipu;
using namespace quipu::nn;
using namespace quipu::testing;

namespace {

/// A folder with one file to read.
class Table {
 public:
  explicit Table(const std::string& text) { write_bytes(path(), text); }
  std::string path() const { return directory_.file("table.csv"); }
  CsvTable read(const CsvOptions& options = {}) const { return read_csv(path(), options); }

 private:
  TempDirectory directory_;
};

using Values = std::vector<double>;

Values values(const std::string& text, const CsvOptions& options = {}) {
  return Table(text).read(options).values.to_vector();
}

void refused(const std::string& text, const Expected& part, const CsvOptions& options = {}) {
  const Table table(text);
  expect_error([&] { table.read(options); }, part, "read_csv: ", table.path());
}

std::string gzip(const std::string& text) {
  const TempDirectory directory;
  const std::string path = directory.file("x.gz");
  const gzFile file = ::gzopen(path.c_str(), "wb");
  ::gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  ::gzclose(file);
  return read_bytes(path);
}

/// Rows of whole numbers that count on.
std::string counted_rows(int rows, int columns) {
  std::string text;
  for (int i = 0; i < rows * columns; ++i) {
    text += std::to_string(i) + ((i + 1) % columns == 0 ? '\n' : ',');
  }
  return text;
}

}  // namespace

TEST_CASE("csv: numbers of every form") {
  const CsvTable table = Table("1,-2.5,+3e2\n.5,6.,-0\n").read({.dtype = f64});
  CHECK(table.values.shape() == Shape{2, 3});
  CHECK(table.values.dtype() == f64);
  CHECK(table.columns.empty());
  CHECK(table.values.to_vector() == Values{1, -2.5, 300, 0.5, 6, 0});
  CHECK(Table("1").read().values.dtype() == f32);
  CHECK(values("0.1,3.4028234e38") == Values{double(0.1f), double(3.4028234e38f)});
  CHECK(Table("9007199254740993,-5\n").read({.dtype = i64}).values[0][0].item_int() ==
        9007199254740993);
}

TEST_CASE("csv: line ends, blanks, empty lines and a mark at the beginning") {
  const Values expected{1, 2, 3, 4};
  for (const char* text : {"1,2\n3,4", "1,2\n3,4\n", "1,2\r\n3,4\r\n", "\n\n1,2\n\n3,4\n\n\n",
                           " 1 ,\t2\n  3,4  \n   \n", "\357\273\2771,2\n3,4\n"}) {
    CAPTURE(text);
    CHECK(values(text) == expected);
  }
}

TEST_CASE("csv: separators") {
  CHECK(values("1;2\n3;4\n", {.separator = ';'}) == Values{1, 2, 3, 4});
  CHECK(values("1\t2\n3\t4\n", {.separator = '\t'}) == Values{1, 2, 3, 4});
  CHECK(values("1 2\n3 4\n", {.separator = ' '}) == Values{1, 2, 3, 4});
  for (const char separator : {'"', '\n', '.', '-', 'e', '5'}) {
    expect_error([&] { Table("1").read({.separator = separator}); }, "the separator '");
  }
}

TEST_CASE("csv: a header and quotes") {
  const CsvTable table =
      Table("x, \"the \"\"y\"\"\" ,\"a,b\",\n1,\"2\",3,4\n").read({.header = true});
  CHECK(table.columns == std::vector<std::string>{"x", "the \"y\"", "a,b", ""});
  CHECK(table.values.to_vector() == Values{1, 2, 3, 4});
  refused("x,y\n", "has no rows of numbers", {.header = true});
  refused("x,y\n1\n", "line 2: the row has 1 column, but 2 are wanted", {.header = true});
  refused("1,\"2\n", "line 1, column 2: the quote is not closed");
  refused("1,\"2\"3\n", "line 1, column 2: '3' follows a closing quote");
}

TEST_CASE("csv: what is no table says where") {
  refused("", ": the file is empty");
  refused("\n \n\n", "has no rows of numbers");
  refused("x,y\n1,2\n", "line 1, column 1: 'x' is not a number (set header");
  refused("1,2\n3,abc\n", "line 2, column 2: 'abc' is not a number");
  refused("1,2\n\n3,4x\n", "line 3, column 2: '4x' is not a number");
  refused("1,2\n3,,4\n", "line 2, column 2: the field is empty");
  refused("1,2\n3,4,5\n", "line 2: the row has 3 columns, but 2 are wanted");
  refused("1,2\n3\n", "line 2: the row has 1 column, but 2 are wanted");
  refused("1,2\n3,4,\n", "line 2: the row has 3 columns");
  refused("1;2\n", "'1;2' is not a number");
  refused("\t\t\n", "line 1, column 1: the field is empty", {.separator = '\t'});
  refused("1,nan\n", "'nan' is not a finite number");
  refused("1\n-inf\n", "line 2, column 1: '-inf' is not a finite number");
  refused("1e999\n", "'1e999' is out of range");
  refused("1e39\n", "'1e39' is out of the range of f32");
  refused("+-1\n", "'+-1' is not a number");
  refused("0x10\n", "'0x10' is not a number");
  refused(std::string("1\0,2\n", 5), "column 1: '1\\u0000' is not a number");
  refused("1.5\n", "'1.5' is not a whole number", {.dtype = i64});
  refused("9223372036854775808\n", "out of range", {.dtype = i64});
  expect_error([] { Table("1").read({.dtype = bf16}); }, "dtype is bf16, but f32, f64 or i64");
}

TEST_CASE("csv: what cannot be read says why") {
  const TempDirectory directory;
  expect_error([&] { read_csv(directory.file("missing.csv")); },
               "missing.csv: No such file or directory", "read_csv: cannot read ");
  expect_error([&] { read_csv(directory.path().string()); }, "Is a directory");
}

TEST_CASE("csv: gzip") {
  const std::string text = counted_rows(3000, 7), packed = gzip(text);
  const Tensor expected = arange(21000, f32).reshape({3000, 7});
  CHECK(same_bits(Table(packed).read().values, expected));
  CHECK(same_bits(Table(text).read().values, expected));
  CHECK(values(gzip("1,2\n") + gzip("3,4\n")) == Values{1, 2, 3, 4});  // one after another
  refused(gzip(""), "the file is empty");
}

TEST_CASE("csv: gzip data that is cut off or damaged, at any place") {
  const std::string packed = gzip(counted_rows(200, 5));
  for (std::size_t length = 3; length < packed.size(); length += 7) {
    CAPTURE(length);
    const Table table(packed.substr(0, length));
    CHECK(thrown_message<Error>([&] { table.read(); }));
  }
  refused(packed.substr(0, packed.size() / 2), "the gzip data is cut off");
  refused(packed.substr(0, packed.size() - 1), "the gzip data is cut off");
  std::string damaged = packed;
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 0x55);
  const Table table(damaged);
  CHECK(thrown_message<Error>([&] { table.read(); }));
}

TEST_CASE("csv: long lines, and lines that never end") {
  std::string wide;
  for (int i = 0; i < 100'000; ++i) wide += std::to_string(i % 10) + ",";
  wide += "7\n";
  const CsvTable table = Table(wide + wide).read();  // longer than what is read at once
  CHECK(table.values.shape() == Shape{2, 100'001});
  CHECK(table.values[1][99'999].item() == 9);
  refused("1\n" + std::string(std::size_t{70} << 20, '1'), "line 2: the line is longer than");
  refused(gzip(std::string(std::size_t{70} << 20, ' ')), "line 1: the line is longer than");
}

TEST_CASE("csv: a short file that claims many columns") {
  const std::string commas((std::size_t{60} << 20), ',');
  const std::string packed = gzip(commas + "\n");
  CHECK(packed.size() < 100'000);
  refused(packed, "line 1: the line has more than 1048576 columns", {.header = true});
  refused(packed, "line 1: the line has more than 1048576 columns");
  refused("1,2\n" + commas + "\n", "line 2");
}

TEST_CASE("csv: memory is in the ledger, and only the table stays") {
  const Table table(counted_rows(100'000, 8));  // several pieces
  const std::size_t before = memory_stats().current;
  const PeakMemory peak;
  const CsvTable read = table.read();
  const std::size_t bytes = read.values.nbytes();
  CHECK(bytes == 100'000 * 8 * sizeof(float));
  CHECK(memory_stats().current == before + bytes);
  CHECK(peak.bytes_above() <= 2 * bytes + (std::size_t{1} << 20));
  CHECK(same_bits(read.values, arange(800'000, f32).reshape({100'000, 8})));
  const std::size_t now = memory_stats().current;
  refused("1,2\n3,x\n", "is not a number");
  CHECK(memory_stats().current == now);
}

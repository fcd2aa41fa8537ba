# Takes the code blocks out of a page: awk -v page=README.md -v out=DIRECTORY -f blocks.awk README.md
#
#   ```cpp           a whole program: compiled and run; docs/ may mark what is only a sketch ```c++
#   ```text prints   what the program before it prints; a line `...` stands for any lines
#   ```sh            commands: each must exist, with its options
#   ```sh run        commands that are also run
#   ```cmake         must stand in tests/system/package/CMakeLists.txt
#
# Prints one line per program: its name, and the page and line it came from. Programs are written to DIRECTORY/NAME.cpp,
# expected output to DIRECTORY/NAME.expected, commands to DIRECTORY/commands, CMake lines to DIRECTORY/cmake.

function refuse(line, message) {
  print page ":" line ": " message > "/dev/stderr"
  failed = 1
  exit 1
}

function write_program(   i, file, has_main) {
  name = page
  gsub(/[^A-Za-z0-9]/, "_", name)
  name = name "_" first
  file = out "/" name ".cpp"
  for (i = 1; i <= count; ++i) if (block[i] ~ /int main *\(/) has_main = 1
  if (!has_main) refuse(first, "a cpp block without main")
  print "#line " first + 1 " \"" page "\"" > file
  for (i = 1; i <= count; ++i) print block[i] > file
  close(file)
  print name, page ":" first
}

function write_expected(   i, file) {
  if (name == "") refuse(first, "what prints this? no program stands before it")
  file = out "/" name ".expected"
  for (i = 1; i <= count; ++i) print block[i] > file
  close(file)
}

function write_commands(kind,   i, command) {
  for (i = 1; i <= count; ++i) {
    command = command block[i]
    if (sub(/\\$/, "", command)) continue
    print page ":" first + i "\t" (kind == "run" ? "run" : "check") "\t" command >> (out "/commands")
    command = ""
  }
}

function finish_block(   i) {
  if (info == "cpp") write_program()
  else if (info ~ /^cpp/ || (page == "README.md" && tolower(info) ~ /^(c\+\+|cxx|cc)/))
    refuse(first, "```" info ": a C++ block is marked ```cpp")
  else if (info == "text prints") write_expected()
  else if (info == "sh" || info == "sh run") write_commands(substr(info, 4))
  else if (info == "cmake") for (i = 1; i <= count; ++i) print page ":" first + i "\t" block[i] >> (out "/cmake")
  else if (info ~ /^(sh|bash|console|shell)/) refuse(first, "commands are marked ```sh or ```sh run")
}

/^```/ && !inside { inside = 1; info = substr($0, 4); first = NR; count = 0; next }
/^```/ && inside { inside = 0; finish_block(); next }
inside { block[++count] = $0 }
END { if (inside && !failed) refuse(first, "a block that does not end") }

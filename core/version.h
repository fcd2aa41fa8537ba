#pragma once
// The version of the library. This is its only home: CMake reads it from here.

/// Raised when programs have to be changed; while it is 0, the minor one is raised for that.
#define QUIPU_VERSION_MAJOR 0
/// Raised for what is new.
#define QUIPU_VERSION_MINOR 1
/// Raised for what is mended.
#define QUIPU_VERSION_PATCH 0

namespace quipu {

/// The version of the library that runs, such as "0.1.0"; the macros above are those of the headers
/// that a program was compiled with.
const char* version();

}  // namespace quipu

# How our own code is compiled: one interface target that every target of the tree links. Files for nvcc have options of
# their own (cmake/kernels.cmake).
add_library(quipu_options INTERFACE)
function(quipu_compile_options)
  target_compile_options(quipu_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${ARGN}>")
endfunction()
quipu_compile_options(-Wall -Wextra -Wpedantic -Wconversion -Wno-unused-parameter)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  quipu_compile_options(-Wno-restrict)  # g++ 12 warns of its own string operator +
endif()
if(QUIPU_WERROR)
  quipu_compile_options(-Werror)
endif()
# Same bits for same inputs, whatever a loop was compiled into: no value-changing optimisations beyond fused multiply-add.
quipu_compile_options(-fno-math-errno -fno-trapping-math)
if(QUIPU_NATIVE)
  quipu_compile_options(-march=native)
endif()

# Also what a program outside the tree needs to link a library that was built with sanitizers.
set(quipu_sanitize_flags "")
if(QUIPU_SANITIZE)
  set(quipu_sanitize_flags -fsanitize=${QUIPU_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  quipu_compile_options(${quipu_sanitize_flags})
  target_link_options(quipu_options INTERFACE ${quipu_sanitize_flags})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(quipu_options INTERFACE -Wno-maybe-uninitialized)  # instrumented, its own <regex> seems so
  endif()
endif()
